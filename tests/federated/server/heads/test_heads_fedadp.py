"""FedADP: networks of unequal width in one federation."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from server_rounds import same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job
from pluribus.federated.measuring import measure
from pluribus.federated.models import Softmax
from pluribus.federated.seeding import derived
from pluribus.federated.server import FedADP, FedAvg, FedTGP
from pluribus.federated.server.heads.fedadp import resized


def test_lifting_keeps_the_function_and_narrowing_undoes_it():
    setup = federation(clients=3)
    small = resized(setup.model.init(0), 5)
    model = replace(setup.model, hidden=5)
    lifted = resized(small, 13)
    x = setup.test.x
    np.testing.assert_allclose(replace(model, hidden=13).logits(lifted, x), model.logits(small, x), atol=1e-5)
    for name, value in resized(lifted, 5).items():
        np.testing.assert_allclose(value, small[name], atol=1e-6)


def test_equal_widths_are_fedavg():
    setup = federation(clients=3)
    run = simulate(setup, FedADP(levels=1), seed=0, rounds=2)
    same_bits(run.state["params"], simulate(setup, FedAvg(), seed=0, rounds=2).state["params"])
    same_bits(FedADP(levels=1).model_of(run.state, 1), run.state["params"])


def test_a_round_is_the_weighted_mean_of_lifted_narrow_networks():
    setup = federation(clients=3)
    start = setup.model.init(derived(0, "simulation.init"))
    lifted = []
    for i, width in enumerate((4, 8, 4)):
        seed = derived(0, "simulation.training", 0, i)
        small = resized(start, width)
        job = Job(replace(setup.model, hidden=width), small, {}, setup.clients[i], setup.training, {}, seed, 0, i)
        lifted.append(resized(job.train().params, 8))
    after = simulate(setup, FedADP(), seed=0, rounds=1).state["params"]
    for name, value in after.items():
        expected = np.average([tree[name] for tree in lifted], axis=0, weights=setup.sizes)
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)


def test_on_all_digits_unequal_widths_beat_averaging_common_layers_only():
    """Of two widths the output's bias alone is common, so that baseline is training alone."""
    for seed in range(3):
        setup = federation(seed=seed, clients=6, model="mlp:16", partition="shards:2")
        rules = FedADP(), FedTGP(pull=0.0)
        found = []
        for rule in rules:
            state = simulate(setup, rule, seed=seed, rounds=30, eval_every=30).state
            found.append(np.mean([measure(setup.model, rule.model_of(state, i), setup.test)[1] for i in range(6)]))
        assert found[0] > found[1] + 0.2


def test_other_models_are_refused():
    with pytest.raises(RuleError, match=r"one hidden layer, and the model has output.weight, output.bias; take mlp:H"):
        FedADP().init(Softmax(4, 3).init(0), 2)
    with pytest.raises(RuleError, match="levels must be a whole number of at least 1"):
        FedADP(levels=0)
