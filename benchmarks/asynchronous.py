"""Simulated time until 90 % of the test digits are right: synchronous rounds, over-selection, and asynchronous rules.

    python -m benchmarks.asynchronous [--seeds 5] [--only sync fedbuff] [--target 0.9] [--markdown docs/asynchronous.md]

Twenty clients whose speeds are log-normal train the embedded network on their own, unequal digits. A client takes its
own number of simulated seconds for a local step; links take no time. The clock is read at the first step of the server
after which the test accuracy is at the target.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pluribus.federated import config, server
from pluribus.federated.data import digits
from pluribus.federated.setup import build
from pluribus.federated.simulation import advance, begin

FEDERATION = {
    "clients": 20,
    "model": "mlp:32",
    "partition": "dirichlet:1",
    "speeds": "lognormal:1",
    "epochs": 1,
    "batch_size": 32,
    "lr": 0.1,
    "attack": "none",
    "proxy": 0,
}


@dataclass(frozen=True)
class Entry:
    """A row of the table: what it is called, the rule, the schedule, and the most seconds that are waited."""

    title: str
    rule: str
    schedule: str
    steps: int = 6000


ENTRIES = {
    "sync": Entry("synchronous FedAvg", "fedavg", "sync", 400),
    "over-selection": Entry("FedAvg, the first 10 of 20 (over-selection)", "fedavg", "quorum:10", 800),
    "fedasync": Entry("FedAsync, polynomial", "fedasync", "async"),
    "fedfix": Entry("FedFix, a step every second", "fedfix", "window:1", 1500),
    "fedbuff": Entry("FedBuff, K = 5", "fedbuff", "buffer:5", 2000),
    "fedbuff, no staleness": Entry("FedBuff, K = 5, staleness ignored", "fedbuff:exponent=0", "buffer:5", 2000),
    "asyncfeded": Entry("AsyncFedED", "asyncfeded", "async"),
    "asyncfeded, kappa=0": Entry("AsyncFedED, local epochs left alone", "asyncfeded:kappa=0", "async"),
    "delayed_nesterov": Entry("delayed Nesterov", "delayed_nesterov", "async"),
    "dylu": Entry("delayed Nesterov, DyLU measured", "delayed_nesterov:speeds=measured", "async"),
}


@dataclass(frozen=True)
class Outcome:
    """Simulated seconds, steps of the server and updates that came until the target; NaN where it was not reached."""

    seconds: float
    steps: float
    updates: float


def until(entry: Entry, seed: int, target: float) -> Outcome:
    """One run."""
    settings = config.resolve(config.Layer(FEDERATION | {"schedule": entry.schedule, "rounds": entry.steps}))[0]
    setup, rule = build(settings, digits(), seed), server.parse(entry.rule)
    run = begin(setup, rule, seed, entry.steps)
    with np.errstate(all="ignore"):
        while not run.finished:
            run = advance(setup, rule, seed, run)
            if run.history.accuracy[run.round - 1] >= target:
                came = float(run.history.present[: run.round].sum())
                return Outcome(float(run.history.time[run.round - 1]), run.round, came)
    return Outcome(np.nan, np.nan, np.nan)


def shown(values: list[float]) -> str:
    """Mean and standard deviation, or that it was not always reached."""
    missing = int(np.isnan(values).sum())
    if missing:
        return f"not reached by {missing} of {len(values)}"
    return f"{np.mean(values):.0f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.0f}"


def claims(found: dict[str, float]) -> list[tuple[str, bool]]:
    """What the literature and earlier measurements say of the order, and whether it holds on the means."""
    wanted = [
        ("over-selection", "sync"),
        ("fedasync", "sync"),
        ("fedfix", "sync"),
        ("fedbuff", "sync"),
        ("fedfix", "over-selection"),
        ("fedfix", "fedasync"),
        ("fedbuff", "over-selection"),
        ("fedbuff", "fedasync"),
        ("fedbuff", "fedfix"),
        ("fedbuff, no staleness", "fedbuff"),
        ("asyncfeded", "fedbuff"),
        ("delayed_nesterov", "sync"),
    ]
    told = [(one, other) for one, other in wanted if one in found and other in found]
    return [(f"{one} is faster than {other}", found[one] < found[other]) for one, other in told]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--only", nargs="+", choices=list(ENTRIES), default=list(ENTRIES))
    parser.add_argument("--markdown", type=Path, help="put the table into this page, between its marks")
    chosen = parser.parse_args()
    lines = [
        f"| what | `--rules` | `--schedule` | seconds to {100 * chosen.target:.0f} % | server steps | updates |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    means: dict[str, float] = {}
    began = time.process_time()
    for name in chosen.only:
        entry = ENTRIES[name]
        runs = [until(entry, seed, chosen.target) for seed in range(chosen.seeds)]
        seconds, steps, updates = ([getattr(run, what) for run in runs] for what in ("seconds", "steps", "updates"))
        means[name] = float(np.mean([np.inf if np.isnan(value) else value for value in seconds]))
        lines.append(
            f"| {entry.title} | `{entry.rule}` | `{entry.schedule}` | {shown(seconds)} | {shown(steps)} "
            f"| {shown(updates)} |"
        )
        print(lines[-1], flush=True)
    lines.append("")
    lines += [f"- {'holds' if holds else 'DOES NOT HOLD'}: {claim}" for claim, holds in claims(means)]
    print("\n".join(lines[-1 - len(claims(means)) :]))
    print(f"{time.process_time() - began:.0f} CPU seconds", file=sys.stderr)
    if chosen.markdown:
        put(chosen.markdown, lines)


BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def put(page: Path, lines: list[str]) -> None:
    """Replace what stands between the page's marks."""
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
