"""The orders that must come out on digits, over several seeds: who beats whom, and by how much.

    python -m benchmarks.orders [--seeds 5] [--only fedau fedlaw sign_flip nan] [--markdown docs/orders.md]

Each experiment is one `pluribus federate` command, printed above its table; each claim is checked on the numbers that
came out, and the command exits with 1 if one does not hold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """A command's options, and what must hold of its table."""

    title: str
    options: str
    claims: tuple[tuple[str, Callable[[Rows], bool]], ...] = ()


def accuracy(rows: Rows, rule: str) -> float:
    """Mean test accuracy over the seeds, in percent."""
    return 100 * float(rows[rule]["accuracy"]["mean"])


def noisy_weight(rows: Rows, rule: str) -> float:
    """What the clients with wrong labels count for together, mean over rounds and seeds."""
    return float(rows[rule]["noisy_weight"]["mean"])


def far_above_the_mean(rule: str) -> Callable[[Rows], bool]:
    """The claim that a rule is 20 points above FedAvg."""
    return lambda rows: accuracy(rows, rule) > accuracy(rows, "fedavg") + 20


ROBUST = ("median", "multi_krum", "geometric_median")
EVERYONE = (
    "fedavg,fedavgm,fedadam,fedyogi,fedadagrad,feddisco,fedau,fedlaw:gamma=1,median,trimmed_mean,krum,multi_krum,"
    "geometric_median,centered_clipping:radius=1,clip:max_norm=1,nnm+median"
)

EXPERIMENTS = {
    "fedau": Experiment(
        "Participation tied to labels",
        "--attack none --alpha 0.1 --participation labels:0.1 --rounds 600 --eval-every 20 "
        "--rules fedavg:weighting=uniform,fedavg:weighting=all,fedau",
        (
            (
                "FedAU is above the mean of the participants",
                lambda r: accuracy(r, "fedau") > accuracy(r, "fedavg:weighting=uniform"),
            ),
            (
                "FedAU is above the sum over all N",
                lambda r: accuracy(r, "fedau") > accuracy(r, "fedavg:weighting=all"),
            ),
        ),
    ),
    "fedlaw": Experiment(
        "Three of ten clients have 70 % wrong labels",
        "--attack none --clients 10 --alpha 1 --label-noise 3:0.7 --proxy 200 --rounds 40 "
        "--rules fedavg,fedlaw:gamma=1,fedlaw",
        (
            (
                "FedLAW with gamma = 1 is above FedAvg",
                lambda r: accuracy(r, "fedlaw:gamma=1") > accuracy(r, "fedavg"),
            ),
            (
                "the noisy clients' weight is halved or better",
                lambda r: noisy_weight(r, "fedlaw:gamma=1") <= noisy_weight(r, "fedavg") / 2,
            ),
        ),
    ),
    "sign_flip": Experiment(
        "Four of twenty clients send the opposite, three times as long",
        f"--alpha 1 --attack sign_flip:4:3 --rules fedavg,{','.join(ROBUST)}",
        tuple((f"{rule} is 20 points above the mean", far_above_the_mean(rule)) for rule in ROBUST),
    ),
    "nan": Experiment(
        "One client sends NaN and is dropped",
        f"--alpha 1 --attack nan:1 --rounds 30 --rules {EVERYONE}",
        (("no rule is harmed: all are above 50 %", lambda r: all(accuracy(r, rule) > 50 for rule in r)),),
    ),
}


def run(experiment: Experiment, seeds: int) -> Rows:
    """Run the command and give its table by rule."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["federate", *experiment.options.split(), "--seeds", str(seeds), "--out", folder, "--force", "--json"]
        done = subprocess.run([sys.executable, "-m", "pluribus.cli", *command], stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    return {row["rule"]: row for row in found["rules"]}


def percents(value: Mapping[str, Any], sign: str = "") -> str:
    """Mean and spread over the seeds; one seed has no spread."""
    mean = f"{100 * value['mean']:{sign}.1f}"
    return mean if value["spread"] is None else f"{mean} ± {100 * value['spread']:.1f}"


def table(rows: Rows) -> list[str]:
    """Markdown of what came out."""
    lines = [
        "| rule | accuracy % | worst client % | effective clients | weight of the bad % |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        mean = {key: value["mean"] for key, value in row.items() if isinstance(value, dict) and "mean" in value}
        bad = mean["attackers_weight"] if mean["noisy_weight"] is None else mean["noisy_weight"]
        told = "" if bad is None else f"{100 * bad:.1f}"
        lines.append(
            f"| {name} | {percents(row['accuracy'])} | {100 * mean['worst_client']:.1f} "
            f"| {mean['effective_clients']:.1f} | {told} |"
        )
    return lines


def tell(about: str, experiments: Mapping[str, Experiment], table: Callable[[Rows], list[str]]) -> int:
    """Run the experiments that the command line names, print each and write them; how many claims do not hold."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(experiments), default=list(experiments))
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    chosen = parser.parse_args()
    text: list[str] = []
    failed = 0
    for name in chosen.only:
        experiment = experiments[name]
        rows = run(experiment, chosen.seeds)
        command = f"pluribus federate {experiment.options} --seeds {chosen.seeds}"
        lines = [f"## {experiment.title}", "", f"`{command}`", "", *table(rows), ""]
        for claim, holds in experiment.claims:
            failed += not holds(rows)
            lines.append(f"- {'holds' if holds(rows) else 'DOES NOT HOLD'}: {claim}")
        lines += [""] if experiment.claims else []
        print("\n".join(lines), flush=True)
        text += lines
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(text))
    return failed


if __name__ == "__main__":
    sys.exit(1 if tell(__doc__, EXPERIMENTS, table) else 0)
