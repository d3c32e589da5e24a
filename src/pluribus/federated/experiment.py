"""An experiment: rules x seeds on the same federations, from settings to a folder of results.

It can be broken off at any moment and taken up again, and ends with the same bytes. So nothing that depends on
the clock or on the number of processes goes into a result; what the clock says is in ``timing.json`` alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pluribus
from pluribus.core.errors import FileError, PluribusError
from pluribus.federated import checkpoint, config, folder, outputs, server, summary
from pluribus.federated.checkpoint import Clock
from pluribus.federated.config import Config
from pluribus.federated.contributions import LeaveOneOut, leave_one_out
from pluribus.federated.data import Dataset
from pluribus.federated.errors import SettingError
from pluribus.federated.folder import FolderError
from pluribus.federated.setup import Setup, build, fingerprint, load, traces
from pluribus.federated.simulation import SimulationError
from pluribus.federated.workers import Board, Task, work

__all__ = [
    "DEFAULT_FOLDER",
    "FolderError",
    "Outcome",
    "SimulationError",
    "Watch",
    "check",
    "holds_experiment",
    "run",
    "stored_settings",
]

DEFAULT_FOLDER = Path("pluribus-out") / "federate"


@dataclass(frozen=True)
class Outcome:
    """What stands in ``folder``: the summary, the seconds, and what is to be told about how it came about."""

    folder: Path
    summary: Mapping[str, Any]
    timing: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    made_now: bool = True


@dataclass(frozen=True)
class Watch:
    """Who follows an experiment: told the tasks before the first run, the board now and then, and the end."""

    begin: Callable[[Config, list[Task]], None] = field(default=lambda settings, tasks: None)
    look: Callable[[Board], None] = field(default=lambda board: None)
    end: Callable[[], None] = field(default=lambda: None)


def run(
    settings: Config,
    out: Path = DEFAULT_FOLDER,
    *,
    workers: int = 1,
    resume: bool = False,
    force: bool = False,
    watch: Watch | None = None,
    engine: str | None = None,
) -> Outcome:
    """Run an experiment, or tell its results where they stand already.

    Parameters
    ----------
    settings
        From `pluribus.federated.resolve`.
    out
        The folder. It may hold the same experiment: finished, it is told; unfinished, ``resume`` goes on with it.
    workers
        Processes. Above one, a program that calls this needs ``if __name__ == "__main__":``.
    resume
        Go on with what is there, or begin where nothing is.
    force
        Write over whatever experiment is there.
    watch
        For progress.
    engine
        Where clients train: ``"processes"``, ``"threads"``, ``"ray"``, or None: in the process of their run. The
        results are the same bits. With an engine the runs come one after another.

    Raises
    ------
    SettingError, DataError, FileError
        Settings that do not fit the data.
    FolderError
        The folder holds something else.
    SimulationError
        A run failed; what it reached stays, for ``resume``.
    """
    watch = watch or Watch()
    dataset = load(settings)
    binding = binding_of(settings, dataset)
    found = folder.look(out)
    if not force:
        told = _finished(out, found, binding)
        if told is not None:
            return told
        _refuse(out, found, binding, resume)
    setups = {seed: build(settings, dataset, seed) for seed in settings.all_seeds}
    rules = {text: server.parse(text, attackers=config.attackers_of(settings)) for text in settings.rules}
    _try_rules(rules, setups[settings.seed], settings)
    folder.make(out)
    with folder.locked(out):
        folder.open_for(out, binding)
        tasks = tasks_of(settings, out, binding)
        notes = _clear(tasks, keep=resume and not force)
        began = time.perf_counter()
        watch.begin(settings, tasks)
        try:
            work(settings, dataset, tasks, workers, watch.look, engine=engine)
        finally:
            watch.end()
        loaded = {(task.rule, task.seed): checkpoint.load(task.path, task.owner) for task in tasks}
        timing = _timing(settings, {key: clock for key, (_, clock) in loaded.items()}, time.perf_counter() - began)
        left_out = _left_out(settings, setups, rules)
        done = summary.Done(settings, dataset, setups, rules, {key: run for key, (run, _) in loaded.items()}, left_out)
        results = summary.summarise(done, binding)
        outputs.write(out, done, results, timing)
        folder.close(out)
    return Outcome(out, results, timing, notes)


def check(settings: Config) -> None:
    """Raise what `run` would raise about settings that do not fit their data or their rules, before any folder."""
    rules = {text: server.parse(text, attackers=config.attackers_of(settings)) for text in settings.rules}
    _try_rules(rules, build(settings, load(settings), settings.seed), settings)


def binding_of(settings: Config, dataset: Dataset) -> dict[str, Any]:
    """All that the bytes of the results depend on: the settings, the data, and the version of the code."""
    traced = {f"contents of the {key} file": mark for key, mark in traces(settings).items()}
    told = {"contents of the data": fingerprint(dataset), "pluribus": pluribus.__version__}
    return {**settings.plain(), **traced, **told}


def holds_experiment(out: Path) -> bool:
    """Whether a folder holds an experiment, finished or not, of whatever version."""
    return folder.look(out).binding is not None


def stored_settings(out: Path) -> Config | None:
    """The settings of the unfinished or finished experiment in a folder; None where there is none."""
    found = folder.look(out)
    if found.binding is None:
        return None
    try:
        values = {name: found.binding[name] for name in config.SETTINGS}
        return config.resolve(config.Layer(values))[0]
    except (KeyError, PluribusError):  # of another version; `run` tells what differs
        return None


def tasks_of(settings: Config, out: Path, binding: Mapping[str, Any]) -> list[Task]:
    """The runs, all rules of one seed before the next seed."""
    mark = config.digest(binding)
    return [
        Task(rule, seed, out / folder.CHECKPOINTS / f"{stem}.safetensors", mark)
        for seed in settings.all_seeds
        for rule, stem in outputs.stems(settings.rules, seed).items()
    ]


def _finished(out: Path, found: folder.Found, binding: Mapping[str, Any]) -> Outcome | None:
    """What stands already, if it is the same experiment and whole."""
    if found.what != "finished" or found.binding != binding:
        return None
    results = folder.read_json(out / folder.SUMMARY) or {}
    if not all((out / name).exists() for name in results.get("files", (folder.SUMMARY,))):
        return None
    timing = folder.read_json(out / "timing.json") or {}
    folder.close(out)
    note = f"{out} holds this experiment already, finished; --force runs it again."
    return Outcome(out, results, timing, (note,), made_now=False)


def _refuse(out: Path, found: folder.Found, binding: Mapping[str, Any], resume: bool) -> None:
    """Raise if going on would destroy something, or mix two experiments."""
    if found.what == "others":
        raise FolderError(
            f"{out} holds {', '.join(found.names)}, which no finished experiment here wrote; choose another --out, "
            "or write over with --force"
        )
    if found.binding is None:
        return
    differing = config.differences(found.binding, binding)
    if differing:
        raise FolderError(
            f"{out} holds another experiment, {found.what}: it differs in {', '.join(differing)}; choose another "
            "--out, or write over with --force"
        )
    if found.what == "unfinished" and not resume:
        raise FolderError(f"{out} holds this experiment, unfinished; go on with --resume, or start anew with --force")


def _clear(tasks: list[Task], keep: bool) -> tuple[str, ...]:
    """Remove checkpoints that cannot be used, or all of them; tell which were damaged."""
    notes = []
    for task in tasks:
        if not task.path.exists():
            continue
        try:
            if not keep:
                raise FileError("not wanted")
            checkpoint.load(task.path, task.owner)
        except FileError as error:
            task.path.unlink()
            if keep:
                notes.append(f"{task}: this run starts again, since {error}.")
    return tuple(notes)


def _try_rules(rules: Mapping[str, Any], setup: Setup, settings: Config) -> None:
    """Let every rule look at the federation, so that one that can never work says so before the first round."""
    params = setup.model.init(0)
    for text, rule in rules.items():
        try:
            rule.init(params, len(setup.clients))
        except PluribusError as error:
            told = settings.attack != "none" and ":f=" not in text and ":f=" in rule.name
            why = f"; its f is the number of attackers in attack {settings.attack}" if told else ""
            raise SettingError(f"rule {text!r}: {error}{why}") from None
        if setup.proxy is None and config.rule_kind(text) in (config.LEARNED, config.FINE_TUNING):
            raise SettingError(f"rule {text!r} learns on the server's own samples, and proxy is 0; give it some")


def _left_out(
    settings: Config, setups: Mapping[int, Setup], rules: Mapping[str, Any]
) -> dict[tuple[str, int], LeaveOneOut]:
    """Each client's exact contribution by rule and seed, where it was asked for; `config.resolve` bounds the work."""
    if not settings.leave_one_out:
        return {}
    return {
        (text, seed): leave_one_out(setups[seed], rule, seed, settings.rounds, most=config.LEFT_OUT)
        for seed in settings.all_seeds
        for text, rule in rules.items()
    }


def _timing(settings: Config, clocks: Mapping[tuple[str, int], Clock], elapsed: float) -> dict[str, Any]:
    def seconds(rule: str, which: str) -> list[float]:
        return [round(getattr(clocks[rule, seed], which), 3) for seed in settings.all_seeds]

    return {
        "seconds": {rule: {"wall": seconds(rule, "wall"), "cpu": seconds(rule, "cpu")} for rule in settings.rules},
        "total_wall": round(elapsed, 3),
    }
