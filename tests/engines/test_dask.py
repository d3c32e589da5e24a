"""Dask's executor, on two local workers: the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pluribus import rules

distributed = pytest.importorskip("distributed", reason="Dask is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # of sockets that Dask closes late


def test_dask_gives_the_same_bits(tmp_path):
    rng = np.random.default_rng(0)
    trees = [{"w": rng.normal(size=(700, 900)).astype(np.float32), "b": rng.normal(size=10)} for _ in range(5)]
    paths = [tmp_path / f"{i}.safetensors" for i in range(5)]
    for tree, path in zip(trees, paths, strict=True):
        save_file(tree, path)
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        for rule in (rules.MultiKrum(f=1), rules.Median()):
            expected = rule(trees)
            found = rule(paths, engine=client.get_executor(), out=tmp_path / "out.safetensors")
            np.testing.assert_array_equal(found.weights, expected.weights)
            for name, array in load_file(found.value).items():
                assert array.tobytes() == expected.value[name].tobytes()
