"""An experiment as the report page takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluribus import report
from pluribus.federated.config import Config
from pluribus.federated.summary import Done

_TOLD = (
    ("Worst tenth", "worst_tenth"),
    ("Jain's index", "jain"),
    ("Attack success", "attack_success"),
    ("Bytes up", "bytes_up"),
    ("Bytes down", "bytes_down"),
    ("Simulated s", "seconds"),
    ("Seconds to the target", "seconds_to_target"),
)


def html(done: Done, summary: Mapping[str, Any]) -> str:
    """The page as one text. Weights, relations and label histograms are of the first seed."""
    settings, first = done.settings, done.first
    clients = tuple(str(i) for i in range(settings.clients))
    return report.render(
        report.RunReport(
            title=f"{settings.clients} clients, one model: {summary['data']['name']}",
            subtitle=_subtitle(settings, summary),
            config=settings.plain(),
            rounds=settings.rounds,
            rules=tuple(_rule(done, row, clients) for row in summary["rules"]),
            clients=clients,
            label_counts=first.label_counts.astype(np.float64),
            attackers=first.attackers,
            notes=tuple(_notes(done, summary)),
            class_labels=first.class_names,
            verdict=tuple(summary["verdict"]["sentences"]),
            timed=settings.schedule != "sync",
        )
    )


def _rule(done: Done, row: Mapping[str, Any], clients: tuple[str, ...]) -> report.RuleReport:
    histories = list(done.histories(row["rule"]).values())
    first = histories[0]
    final = {
        "accuracy": row["accuracy"]["mean"],
        "spread": row["accuracy"]["spread"],
        "worst_client": row["worst_client"]["mean"],
        "effective_clients": row["effective_clients"]["mean"],
    }
    if done.first.attackers:
        final["attackers_weight"] = row["attackers_weight"]["mean"]
    if done.first.noisy:
        final["noisy clients' weight"] = row["noisy_weight"]["mean"]
    final["worst_tenth"] = row["worst_tenth"]["mean"]
    final["Jain's index"] = row["jain"]["mean"]
    if "attack_success" in row:
        final["attack_success"] = row["attack_success"]["mean"]
    final["MB moved"] = _scaled(row["bytes"]["mean"], 1e-6)
    final["simulated s"] = row["seconds"]["mean"]
    final[f"s to {100 * done.settings.target:g} %"] = row["seconds_to_target"]["mean"]
    return report.RuleReport(
        name=row["rule"],
        label=row["rule"],
        formal=row["label"],
        accuracy=np.stack([h.accuracy for h in histories]),
        weights=first.weights.T if np.isfinite(first.weights).any() else None,
        relation=report.Relation(first.cosines, clients, "cosine") if np.isfinite(first.gram).any() else None,
        final={name: np.nan if value is None else value for name, value in final.items()},
        explanation=row["explanation"],
        time=np.stack([h.time for h in histories]),
        contributions=_contributions(done, row["rule"]),
    )


def _contributions(done: Done, rule: str) -> Mapping[str, NDArray[np.float64]]:
    """What each client contributed, of the first seed: the exact change, and the measures of it."""
    left = done.left_out.get((rule, done.settings.seed))
    if left is None:
        return {}
    exact = {"accuracy gained by it": left.accuracy, "loss lowered by it": left.loss}
    known = {name: values for name, values in exact.items() if np.isfinite(values).any()}
    return known | {name: values for name, values in left.measures.items() if len(values)}


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _subtitle(settings: Config, summary: Mapping[str, Any]) -> str:
    data = summary["data"]
    parts = [
        f"{data['train']} training samples divided by {settings.partition}",
        f"{data['test']} that only measure",
        f"{data['proxy']} that the server keeps",
        f"model {settings.model}",
    ]
    if settings.attack != "none":
        parts.append(f"attack {settings.attack}")
    if settings.label_noise != "none":
        parts.append(f"label noise {settings.label_noise}")
    world = {name: getattr(settings, name) for name in ("shift", "schedule", "channel")}
    parts += [f"{name} {value}" for name, value in world.items() if value not in ("none", "sync")]
    return "; ".join(parts) + "."


def _notes(done: Done, summary: Mapping[str, Any]) -> list[str]:
    settings, meanings = done.settings, summary["meanings"]
    notes = [f"Accuracy: {meanings['accuracy']}.", f"Worst client: {meanings['worst_client']}."]
    notes.append(f"Effective clients: {meanings['effective_clients']}.")
    notes += [f"{head}: {meanings[name]}." for head, name in _TOLD if name in summary["rules"][0]]
    notes.append(f"The setting target is {settings.target:g}.")
    if settings.seeds > 1:
        notes.append(
            "Each seed has clients of its own; weights, relations and label histograms are those of seed "
            f"{settings.seed}."
        )
    if done.left_out:
        notes.append(f"Contributions, leaving each client out: {meanings['leave_one_out']}.")
    for row in summary["rules"] if done.left_out else ():
        told = ", ".join(
            f"{name} {value['mean']:+.2f}" for name, value in row["leave_one_out"].items() if value["mean"]
        )
        notes.append(
            f"{row['rule']}: rank correlation with the exact contribution, mean over the seeds: {told or '–'}."
        )
    if done.first.noisy:
        noisy = ", ".join(map(str, done.first.noisy))
        notes.append(f"Clients with wrong labels: {noisy}; the histograms count the labels as they are.")
    return [*notes, *summary["notes"]]
