"""Files larger than memory: n safetensors files of a size each, in a limited address space.

    python -m benchmarks.out_of_core --n 20 --gib 2 --limit-gib 1.5 --rules mean median multi_krum
    python -m benchmarks.out_of_core --n 3 --gib 3.73 --limit-gib 1.5 --rules mean          # 3 x 1 B float32

The files are sparse (holes read as zeros, and cost no disk) but for some numbers at the end, on which the result is
checked. Prints wall and CPU seconds and the peak of resident memory of the process that combined them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CHILD = """
import json, resource, sys, time
limit = int(float(sys.argv[1]) * 2**30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
import pluribus
rule, out, *paths = sys.argv[2:]
started, used = time.perf_counter(), time.process_time()
more = {"f": 1} if "krum" in rule or rule == "trimmed_mean" else {}
result = pluribus.aggregate(paths, rule, out=out, **more)
print(json.dumps({
    "wall": time.perf_counter() - started, "cpu": time.process_time() - used,
    "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "weights": result.given.tolist(),
}))
"""


def sparse(path: Path, size: int, tail: np.ndarray) -> None:
    """A safetensors file of one float32 tensor of ``size`` numbers: zeros, then ``tail``."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 4 * size)
        file.seek(8 + len(header) + 4 * (size - len(tail)))
        file.write(tail.astype(np.float32).tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--gib", type=float, default=2.0, help="size of each file")
    parser.add_argument("--limit-gib", type=float, default=1.5, help="address space of the process (as ulimit -v)")
    parser.add_argument("--rules", nargs="+", default=["mean", "median", "multi_krum"])
    chosen = parser.parse_args()
    size = int(chosen.gib * 2**30 / 4)
    tails = np.random.default_rng(0).normal(size=(chosen.n, 1000)).astype(np.float32)
    expected = {"mean": tails.astype(float).mean(axis=0), "median": np.median(tails.astype(float), axis=0)}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{k}.safetensors") for k in range(chosen.n)]
        for path, tail in zip(paths, tails, strict=True):
            sparse(path, size, tail)
        for rule in chosen.rules:
            out = Path(folder, "out.safetensors")
            command = [sys.executable, "-c", CHILD, str(chosen.limit_gib), rule, str(out), *map(str, paths)]
            started = time.perf_counter()
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
            told = json.loads(done.stdout)
            with out.open("rb") as file:
                file.seek(-4000, os.SEEK_END)
                found = np.frombuffer(file.read(), np.float32)
            if rule in expected:
                np.testing.assert_allclose(found, expected[rule], rtol=1e-6, atol=1e-7)
            print(
                f"{rule}: {chosen.n} x {size:,} float32 ({chosen.n * chosen.gib:.0f} GiB) in {told['wall']:.1f} s, "
                f"{told['cpu']:.1f} CPU s, peak {told['peak_gib']:.2f} GiB of {chosen.limit_gib} GiB "
                f"({time.perf_counter() - started:.1f} s with start-up)",
                flush=True,
            )
            out.unlink()
    print(f"limits: RLIMIT_AS {resource.getrlimit(resource.RLIMIT_AS)}")


if __name__ == "__main__":
    main()
