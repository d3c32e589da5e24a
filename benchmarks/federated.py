"""A federation of digits on one machine: ours, Flower's simulation and pfl-research's, the same work.

    python -m benchmarks.federated [--rounds 100] [--flower PYTHON --flower-rounds 10] [--pfl PYTHON --pfl-rounds 30]

100 clients share scikit-learn's digits (Dirichlet 0.5); all of them train a network of 64 hidden units in every round
(2 epochs, batches of 32, rate 0.1, float32) from the same start, the server averages by sample counts, and measures on
the same test samples. PYTHON is the interpreter of an environment with ``flwr[simulation]`` (and numpy, scikit-learn,
safetensors, threadpoolctl), or with ``pfl`` and torch. Each runs in a process of its own; seconds are of all processes
that it started, between the end of the second round and that of the last, so without start-up, and given for a round.

Flower leaves training to the user: its clients call the same numpy training as ours, so what differs is Flower.
pfl-research brings its training loop, for torch; ``pfl+numpy`` is its simulation with that same numpy training.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TICK = os.sysconf("SC_CLK_TCK")
CLIENTS, HIDDEN, SEED = 100, 64, 0
WARM = 2  # rounds before the clock starts


@dataclass(frozen=True)
class Cost:
    """Of one round: CPU seconds of all processes, wall seconds; and the accuracy after the last round."""

    name: str
    rounds: int
    cpu: float
    wall: float
    accuracy: float
    start: float  # wall seconds until the second round has ended


def federation() -> Any:
    """The clients and the network."""
    from pluribus.federated import build, data, resolve
    from pluribus.federated.config import Layer

    layer = Layer({"clients": CLIENTS, "proxy": 0, "attack": "none", "model": f"mlp:{HIDDEN}", "rules": "fedavg"})
    return build(resolve(layer)[0], data.digits(), SEED)


def write(folder: Path) -> None:
    """The federation as arrays: what every contender reads."""
    from pluribus.federated.seeding import derived

    setup = federation()
    start = setup.model.init(derived(SEED, "simulation.init"))
    ends = np.cumsum([len(client) for client in setup.clients])
    np.savez(
        folder / "federation.npz",
        x=np.concatenate([client.x for client in setup.clients]),
        y=np.concatenate([client.y for client in setup.clients]),
        ends=ends,
        test_x=setup.test.x,
        test_y=setup.test.y,
        **{f"start:{name}": value for name, value in start.items()},
    )


def ours(rounds: int, engine: str) -> None:
    """Ours, on the same; called in a process of its own."""
    from dataclasses import replace

    from pluribus.federated import server, simulate
    from pluribus.federated.clients.engine import crew

    setup = federation()
    with crew(None if engine == "here" else engine) as hired:
        simulate(
            setup if engine == "here" else replace(setup, engine=hired),
            server.parse("fedavg", attackers=0),
            SEED,
            rounds=rounds,
            after_round=lambda run: mark(float(run.history.accuracy[run.round - 1])),
        )


def mark(accuracy: float) -> None:
    """Tell the one who measures that a round has ended."""
    sys.stdout.write(f"MARK {accuracy}\n")
    sys.stdout.flush()


def measure(name: str, python: str, call: str, rounds: int, folder: Path) -> Cost:
    """Run ``call`` in a process, and look at the clocks of all that descends from it at each mark."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    log = (folder / f"{name.replace(' ', '-')}.log").open("w+")
    begun = time.perf_counter()
    process = subprocess.Popen(
        [python, "-c", call], env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
    )
    marks: list[tuple[float, float, float]] = []
    ages: dict[tuple[int, str], float] = {}
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("MARK "):
            _look(process.pid, ages)
            marks.append((time.perf_counter() - begun, sum(ages.values()), float(line.split()[1])))
    if process.wait() != 0 or len(marks) != rounds:
        log.seek(0)
        raise SystemExit(f"{name} ended with {process.returncode} after {len(marks)} rounds:\n{log.read()[-3000:]}")
    first, last, timed = marks[WARM - 1], marks[-1], rounds - WARM
    return Cost(name, rounds, (last[1] - first[1]) / timed, (last[0] - first[0]) / timed, last[2], first[0])


def _look(root: int, ages: dict[tuple[int, str], float]) -> None:
    """CPU seconds of a process and its descendants; those that are gone keep what they had when last seen."""
    parents: dict[int, tuple[int, str, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1]), fields[19], (int(fields[11]) + int(fields[12])) / TICK
    known = {pid for pid, _ in ages} | {root}
    grown = True
    while grown:
        more = {pid for pid, (parent, _, _) in parents.items() if parent in known} - known
        known |= more
        grown = bool(more)
    for pid in known & parents.keys():
        ages[pid, parents[pid][1]] = parents[pid][2]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--flower", metavar="PYTHON")
    parser.add_argument("--flower-rounds", type=int, default=10)
    parser.add_argument("--pfl", metavar="PYTHON")
    parser.add_argument("--pfl-rounds", type=int, default=30)
    parser.add_argument("--engines", default="here,processes", help="where our clients train")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        runs: list[tuple[str, str, str, int]] = []
        for engine in told.engines.split(","):
            call = f"from benchmarks.federated import ours; ours({told.rounds}, {engine!r})"
            runs.append((f"pluribus {engine}", sys.executable, call, told.rounds))
        if told.flower:
            call = f"from benchmarks import federated_flower as f; f.run({name!r}, {told.flower_rounds})"
            runs.append(("flower", told.flower, call, told.flower_rounds))
        for kind in ("torch", "numpy") if told.pfl else ():
            call = f"from benchmarks import federated_pfl as f; f.run({name!r}, {told.pfl_rounds}, {kind!r})"
            runs.append((f"pfl {kind}", told.pfl, call, told.pfl_rounds))
        costs = [measure(label, python, call, rounds, folder) for label, python, call, rounds in runs]
    _show(costs, as_json=told.json)


def _show(costs: list[Cost], *, as_json: bool) -> None:
    best = costs[0]
    if as_json:
        rows: list[dict[str, Any]] = [cost.__dict__ | {"cpu_ratio": cost.cpu / best.cpu} for cost in costs]
        print(json.dumps(rows, indent=1))
        return
    print(f"{'':22}{'rounds':>7}{'CPU ms/round':>14}{'wall ms/round':>15}{'CPU x':>8}{'wall x':>8}{'accuracy':>10}")
    for cost in costs:
        print(
            f"{cost.name:22}{cost.rounds:7}{1e3 * cost.cpu:14.1f}{1e3 * cost.wall:15.1f}{cost.cpu / best.cpu:8.1f}"
            f"{cost.wall / best.wall:8.1f}{100 * cost.accuracy:9.1f}%"
        )


if __name__ == "__main__":
    main()
