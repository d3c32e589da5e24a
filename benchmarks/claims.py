"""Method by method: is it above FedAvg on small data, seed by seed, where its paper says that it should be?

    python -m benchmarks.claims [--seeds 5] [--only drift personal ...] [--markdown docs/claims.md]

Each experiment is one `pluribus federate` command, printed above its table. Nothing is asserted: the table says which
differences separate at this size (the mean gain is beyond twice its standard error, and all seeds but at most one
agree) and which do not.
"""

from __future__ import annotations

import math
from typing import Any

from benchmarks.orders import Experiment, Rows, percents, tell

EXPERIMENTS = {
    "drift": Experiment(
        "Clients of few classes, long local training: rules against drift",
        "--attack none --clients 10 --alpha 0.1 --epochs 5 --rounds 30 --rules fedavg,fedprox:mu=0.1,fednova,scaffold,"
        "feddyn,fedspeed,fedswa,fedmoswa,qffl:q=1,fedadam,fedyogi,fedamd,fedbr,qsr,savic,diloco,feddisco,"
        "fedlaw:gamma=1,fedgela,fedimpro,fedftg,fedgen",
    ),
    "personal": Experiment(
        "Two groups that call things differently: a model for each client",
        "--attack none --alpha 1 --shift labels:2 --rounds 30 "
        "--rules fedavg,fedselect,pfedpara,fedcollab,fedpub,pgfed,self_fl,dame,fedloge,"
        "fedgh,fedtgp,fedadp",
    ),
    "absent": Experiment(
        "Participation tied to labels: rules that remember the absent",
        "--attack none --alpha 0.1 --participation labels:0.1 --rounds 300 --eval-every 20 "
        "--rules fedavg,fedau,mifa,fedstale,fedstale:beta=1.0,ca_fed",
    ),
    "contribution": Experiment(
        "Three of ten clients have 70 % wrong labels: rules that measure a contribution",
        "--attack none --clients 10 --alpha 1 --label-noise 3:0.7 --rounds 40 "
        "--rules fedavg,fedce,ida,fedld,fair_bfl,fedlaw:gamma=1,inverse_distance,fedcpa",
    ),
    "bytes": Experiment(
        "Small messages",
        "--attack none --clients 10 --alpha 1 --rounds 40 --rules fedavg,gmf,ferret,frl,fedpara,fedselect",
    ),
    "others": Experiment(
        "A head in one round, few labels, easy samples first, gateways, perturbed samples",
        "--attack none --clients 10 --alpha 0.5 --model mlp:32 --rounds 30 --rules fedavg,afl,fedlabel,"
        "fedlabel:threshold=1.0,curriculum,tree,inco,adversarial",
    ),
}


def verdict(gains: list[float]) -> str:
    """Whether a paired difference separates from zero over the seeds."""
    n = len(gains)
    mean = sum(gains) / n
    error = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / (n - 1) / n) if n > 1 else math.inf
    agreeing = sum(gain * mean > 0 for gain in gains)
    if abs(mean) > 2 * error and agreeing >= n - 1:
        return "above" if mean > 0 else "below"
    return "does not separate"


def table(rows: Rows) -> list[str]:
    """Markdown of what came out, the baseline first."""
    lines = [
        "| rule | accuracy % | worst client % | against FedAvg | seeds above | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        told = f"| {name} | {percents(row['accuracy'])} | {100 * row['worst_client']['mean']:.1f} "
        gains: list[Any] = row["gain"]["by_seed"]
        if name == "fedavg" or None in gains:
            lines.append(told + "| baseline | | |")
            continue
        points = [100 * gain for gain in gains]
        above = sum(point > 0 for point in points)
        lines.append(told + f"| {percents(row['gain'], '+')} | {above} of {len(points)} | {verdict(points)} |")
    return lines


if __name__ == "__main__":
    tell(__doc__, EXPERIMENTS, table)
