"""Any rule of `pluribus.rules` as a server rule on the updates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.result import Aggregate
from pluribus.core.rule import Chain, CoordinateRule, RankRule, Rule, positive, steps, whole_number
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.proxy import objective
from pluribus.federated.server.rule import (
    UNSPOKEN,
    Server,
    Step,
    contributions,
    local_models,
    mean,
    one_of,
    size_shares,
    told,
)
from pluribus.rules import Median


@dataclass(frozen=True)
class Stateless(Server):
    """``x + lr rule(delta_1 ... delta_k)``.

    A rule that uses a reference (centered clipping) gets the last round's result, kept in the state as ``previous``
    and zero before the first round. A rule of models (FedCPA) gets the participants' models instead of updates, the
    global model as its reference and, after the first round, the global model before it, which is then ``previous``;
    its step is from the global model to its result. A rule that needs a trusted row (FLTrust, FedDA, FedGP) gets the
    update that the server makes itself on its clean set: gradient steps on the round's proxy objective, without which
    it is refused. A round with fewer participants than the rule needs leaves the
    model as it is; a rule that needs more than there are clients is an error at once.

    Rules decide by trained tensors alone. Buffers and counters are averaged with the weights that came out; where there
    are none their values go through the rule's last step if it works on sorted values, and else through the median.

    Parameters
    ----------
    rule
        A rule or chain.
    server_lr
        Step along the result.
    weighting
        ``"uniform"``, the default because who attacks may also lie about its size, or ``"size"``.
    measure
        Whether to say what each participant counted for where that takes a pass over the updates of its own (median,
        trimmed mean); without it those weights are NaN.
    proxy_steps, proxy_lr
        Gradient steps of the server's own update, and their length: for rules that need a trusted row. FLTrust's result
        is never longer than that update, so take what makes it about as long as an honest client's.
    """

    rule: Rule
    server_lr: float = 1.0
    weighting: str = "uniform"
    measure: bool = True
    proxy_steps: int = 1
    proxy_lr: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rule, Rule):
            raise RuleError(f"Stateless takes a rule such as rules.Median(), not {self.rule!r}")
        positive("Stateless", "server_lr", self.server_lr)
        one_of(self, "weighting", ("uniform", "size"))
        whole_number("Stateless", "proxy_steps", self.proxy_steps, 1)
        positive("Stateless", "proxy_lr", self.proxy_lr)

    @property
    def name(self) -> str:
        """The rules of the chain with their parameters, then those of this frame: what `parse` reads back."""
        chained = "+".join(told(step.name or type(step).__name__, step) for step in _steps(self.rule))
        return told(chained, self, leave_out=(*UNSPOKEN, "rule"))

    @property
    def least(self) -> int:
        """What the rule needs."""
        return self.rule.least

    @property
    def formula(self) -> str:  # type: ignore[override]
        """The rules' formulas, in their order."""
        return "; then ".join(step.formula for step in _steps(self.rule))

    @property
    def source(self) -> str:  # type: ignore[override]
        """The rules' sources."""
        return "; ".join(step.source for step in _steps(self.rule))

    @property
    def explanation(self) -> str:  # type: ignore[override]
        """The first sentence of the rules' own descriptions."""
        return " Then: ".join((type(step).__doc__ or "").strip().partition("\n")[0] for step in _steps(self.rule))

    def remember(self, params: Tree, n_clients: int) -> State:
        """``previous``: the last result, if the rule uses one; or the last model, if it is a rule of models."""
        if self.rule.of_models:
            return {"previous": {name: params[name].copy() for name in self.parameters(params)}}
        if not self.rule.uses_reference or self._trusting:
            return {}
        return {"previous": {name: np.zeros_like(params[name]) for name in self.parameters(params)}}

    def advance(self, state: State, round: Round) -> Step:
        """Move by the rule's result."""
        trained = self.parameters(state["params"])
        given = size_shares(round) if self.weighting == "size" else None
        result, change, memory = (self._of_models if self.rule.of_models else self._of_updates)(state, round, given)
        measured = self.measure or not isinstance(steps(self.rule)[1], CoordinateRule)
        weights = result.weights if measured else np.full(len(round.clients), np.nan)
        change = change | self._buffers(state["params"], trained, round, given, weights)
        return Step(self.moved(state["params"], change, self.server_lr), weights, memory)

    def _of_updates(self, state: State, round: Round, given: Array | None) -> tuple[Aggregate, Tree, State]:
        """The rule's result on updates, what it moves the model by, and what is kept for the next round."""
        trained = self.parameters(state["params"])
        reference = self._trusted(state, round) if self._trusting else state.get("previous")
        result = self.rule(contributions(round, trained), given, reference=reference)
        return result, dict(result.value), {"previous": result.value} if "previous" in state else {}

    @property
    def _trusting(self) -> bool:
        """Whether the rule means nothing without a row that is no model, and so no last result either."""
        return bool(self.rule.needs_reference) and not self.rule.of_models

    def _trusted(self, state: State, round: Round) -> Tree:
        """The server's own update."""
        loss = objective(self.name.partition(":")[0], round)
        start = {name: state["params"][name].astype(np.float64) for name in self.parameters(state["params"])}
        point = dict(start)
        for _ in range(self.proxy_steps):
            _, gradient = loss({**state["params"], **point})
            point = {name: value - self.proxy_lr * gradient[name] for name, value in point.items()}
        return {name: value - start[name] for name, value in point.items()}

    def _of_models(self, state: State, round: Round, given: Array | None) -> tuple[Aggregate, Tree, State]:
        """The same of a rule of models."""
        models = replace(round, updates=local_models(round, state["params"]))
        current, before = (
            {name: tree[name] for name in self.parameters(state["params"])}
            for tree in (state["params"], state["previous"])
        )
        moved = any((current[name] != before[name]).any() for name in current)
        last = before if moved and self.rule.uses_previous else None
        result = self.rule(contributions(models, list(current)), given, reference=current, previous=last)
        change = {name: value.astype(np.float64) - current[name] for name, value in result.value.items()}
        return result, change, {"previous": current}

    def _buffers(self, params: Tree, trained: list[str], round: Round, given: Array | None, weights: Array) -> Tree:
        """What buffers and counters move by."""
        names = [name for name, value in params.items() if name not in trained and value.dtype.kind != "b"]
        if not names:
            return {}
        last = steps(self.rule)[1]
        if isinstance(last, CoordinateRule) or np.isnan(weights).any():
            by_rank = last if isinstance(last, RankRule) else Median()
            value: Tree = by_rank(contributions(round, names), given).value
            return value
        counted = np.maximum(weights, 0.0)
        return mean(round, counted, names) if counted.any() else {}


def _steps(rule: Rule) -> tuple[Rule, ...]:
    return rule.steps if isinstance(rule, Chain) else (rule,)
