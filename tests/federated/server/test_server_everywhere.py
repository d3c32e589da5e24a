"""Every registered server rule in a small federation: pure, picklable, resumable to the bit, read back by its name."""

import pickle

import numpy as np
import pytest
from federations import federation
from server_rounds import leaves, same_bits

from pluribus.federated import checkpoint, server, simulate
from pluribus.federated.checkpoint import Clock
from pluribus.federated.simulation import advance, begin

ROUNDS = 3


@pytest.fixture(scope="module")
def setup():
    return federation(participation="bernoulli:0.7", partition="dirichlet:1")


@pytest.mark.parametrize("key", sorted(server.registered()))
def test_a_run_taken_up_again_ends_with_the_same_bits(key, setup, tmp_path):
    rule = server.parse(key)
    whole = simulate(setup, rule, seed=3, rounds=ROUNDS)
    part = advance(setup, rule, 3, begin(setup, rule, 3, ROUNDS))
    checkpoint.save(tmp_path / "run", part, "me", Clock())
    again, _ = checkpoint.load(tmp_path / "run", "me")
    resumed = simulate(setup, pickle.loads(pickle.dumps(rule)), seed=3, rounds=ROUNDS, start=again)
    for part_of in ("state", "memories", "world"):
        same_bits(getattr(resumed, part_of), getattr(whole, part_of))
    np.testing.assert_array_equal(resumed.history.weights, whole.history.weights)
    assert np.isfinite(whole.history.accuracy[-1])
    assert (whole.history.status == 0).any(), "it never stepped"


@pytest.mark.parametrize("key", sorted(server.registered()))
def test_a_step_changes_nothing_that_it_was_given(key, setup):
    rule = server.parse(key)
    run = advance(setup, rule, 5, begin(setup, rule, 5, ROUNDS))
    before = {name: value.copy() for name, value in leaves(run.state).items()}
    kept = {name: value.copy() for name, value in leaves(run.memories).items()}
    advance(setup, rule, 5, run)
    same_bits(run.state, before)
    same_bits(run.memories, kept)


@pytest.mark.parametrize("key", sorted(server.registered()))
def test_its_name_is_read_back(key):
    rule = server.parse(key)
    assert server.parse(rule.name) == rule
    assert rule.formula
    assert rule.source
    assert rule.explanation.endswith(".")
