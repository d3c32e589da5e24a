"""Runs and aggregations to render, and a parser that checks the structure of what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from html.parser import HTMLParser

import numpy as np

from pluribus.report import AggregateReport, Relation, RuleReport, RunReport

HOSTILE = "<script>alert('x')</script>\"&\u202e\x00"


def make_run(
    clients: int = 6,
    rounds: int = 8,
    seeds: int = 3,
    *,
    attackers: tuple[int, ...] = (1, 4),
    names: tuple[str, ...] | None = None,
    participation: float = 0.8,
) -> RunReport:
    """A plausible run: a mean that trusts all, a rule without weights, a rule that leaves the attackers out."""
    rng = np.random.default_rng(0)
    names = names or tuple(f"client {i}" for i in range(clients))
    there = rng.random((clients, rounds)) < participation
    equal = np.where(there, 1.0, np.nan)
    chosen = np.where(there, 1.0, np.nan)
    chosen[list(attackers)] *= 0.0
    points = rng.normal(size=(clients, 3))
    points[list(attackers)] *= 1e6
    squared = ((points[:, None] - points[None]) ** 2).sum(-1)
    cosine = (points @ points.T) / np.sqrt(np.outer((points**2).sum(1), (points**2).sum(1)))

    def rule(name: str, label: str, level: float, weights: np.ndarray | None, relation: Relation | None) -> RuleReport:
        accuracy = np.clip(level * (1 - 0.8 ** np.arange(1, rounds + 1)) + rng.normal(0, 0.01, (seeds, rounds)), 0, 1)
        final = {"accuracy": float(accuracy[:, -1].mean()), "spread": 0.01, "worst_client": level / 2}
        if weights is not None:
            weights = weights / np.maximum(np.nansum(weights, axis=0), 1e-9)
            final["effective_clients"] = 3.0
        return RuleReport(name, label, accuracy, weights, relation, final, f"What {label} does.")

    return RunReport(
        title="A run",
        subtitle="of three rules",
        config={"clients": clients, "attack": {"name": "sign_flip", "scale": 5.0}, "seeds": [0, 1], "resume": False},
        rounds=rounds,
        rules=(
            rule("fedavg", "FedAvg", 0.4, equal, Relation(squared, names)),
            rule("median", "Median", 0.8, None, None),
            rule("krum", "Krum", 0.9, chosen, Relation(cosine, names, "cosine")),
        ),
        clients=names,
        label_counts=rng.integers(0, 40, (clients, 10)),
        attackers=attackers,
        notes=("A note.",),
    )


def make_aggregate(n: int = 5, *, name: str = "site") -> AggregateReport:
    """An aggregation with every number that it may have."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(n, 4))
    names = tuple(f"{name} {i}" for i in range(n))
    weights = np.arange(1.0, n + 1) / np.arange(1.0, n + 1).sum() if n else np.empty(0)
    return AggregateReport(
        title="One aggregation",
        names=names,
        weights=weights,
        influence=rng.random(n),
        distances=rng.random(n),
        dispersion=0.5,
        effective_size=3.25,
        relation=Relation(((points[:, None] - points[None]) ** 2).sum(-1), names),
        rule="Krum(f=1)",
        explanation="It takes one.",
        notes=("A note.",),
        marked=(0,) if n else (),
    )


class Page(HTMLParser):
    """The structure of a page: every element with its attributes, and that all are closed in order."""

    VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def ids(self) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get("id")) is not None]

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@dataclass(frozen=True)
class Visit:
    """What the browser made of a page."""

    dom: str
    console: list[str]
