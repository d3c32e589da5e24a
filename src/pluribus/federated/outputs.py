"""The files of an experiment. The same runs give the same bytes; only ``timing.json`` differs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pluribus
from pluribus.core.files import write_bytes, write_text
from pluribus.federated import config_file, page
from pluribus.federated.checkpoint import KEY
from pluribus.federated.folder import MODELS, SUMMARY
from pluribus.federated.server.rule import STATUS
from pluribus.federated.simulation import Run
from pluribus.federated.summary import Done

TRAVEL = ("time", "bytes_up", "bytes_down", "staleness")  # of the history; time and bytes since the start


def stems(rules: Sequence[str], seed: int) -> dict[str, str]:
    """The name of each rule's files under one seed, without the ending: ``multi_krum-f-4-seed0``."""
    taken: dict[str, str] = {}
    for rule in rules:
        stem = base = re.sub(r"[^a-z0-9_.]+", "-", rule.lower()).strip("-.") or "rule"
        number = 2
        while stem in taken.values():
            stem, number = f"{base}-{number}", number + 1
        taken[rule] = stem
    return {rule: f"{stem}-seed{seed}" for rule, stem in taken.items()}


def write(out: Path, done: Done, summary: dict[str, Any], timing: Mapping[str, Any]) -> None:
    """Write every file, the summary last, and name them all in it."""
    models = {
        f"{MODELS}/{stem}.safetensors": _model(done, rule, seed)
        for seed in done.settings.all_seeds
        for rule, stem in stems(done.settings.rules, seed).items()
    }
    texts = {
        "rounds.csv": _csv(_rounds(done)),
        "weights.csv": _csv(_weights(done)),
        "clients.csv": _csv(_clients(done)),
        "config.toml": config_file.to_toml(done.settings),
        "report.html": page.html(done, summary),
        "timing.json": as_json(timing),
    }
    for name, data in models.items():
        write_bytes(out / name, data)
    for name, text in texts.items():
        write_text(out / name, text)
    summary["files"] = [*texts, SUMMARY, *models]
    write_text(out / SUMMARY, as_json(summary))


def as_json(value: Any) -> str:
    """Text for a file or a terminal; a NaN would be an error of ours, since JSON has none."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _model(done: Done, rule: str, seed: int) -> bytes:
    from safetensors.numpy import save

    settings, run = done.settings, done.runs[rule, seed]
    facts = {"rule": rule, "seed": seed, "rounds": run.round, "model": settings.model, "data": settings.data}
    params = {name: np.asarray(value, order="C") for name, value in run.state["params"].items()}
    data: bytes = save(params, {KEY: json.dumps(facts | {"version": pluribus.__version__})})
    return data


def _rounds(done: Done) -> Iterator[Sequence[Any]]:
    """One row a round: what the global model is worth after it."""
    yield (
        "rule",
        "seed",
        "round",
        "participants",
        "accuracy",
        "loss",
        "train_loss",
        "effective_clients",
        "status",
        *TRAVEL,
    )
    for rule, seed, run in _each(done):
        h = run.history
        for r in range(h.rounds):
            measured = h.accuracy[r], h.loss[r], h.train_loss[r], h.effective[r]
            travel = [_cell(getattr(h, name)[r]) for name in TRAVEL]
            yield rule, seed, r + 1, int(h.present[r].sum()), *map(_cell, measured), STATUS[h.status[r]], *travel


def _weights(done: Done) -> Iterator[Sequence[Any]]:
    """One row a participant and round; the weight is empty for one that was left out."""
    yield "rule", "seed", "round", "client", "weight"
    for rule, seed, run in _each(done):
        for r, i in np.argwhere(run.history.present):
            yield rule, seed, int(r) + 1, int(i), _cell(run.history.weights[r, i])


def _clients(done: Done) -> Iterator[Sequence[Any]]:
    """One row a client, rule and seed: who it is, how well it is served and what it counted for."""
    names = [f"samples_of_{name}" for name in done.first.class_names]
    exact = ("leave_one_out_accuracy", "leave_one_out_loss") if done.left_out else ()
    head = "rule", "seed", "client", "attacker", "noisy", "samples", "rounds", "mean_weight", "accuracy"
    yield *head, *exact, *names
    for rule, seed, run in _each(done):
        setup, h = done.setups[seed], run.history
        for i, counts in enumerate(setup.label_counts):
            known = h.weights[:, i][np.isfinite(h.weights[:, i])]
            weight = known.sum() / h.rounds if len(known) else np.nan
            facts = int(i in setup.attackers), int(i in setup.noisy), int(counts.sum()), int(h.present[:, i].sum())
            left = done.left_out.get((rule, seed))
            change = (_cell(left.accuracy[i]), _cell(left.loss[i])) if left else ()
            yield rule, seed, i, *facts, _cell(weight), _cell(h.client_accuracy[i]), *change, *counts.tolist()


def _each(done: Done) -> Iterator[tuple[str, int, Run]]:
    return ((rule, seed, done.runs[rule, seed]) for rule in done.rules for seed in done.settings.all_seeds)


def _cell(value: float) -> str:
    """The shortest text that reads back as the same number; empty for NaN."""
    return "" if np.isnan(value) else repr(float(value))


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
