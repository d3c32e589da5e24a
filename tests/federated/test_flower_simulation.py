"""The example in Flower's simulation: the app that is deployed, with clients on Ray."""

from __future__ import annotations

import importlib.util

import pytest
from flower_federation import example_modules


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'pluribus[ray]'")
def test_the_same_app_in_flowers_simulation(tmp_path):
    with example_modules() as example, example.deploy.Deployment(tmp_path, nodes=3, seconds=100.0) as here:
        here.superlink(simulation=True)
        here.run(simulation=True, rule="scaffold", rounds=2, grace=60.0)
        assert here.wait() == "finished:completed"
    accuracy = [line["accuracy"] for line in here.rounds()]
    assert accuracy[0] < 0.3 < accuracy[1] < accuracy[2]
    assert here.log("run").count("'pluribus/status': 0") == 2
