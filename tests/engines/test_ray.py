"""A real local Ray with two workers: the same bits, and a dead worker's span is run again."""

from __future__ import annotations

import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pluribus import rules

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")

# Ray opens sockets that it closes late, and warns about what it will do in later releases.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def two_workers():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


def test_ray_gives_the_same_bits(tmp_path):
    rng = np.random.default_rng(0)
    trees = [{"w": rng.normal(size=(700, 900)).astype(np.float32), "b": rng.normal(size=10)} for _ in range(5)]
    paths = [tmp_path / f"{i}.safetensors" for i in range(5)]
    for tree, path in zip(trees, paths, strict=True):
        save_file(tree, path)
    for rule in (rules.MultiKrum(f=1), rules.Median()):
        expected = rule(trees)
        found = rule(paths, engine="ray", out=tmp_path / "out.safetensors")
        np.testing.assert_array_equal(found.weights, expected.weights)
        for name, array in load_file(found.value).items():
            assert array.tobytes() == expected.value[name].tobytes()


def test_a_dead_workers_span_is_run_again(tmp_path):
    from pluribus.engines.ray import OnRay

    mark = tmp_path / "mark"

    def task(common, span):
        if span[0] == 1 and not mark.exists():
            mark.touch()
            os._exit(1)
        return common, span

    spans = [(k, k + 1) for k in range(4)]
    assert list(OnRay().run(task, "x", spans)) == [("x", span) for span in spans]
    assert mark.exists()
