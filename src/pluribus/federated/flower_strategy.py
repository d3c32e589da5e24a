"""A strategy of Flower's ServerApp that aggregates by a rule. Part of `pluribus.federated.flower`, where to begin."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pluribus.core.contributions import gather
from pluribus.core.errors import PluribusError, RuleError, require
from pluribus.core.rule import Rule, positive
from pluribus.federated.server import Objective, ServerRule, State, Tree
from pluribus.federated.server.base import Array
from pluribus.federated.server.rule import Server
from pluribus.federated.training import LocalTraining

require("flwr.serverapp.strategy", "flower")

from flwr.app import ConfigRecord, MetricRecord  # noqa: E402 - asked for by name first

from pluribus.federated.flower_checkpoint import Checkpointed  # noqa: E402
from pluribus.federated.flower_offers import (  # noqa: E402
    MESSAGE,
    ORDERS,
    TOLD,
    check_rule,
    offered,
    orders,
    packed,
    server_rule,
    unpacked,
    with_records,
)
from pluribus.federated.flower_records import (  # noqa: E402
    LEFT_OUT,
    Reply,
    checked_size,
    mean_metrics,
    open_reply,
    record_of,
    tree_of,
)
from pluribus.federated.flower_replies import CLIENT, blamed, read, screen  # noqa: E402
from pluribus.federated.flower_round import metrics_of, round_of  # noqa: E402
from pluribus.federated.flower_state import flattened, grown, nested  # noqa: E402

_LOG = logging.getLogger("flwr")


class PluribusStrategy(Checkpointed):
    """Flower's FedAvg with a rule in the place of the mean.

    The rule works on updates, which are a client's arrays less those that it was sent, and it keeps the model's names,
    order, shapes and dtypes. Counters stay integers, buffers and masks are treated as in `server.Server`. A round in
    which nobody, or too few for the rule, sent something usable leaves the model as it is.

    Each round's MetricRecord holds, beside the clients' own metrics, ``pluribus/status`` (an index into
    `server.STATUS`, where 0 is a step), ``pluribus/effective-size``, ``pluribus/weight/NODE`` (what each node counted
    for) and ``pluribus/left-out/NODE`` (an index into `LEFT_OUT`); `by_node` takes the last two out.

    Parameters
    ----------
    rule
        A rule (``rules.Median()``, a chain), a server rule (``server.FedAdam()``), or the text of one
        (``"multi_krum:f=2"``, ``"nnm:f=2+median"``, ``"fedadam:server_lr=0.01"``). How sizes enter and what becomes of
        NaN is the rule's own affair: the published mean of FedAvg and of the server optimisers goes by num-examples;
        other rules count clients alike unless they are told ``weighting=size``; NaN is dropped unless
        ``nonfinite=raise``.
    malformed
        What becomes of a reply with other names, shapes or kinds of number than the model, or without a number of
        examples: ``"raise"`` an error that names the node, or ``"drop"`` it, so that a client cannot end the run.
    max_norm, max_norm_ratio
        Longest update that is taken, as a Euclidean norm over all float tensors, and as a multiple of the round's
        median norm (the lower one of two; no bound where it is 0). A longer one is left out before the rule sees it.
        This catches mistakes of units and models that diverge; who lies within the bound is the rule's affair.
    grace
        Seconds to wait for the rest once ``min_train_nodes`` have answered (``min_evaluate_nodes`` when models are
        evaluated). By default a round waits for everybody until ``start``'s timeout.
    how
        How clients are to train, told to those that are made by `client_app`; by default that is their own affair.
    checkpoint
        A file that holds the whole state after each round, replaced in one step.
    resume
        Go on from the checkpoint, if there is one yet: ``start`` then takes up its model, its round, and the rule's
        state, and ``num_rounds`` counts all rounds.
    labels_by_key
        Key of the MetricRecord under which clients may send their samples of each class, a list, for FedDisco.
    proxy
        The server's own clean set as an objective ``params -> (loss, gradient)``, for FedLAW and fine-tuning.
    seed
        For rules that draw.
    **options
        Those of Flower's FedAvg: fractions, least numbers of nodes, keys, metric functions. The least numbers of nodes
        are those that the rule needs, and metrics are combined by `mean_metrics`, unless given.

    Raises
    ------
    MissingExtraError
        On import, where Flower is not installed.
    RuleError
        No such rule, or one that needs more clients than there are.
    ContributionError, WeightError
        Replies that are malformed.
    FileError
        A checkpoint that is there already without ``resume``, that cannot be read or written, or is of another rule.
    """

    def __init__(
        self,
        rule: Rule | ServerRule | str,
        *,
        malformed: str = "raise",
        max_norm: float | None = None,
        max_norm_ratio: float | None = None,
        grace: float | None = None,
        how: LocalTraining | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        labels_by_key: str = "label-counts",
        proxy: Objective | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if malformed not in ("raise", "drop"):
            raise RuleError(f"PluribusStrategy: malformed must be 'raise' or 'drop', not {malformed!r}")
        for name, bound in (("max_norm", max_norm), ("max_norm_ratio", max_norm_ratio)):
            if bound is not None:
                positive("PluribusStrategy", name, bound)
        if grace is not None:
            positive("PluribusStrategy", "grace", grace, zero=True)
        self.rule, self.grace, self.how = server_rule(rule), grace, how
        check_rule(self.rule, how)
        self.max_norm, self.max_norm_ratio = max_norm, max_norm_ratio
        self.malformed, self.labels_by_key, self.proxy, self.seed = malformed, labels_by_key, proxy, seed
        least = max(2, getattr(self.rule, "least", 1))
        defaults = {
            "min_train_nodes": least,
            "min_available_nodes": least,
            "train_metrics_aggr_fn": mean_metrics,
            "evaluate_metrics_aggr_fn": mean_metrics,
        }
        super().__init__(**(defaults | options))
        self._state: State | None = None
        self._nodes: dict[int, int] = {}  # position of each node that was ever seen
        self._rounds = 0
        self._asked: set[int] = set()
        self._starts: dict[int, Tree] = {}  # the models that were sent in this round
        self._open(checkpoint, resume, f"{self.rule.name} with seed {seed}")

    # --- what Flower calls --------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log the rule and FedAvg's settings."""
        _LOG.info("\t├──> Rule: %s", self.rule.name)
        super().summary()

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        """Sample as FedAvg does, once enough nodes are there, and note which model is sent to whom."""
        # FedAvg takes its fraction of the nodes that are there before it waits for more: it would ask the first two of
        # a large federation, and a liar among two wins.
        least = max(self.min_available_nodes, self.min_train_nodes)
        while self.fraction_train and (here := len(list(grid.get_node_ids()))) < least:
            _LOG.info("Waiting for nodes: %d of %d are there", here, least)
            time.sleep(1)
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._asked = {message.metadata.dst_node_id for message in messages}
        model = tree_of(arrays, "the model to send")
        self._begin(model, self._asked | set(grid.get_node_ids()))
        self._starts = {}
        records = {id(model): arrays}  # one record for all who are sent the same model
        return [self._addressed(message, records) for message in messages]

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        """Sample as FedAvg does; under a rule with personal models each node is sent its own."""
        messages = list(super().configure_evaluate(server_round, arrays, config, grid))
        if not (isinstance(self.rule, Server) and self.rule.personal_models):
            return messages
        return [
            with_records(message, {self.arrayrecord_key: self.arrays(message.metadata.dst_node_id)})
            for message in messages
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """Take a step of the rule with the usable replies; the model, changed or not, and the round's metrics."""
        params: Tree = self.state["params"]
        good, left_out = read(replies, self._opened, asked=self._asked, malformed=self.malformed)
        screen(good, left_out, most=self.max_norm, ratio=self.max_norm_ratio, malformed=self.malformed)
        left_out |= dict.fromkeys(self._asked - good.keys() - left_out.keys(), 1)
        self._begin(params, set(good))
        number_of = list(self._nodes)
        self._step(good, left_out, number_of)
        self._rounds, self._asked = self._rounds + 1, set()
        dropped = np.flatnonzero(self.state.get("dropped", ()))
        left_out |= dict.fromkeys((number_of[i] for i in dropped), 4)
        for node, why in sorted(left_out.items()):
            _LOG.info("\t> Left out node %d: it %s", node, LEFT_OUT[why])
        self._save()
        record, combined = MetricRecord(), [r.content for node, r in good.items() if node not in left_out]
        if combined:
            record = self.train_metrics_aggr_fn(combined, self.weighted_by_key)
            record.pop(self.labels_by_key, None)
        for name, value in metrics_of(self.state, number_of, left_out).items():
            record[name] = value
        return self.arrays(), record

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Combine the metrics of the usable replies; None where there are none."""
        good, _ = read(
            replies,
            lambda message: checked_size(message, self.weighted_by_key),
            asked=set(),
            malformed=self.malformed,
        )
        contents = [reply.content for reply in good.values()]
        return self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key) if contents else None

    # --- the rule's state ---------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The server rule's state, a tree of arrays: ``params``, ``weights`` of all nodes seen, and the rule's own."""
        if self._state is None:
            raise RuleError("the strategy has no model yet: call start, or configure_train, or load_state_dict first")
        return self._state

    @property
    def rounds(self) -> int:
        """Rounds done, over all starts."""
        return self._rounds

    def arrays(self, node: int | None = None) -> Any:
        """The global model as it is now, an ArrayRecord: ``initial_arrays`` when a run is taken up again.

        With the id of a node, the model that the rule means for it.
        """
        if node in self._nodes and isinstance(self.rule, Server):
            return record_of(self.rule.model_of(self.state, self._nodes[node]))
        return record_of(self.state["params"])

    def state_dict(self) -> dict[str, Array]:
        """All that a later run needs, flat, as copies: ``safetensors.numpy.save_file`` takes it."""
        return flattened(self.state, list(self._nodes), self._rounds)

    def load_state_dict(self, saved: Mapping[str, Array]) -> None:
        """Go on from a `state_dict`. Nodes are known again by their ids.

        Raises
        ------
        RuleError
            The state is that of another kind of rule, or incomplete.
        """
        self._state, nodes, self._rounds = nested(saved, self.rule)
        self._nodes = {node: position for position, node in enumerate(nodes)}

    # --- the parts of a round -----------------------------------------------------------------------------------

    def _begin(self, params: Tree, seen: set[int]) -> None:
        """Know the nodes, and take the model that is sent as the rule's, whatever became of it since the last round."""
        for node in sorted(seen - self._nodes.keys()):  # sorted: the order of arrival must not matter
            self._nodes[node] = len(self._nodes)
        if self._state is None:
            self._state = self.rule.init(params, len(self._nodes))
            return
        gather({"the strategy's model": self._state["params"], "the model sent": params})
        if len(self._state["weights"]) < len(self._nodes):
            self._state = grown(self._state, self.rule.init(params, len(self._nodes)))
        self._state = {**self._state, "params": params}

    def _step(self, good: dict[int, Reply], left_out: dict[int, int], number_of: Sequence[int]) -> None:
        """The rule's step; under ``malformed="drop"`` again without those who are to blame that it could not."""
        params: Tree = self.state["params"]
        while True:
            round = round_of(
                {self._nodes[node]: reply for node, reply in good.items()},
                [self._starts.get(node, params) for node in good],
                number=self._rounds,
                n_clients=len(self._nodes),
                proxy=self.proxy,
                seed=self.seed,
            )
            try:
                self._state = self.rule.step(self.state, round)
                return
            except Exception as error:
                told = re.sub(CLIENT, lambda found: f"node {number_of[int(found[1])]}", str(error))
                guilty = blamed(error, good, number_of) if self.malformed == "drop" else []
                if not guilty and isinstance(error, PluribusError):
                    raise type(error)(told) from error
                if not guilty:
                    raise
                _LOG.warning("\t> %s", told)
                for node in guilty:
                    del good[node]
                    left_out[node] = 3

    def _addressed(self, message: Any, records: dict[int, Any]) -> Any:
        """A message to train with what the rule sends and tells this node; ``records`` of models by their identity."""
        node = message.metadata.dst_node_id
        position = self._nodes[node]
        offer = offered(self.rule, self.state, position)
        self._starts[node] = offer.params
        told = orders(self.rule, self.state, position, number=self._rounds, seed=self.seed, how=self.how)
        if id(offer.params) not in records:
            records[id(offer.params)] = record_of(offer.params)
        more = {ORDERS: ConfigRecord(told), self.arrayrecord_key: records[id(offer.params)]}
        if offer.told:
            more[TOLD] = packed(offer.told)
        return with_records(message, more)

    def _opened(self, message: Any) -> Reply:
        """A checked reply, with what its client method sent."""
        node, content = message.metadata.src_node_id, message.content
        params: Tree = self.state["params"]
        start = self._starts.get(node, params)
        reply = open_reply(message, start, self.weighted_by_key, self.labels_by_key, beside=MESSAGE)
        sent = unpacked(content[MESSAGE], f"node {node}") if MESSAGE in content.array_records else {}
        return replace(reply, message=sent)
