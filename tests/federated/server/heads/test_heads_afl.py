"""AFL in a federation: one round is the centralised least-squares head, whoever has which samples."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.models import MLP
from pluribus.federated.participation import parse
from pluribus.federated.parts import parts_of
from pluribus.federated.seeding import derived
from pluribus.federated.server import AFL, FedAvg
from pluribus.federated.server.base import Round


def world(hidden=100, split="class", participation="all", seed=0):
    """Digits in float64, all training samples divided anew."""
    setup = federation(seed=seed, clients=5)
    whole = setup.clients[0]
    x, y = (np.concatenate([getattr(c, part) for c in setup.clients]) for part in ("x", "y"))
    whole = replace(whole, x=x, y=y)
    if split == "class":
        owners = [np.flatnonzero(y == c) for c in range(10)]
    else:
        owners = np.array_split(np.random.default_rng(0).permutation(len(y)), split)
    clients = tuple(whole.take(owner) for owner in owners)
    counts = np.stack([c.counts for c in clients])
    model = MLP(64, hidden, 10, dtype="float64")
    setup = replace(setup, model=model, clients=clients, true_counts=counts)
    return replace(setup, participation=parse(participation, counts, seed)), x, y


def central(setup, x, y, ridge):
    params = setup.model.init(derived(0, "simulation.init"))
    h = parts_of(setup.model).features(params, x)
    h = np.concatenate([h, np.ones((len(h), 1))], axis=1)
    return np.linalg.solve(h.T @ h + ridge * np.eye(h.shape[1]), h.T @ np.eye(10)[y])


@pytest.mark.parametrize("split", ["class", 1, 1000])
def test_one_round_is_the_centralised_solution(split):
    setup, x, y = world(split=split)
    run = simulate(setup, AFL(ridge=0.1), seed=0, rounds=1)
    expected = central(setup, x, y, 0.1)
    np.testing.assert_allclose(run.state["params"]["output.weight"].T, expected[:-1], atol=1e-8)
    np.testing.assert_allclose(run.state["params"]["output.bias"], expected[-1], atol=1e-8)
    assert run.history.accuracy[-1] > 0.9


def test_late_clients_are_added_and_none_counts_twice():
    setup, x, y = world(participation="bernoulli:0.5")
    run = simulate(setup, AFL(ridge=0.1), seed=0, rounds=12)
    assert run.state["counted"].all()
    assert run.history.present.sum() > 10
    np.testing.assert_allclose(run.state["params"]["output.weight"].T, central(setup, x, y, 0.1)[:-1], atol=1e-8)


def test_on_one_class_a_client_a_round_is_worth_more_than_ten_of_fedavg():
    for seed in range(3):
        setup, _, _ = world(hidden=200, seed=seed)
        found = simulate(setup, AFL(ridge=1.0), seed=seed, rounds=1).history.accuracy[-1]
        assert found > simulate(setup, FedAvg(), seed=seed, rounds=10).history.accuracy[-1] + 0.05


def test_what_was_not_sent_or_does_not_fit_is_told():
    rule = AFL()
    params = MLP(4, 3, 2).init(0)
    state = rule.init(params, 2)
    zero = [{name: np.zeros_like(value) for name, value in params.items()}]
    bare = Round(number=0, clients=(1,), updates=zero, sizes=np.ones(1), n_clients=2, total_size=2)
    with pytest.raises(RuleError, match=r"client 1, which did not send them; .*AFL\(\).client"):
        rule.step(state, bare)
    wrong = replace(bare, messages=[{"gram": np.eye(3), "cross": np.zeros((3, 2))}])
    with pytest.raises(RuleError, match=r"shapes \(3, 3\) and \(3, 2\), and the model's are \(4, 4\)"):
        rule.step(state, wrong)
