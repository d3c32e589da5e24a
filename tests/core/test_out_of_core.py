"""Twenty files of 2 GB in an address space of 1.5 GiB: what the tests elsewhere do with small files, at full size."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

N, BYTES, LIMIT = 20, 2_000_000_000, 3 << 29
SIZE = BYTES // 8  # numbers of a file, float64: half as many as of float32, for the same bytes
TILE = 1 << 17  # a multiple of every tile's length and of every block's of a Gram matrix
PLANTED = 5  # numbers in each place
PLACES = (0, TILE - 2, SIZE // 2 // TILE * TILE - 3, SIZE - TILE - 1, SIZE - PLANTED)
HEADER = json.dumps({"w": {"dtype": "F64", "shape": [SIZE], "data_offsets": [0, BYTES]}}).encode()
DATA = 8 + len(HEADER)

CHILD = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
import pluribus
rule, out, *paths = sys.argv[2:]
found = pluribus.aggregate(paths, rule, out=out)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"peak": used.ru_maxrss * 1024, "counted": [float(w) for w in found.weights]}))
"""


def planted() -> np.ndarray:
    """What each file holds in each place, shape (N, places, PLANTED); the rest is zero. The last three are attackers.

    Contributor 7 holds the mean of the honest ones, so that Krum must choose it, and no other.
    """
    x = np.random.default_rng(0).normal(size=(N, len(PLACES), PLANTED))
    x[17:] += 50.0
    x[7] = x[[k for k in range(17) if k != 7]].mean(axis=0)
    return x


@pytest.fixture(scope="module")
def files():
    """Sparse files: holes read as zeros and cost no disk, nor memory where the file system is memory."""
    shared = Path("/dev/shm")  # where holes are read without a copy in the page cache
    root = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(dir=root) as folder:
        paths = [Path(folder, f"{k}.safetensors") for k in range(N)]
        for path, numbers in zip(paths, planted(), strict=True):
            with path.open("wb") as file:
                file.write(len(HEADER).to_bytes(8, "little") + HEADER)
                file.truncate(DATA + BYTES)
                for place, values in zip(PLACES, numbers, strict=True):
                    file.seek(DATA + 8 * place)
                    file.write(values.tobytes())
            if path.stat().st_blocks * 512 > 1 << 24:
                pytest.skip(f"{folder} has no sparse files: twenty of 2 GB would fill it")
        yield paths


@pytest.mark.skipif(sys.platform != "linux", reason="address-space limits and sparse files are Linux's")
@pytest.mark.parametrize("rule", ["mean", "krum:f=3"])
def test_forty_gigabytes_in_one_and_a_half(rule, files, tmp_path):
    """The mean takes one pass; Krum one for the Gram matrix, and one that reads whom it chose."""
    if shutil.disk_usage(tmp_path).free < 5e9:
        pytest.skip(f"the result takes 2 GB, and {tmp_path} has less than 5 GB left")
    out = tmp_path / "out.safetensors"
    command = [sys.executable, "-c", CHILD, str(LIMIT), rule, str(out), *map(str, files)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert ran.returncode == 0, ran.stderr
        told = json.loads(ran.stdout)
        counted = np.full(N, 1 / N) if rule == "mean" else np.eye(N)[7]
        np.testing.assert_allclose(told["counted"], counted, atol=1e-15)
        assert told["peak"] < LIMIT
        expected = np.einsum("i,ijk->jk", counted, planted())
        with out.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            begin = file.tell()
            assert header["w"] == {"dtype": "F64", "shape": [SIZE], "data_offsets": [0, BYTES]}
            assert out.stat().st_size == begin + BYTES
            for place, values in zip(PLACES, expected, strict=True):
                first = max(place - 3, 0)
                file.seek(begin + 8 * first)
                found = np.frombuffer(file.read(8 * (place - first + PLANTED + 3)))
                around = np.zeros(len(found))  # zeros before and behind
                around[place - first : place - first + PLANTED] = values
                np.testing.assert_allclose(found, around, rtol=1e-13, atol=1e-15)
    finally:
        out.unlink(missing_ok=True)
