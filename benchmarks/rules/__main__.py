"""The command line of `benchmarks.rules`."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import rules
from benchmarks.rules.contenders import HEADLINE, SIDES
from benchmarks.rules.measuring import Row, compare, elsewhere, run
from benchmarks.rules.tables import gram_table, table, verdicts
from benchmarks.shapes import resnet50

PEERS = [side for side in SIDES if side != "pluribus"]


def home(peer: str, pythons: list[str]) -> str | None:
    """The first interpreter that can import a peer."""
    for python in pythons:
        if subprocess.run([python, "-c", f"import {peer}"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=rules.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[10, 50], help="numbers of contributors")
    parser.add_argument("--peer", action="append", default=[], choices=PEERS, help="beside ours; all that there are")
    parser.add_argument("--python", action="append", default=[], help="interpreter of an environment with peers")
    parser.add_argument(
        "--share", type=int, nargs="+", default=[1],
        help="peers see one in so many of the coordinates, and so do ours that are compared with them; one for each n",
    )  # fmt: skip
    parser.add_argument("--kernels", nargs="+", default=["compiled", "plain"], help="kernels of ours")
    parser.add_argument("--whole", type=int, default=1, help="as --share, for all: to try the benchmark itself")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--kept", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        print(json.dumps(run(chosen.inside, chosen.n[0], chosen.share[0], chosen.only, chosen.kept)))
        return
    size = sum(math.prod(shape) for shape in resnet50().values())
    print(f"ResNet-50: {len(resnet50())} arrays, {size:,} float32 numbers", file=sys.stderr)
    pythons = [*chosen.python, sys.executable]
    peers = {peer: python for peer in chosen.peer or PEERS if (python := home(peer, pythons))}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for at, n in enumerate(chosen.n):
            share = chosen.share[min(at, len(chosen.share) - 1)] * chosen.whole
            rows += _measured(n, chosen, share, peers, Path(folder))
            if chosen.json:
                chosen.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows), gram_table(rows), "\n".join(f"- {line}" for line in verdicts(rows)), sep="\n\n")


def _measured(n: int, chosen: argparse.Namespace, share: int, peers: dict[str, str], folder: Path) -> list[Row]:
    """All sides for one number of contributors."""
    rows: list[Row] = []
    theirs: dict[str, list[Row]] = {}
    mine = folder / f"ours-{n}.npz"
    for kernels in chosen.kernels:
        kept = mine if kernels == "compiled" else folder / "other.npz"
        only = [] if kernels == "compiled" else list(HEADLINE)
        rows += elsewhere("pluribus", n, chosen.whole, sys.executable, kernels=kernels, only=only, kept=kept)
    for peer, python in peers.items():
        theirs[peer] = elsewhere(peer, n, share, python, kept=folder / f"{peer}-{n}.npz")
    if share != chosen.whole:
        names = [row["rule"].partition(" | ")[0] for found in theirs.values() for row in found]
        rows += elsewhere("pluribus", n, share, sys.executable, kernels="compiled", only=names, kept=mine)
    for peer, found in theirs.items():
        compare(found, folder / f"{peer}-{n}.npz", mine)
        rows += found
    return rows


if __name__ == "__main__":
    main()
