"""What an experiment came to: a few numbers a rule, as plain values for JSON, the table and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluribus.core.rule import Chain
from pluribus.federated.config import Config
from pluribus.federated.contributions import LeaveOneOut
from pluribus.federated.data import Dataset
from pluribus.federated.fairness import client_fairness
from pluribus.federated.history import History
from pluribus.federated.measuring import measure
from pluribus.federated.server.base import ServerRule, State
from pluribus.federated.server.rule import STATUS, Server
from pluribus.federated.server.stateless import Stateless
from pluribus.federated.setup import Setup
from pluribus.federated.simulation import Run
from pluribus.federated.verdict import judge

Floats = NDArray[np.float64]
MEANINGS = {
    "accuracy": "share of the test samples that the global model gets right after the last round; where clients "
    "are of several kinds (the setting shift), and where each has a model of its own, the mean over the clients, each "
    "on samples of its own kind in its own mix of classes; mean over the seeds, and their standard deviation (n - 1) "
    "as the spread",
    "worst_client": "lowest accuracy among the clients that do not attack: on fresh samples in the client's own true "
    "mix of classes, from the test samples of each class; mean over the seeds",
    "effective_clients": "(sum |w|)^2 / sum w^2 of the clients' weights; mean over the rounds, then over the seeds",
    "attackers_weight": "the attackers' part of all the weight over the rounds; mean over the seeds",
    "noisy_weight": "the part of the clients with noisy labels, likewise",
    "worst_tenth": "mean accuracy of the worst tenth of the clients that do not attack (at least one); mean over the "
    "seeds",
    "client_deviation": "standard deviation (n) of the accuracies of the clients that do not attack; mean over the "
    "seeds",
    "jain": "Jain's index of those accuracies, (sum a)^2 / (n sum a^2): 1 where all are served alike; mean over the "
    "seeds",
    "bytes_up": "bytes that reached the server in the whole run; mean over the seeds",
    "bytes_down": "bytes that the server sent; mean over the seeds",
    "bytes": "both ways together",
    "seconds": "simulated seconds of the whole run; mean over the seeds",
    "seconds_to_target": "simulated seconds until the global model first had the accuracy that the setting target "
    "names, when it was measured; nothing where a seed never had it; mean over the seeds",
    "rounds_to_target": "rounds until then, likewise",
    "bytes_to_target": "bytes both ways until then, likewise",
    "staleness": "mean number of server steps between the model that a client started from and the step its update "
    "took part in",
    "leave_one_out": "rank correlation, over the clients, of each measure of a client's contribution with the exact "
    "one: how much lower the loss is than after the same run without the client (under personal models: how much "
    "higher the others' mean accuracy is); each client's numbers are in clients.csv",
    "attack_success": "share of the test samples of other classes that the final model takes for the attackers' class "
    "once they carry the attackers' patch (backdoor attacks only); mean over the seeds",
}

FAIRNESS = ("worst_tenth", "client_deviation", "jain")
COSTS = (
    "bytes_up",
    "bytes_down",
    "bytes",
    "seconds",
    "seconds_to_target",
    "rounds_to_target",
    "bytes_to_target",
    "staleness",
)


@dataclass(frozen=True, eq=False)
class Done:
    """Everything of an experiment whose runs have all ended; rules by their texts, runs by rule and seed.

    ``left_out`` is each client's exact contribution, likewise, and empty where it was not asked for.
    """

    settings: Config
    dataset: Dataset
    setups: Mapping[int, Setup]
    rules: Mapping[str, ServerRule]
    runs: Mapping[tuple[str, int], Run]
    left_out: Mapping[tuple[str, int], LeaveOneOut] = field(default_factory=dict)

    @property
    def first(self) -> Setup:
        """The federation of the first seed."""
        return self.setups[self.settings.seed]

    def histories(self, rule: str) -> dict[int, History]:
        """What happened under a rule, by seed."""
        return {seed: self.runs[rule, seed].history for seed in self.settings.all_seeds}


def summarise(done: Done, binding: Mapping[str, Any]) -> dict[str, Any]:
    """Everything in ``summary.json`` but the list of files. NaN is None, as JSON has none."""
    rows: list[dict[str, Any]] = [
        {
            "rule": text,
            "label": label(rule),
            "explanation": getattr(rule, "explanation", ""),
            **_numbers(done, text),
        }
        for text, rule in done.rules.items()
    ]
    _add_gains(rows)
    first, dataset = done.first, done.dataset
    return {
        "binding": dict(binding),
        "data": {
            "name": dataset.name,
            "samples": len(dataset),
            "features": dataset.n_features,
            "classes": list(dataset.class_names),
            "train": int(first.sizes.sum()),
            "test": len(first.test),
            "proxy": len(first.proxy) if first.proxy is not None else 0,
        },
        "seeds": list(done.settings.all_seeds),
        "attackers": {str(seed): list(setup.attackers) for seed, setup in done.setups.items()},
        "noisy": {str(seed): list(setup.noisy) for seed, setup in done.setups.items()},
        "rules": rows,
        "meanings": MEANINGS,
        "verdict": judge(rows, done.settings.target),
        "notes": _notes(done, rows),
    }


def _notes(done: Done, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know before believing the numbers."""
    total = done.settings.rounds * done.settings.seeds
    return [
        f"{row['rule']}: the model stayed as it was in {count} of {total} rounds: {status}."
        for row in rows
        for status, count in row["rounds_without_a_step"].items()
    ]


def label(rule: ServerRule) -> str:
    """A rule as a reader should see it: ``FedAvg``, ``MultiKrum(f=4)``."""
    if isinstance(rule, Stateless):
        steps = rule.rule.steps if isinstance(rule.rule, Chain) else (rule.rule,)
        name = " + ".join(str(step).removesuffix("()") for step in steps)
        options = [part for part in rule.name.split(":") if part.partition("=")[0] in ("server_lr", "weighting")]
    else:
        name, options = type(rule).__name__, rule.name.split(":")[1:]
    return f"{name}, {', '.join(options)}" if options else name


def share_of(history: History, clients: Sequence[int]) -> float:
    """These clients' part of all the weight over the rounds; NaN where nobody has weights or none are named."""
    counted = np.nan_to_num(np.abs(history.weights)).sum(axis=0)
    return float(counted[list(clients)].sum() / counted.sum()) if len(clients) and counted.any() else float("nan")


def mean_effective(history: History) -> float:
    """Mean over the rounds in which somebody counted, NaN where there is none."""
    known = history.effective[np.isfinite(history.effective)]
    return float(known.mean()) if len(known) else float("nan")


def worst_client(history: History, attackers: Sequence[int]) -> float:
    """The lowest accuracy of the clients that do not attack, NaN where none is known."""
    honest = np.delete(history.client_accuracy, list(attackers))
    known = honest[np.isfinite(honest)]
    return float(known.min()) if len(known) else float("nan")


def fairness(history: History, attackers: Sequence[int]) -> dict[str, float]:
    """How evenly the clients that do not attack are served (`FAIRNESS`); NaN where no accuracy is known."""
    honest = np.delete(history.client_accuracy, list(attackers))
    if not np.isfinite(honest).any():
        return dict.fromkeys(FAIRNESS, float("nan"))
    found = client_fairness(honest)
    return {"worst_tenth": found.worst_tenth, "client_deviation": found.deviation, "jain": found.jain}


def costs(history: History, target: float) -> dict[str, float]:
    """What a run took (`COSTS`): bytes, simulated seconds, and both until ``target``, NaN if it was not reached."""
    moved = history.bytes_up + history.bytes_down
    reached = np.flatnonzero(history.accuracy >= target)  # NaN, not measured, is below
    late = history.staleness[np.isfinite(history.staleness)]
    first = int(reached[0]) if len(reached) else None
    return {
        "bytes_up": float(history.bytes_up[-1]),
        "bytes_down": float(history.bytes_down[-1]),
        "bytes": float(moved[-1]),
        "seconds": float(history.time[-1]),
        "seconds_to_target": float("nan") if first is None else float(history.time[first]),
        "rounds_to_target": float("nan") if first is None else float(first + 1),
        "bytes_to_target": float("nan") if first is None else float(moved[first]),
        "staleness": float(late.mean()) if len(late) else float("nan"),
    }


def attack_success(setup: Setup, rule: ServerRule, state: State) -> float:
    """Share of patched test samples taken for the attackers' class; of personal models the honest clients' mean."""
    from pluribus.federated.attacks import backdoor_test

    patched = backdoor_test(setup.test)
    if not (isinstance(rule, Server) and rule.personal_models):
        return measure(setup.model, state["params"], patched)[1]
    honest = [i for i in range(len(setup.clients)) if i not in setup.attackers]
    return float(np.mean([measure(setup.model, rule.model_of(state, i), patched)[1] for i in honest]))


def _numbers(done: Done, rule: str) -> dict[str, Any]:
    setups, histories = done.setups, done.histories(rule)
    several = {
        "accuracy": [h.accuracy[-1] for h in histories.values()],
        "loss": [h.loss[-1] for h in histories.values()],
        "worst_client": [worst_client(h, setups[s].attackers) for s, h in histories.items()],
        "effective_clients": [mean_effective(h) for h in histories.values()],
        "attackers_weight": [share_of(h, setups[s].attackers) for s, h in histories.items()],
        "noisy_weight": [share_of(h, setups[s].noisy) for s, h in histories.items()],
    }
    served = [fairness(h, setups[s].attackers) for s, h in histories.items()]
    several |= {name: [one[name] for one in served] for name in FAIRNESS}
    spent = [costs(h, done.settings.target) for h in histories.values()]
    several |= {name: [one[name] for one in spent] for name in COSTS}
    if done.first.attack is not None and done.first.attack.kind == "backdoor":
        several["attack_success"] = [
            attack_success(setups[s], done.rules[rule], done.runs[rule, s].state) for s in histories
        ]
    statuses = np.stack([h.status for h in histories.values()])
    agreement = [done.left_out[rule, s].agreement(exact_of(done, rule)) for s in histories if done.left_out]
    names = dict.fromkeys(name for one in agreement for name in one)
    left_out = {name: over_seeds([one.get(name, np.nan) for one in agreement]) for name in names}
    told: dict[str, Any] = {"leave_one_out": left_out} if left_out else {}
    return (
        {name: over_seeds(values) for name, values in several.items()}
        | told
        | {
            "rounds_without_a_step": {
                STATUS[k]: int((statuses == k).sum()) for k in range(1, len(STATUS)) if (statuses == k).any()
            },
        }
    )


def exact_of(done: Done, rule: str) -> str:
    """In what contributions under a rule are exact: ``loss``, which is finer, or ``accuracy`` of personal models."""
    made = done.rules[rule]
    return "accuracy" if isinstance(made, Server) and made.personal_models else "loss"


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Mean, spread (standard deviation with n - 1; None for one seed) and each value; None for NaN."""
    array = np.array(values, dtype=np.float64)
    spread = float(array.std(ddof=1)) if len(array) > 1 else float("nan")
    return {"mean": plain(array.mean()), "spread": plain(spread), "by_seed": [plain(v) for v in array]}


def plain(value: float) -> float | None:
    """A number for JSON."""
    return float(value) if np.isfinite(value) else None


def _add_gains(rows: list[dict[str, Any]]) -> None:
    """Each rule's accuracy less the baseline's under the same seed: what the seeds share cancels."""
    base = rows[0]["accuracy"]["by_seed"]
    for row in rows:
        pairs = zip(row["accuracy"]["by_seed"], base, strict=True)
        row["gain"] = over_seeds([a - b if a is not None and b is not None else np.nan for a, b in pairs])
