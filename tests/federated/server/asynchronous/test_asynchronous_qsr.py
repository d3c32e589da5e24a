"""QSR: how long rounds are, that the rate goes on falling within them, and what fewer exchanges cost."""

import math

import numpy as np
import pytest
from federations import federation, quadratics
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import QSR, parse


def test_a_constant_rate_gives_constant_rounds():
    assert QSR(alpha=0.3, base=2, total=90, schedule="constant").rounds(0.1) == [9] * 10
    assert QSR(alpha=0.1, base=5, total=20, schedule="constant").rounds(0.1) == [5] * 4


def test_alpha_zero_gives_the_base():
    assert QSR(alpha=0, base=4, total=22).rounds(0.1) == [4] * 5 + [2]


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("lr", [0.05, 0.1])
def test_the_closed_loop(schedule, lr):
    """Lengths by the formula on the rate at the start of each round, and fewer than with the base alone."""
    total, lowest, alpha, base, done, expected = 300, 0.01, 0.12, 3, 0, []
    while done < total:
        part = done / total
        high = 0.5 * (1 + math.cos(math.pi * part)) if schedule == "cosine" else 1 - part
        eta = lr * (lowest + (1 - lowest) * high)
        expected.append(min(max(base, math.floor((alpha / eta) ** 2)), total - done))
        done += expected[-1]
    rule = QSR(alpha=alpha, base=base, total=total, schedule=schedule, lowest=lowest)
    assert rule.rounds(lr) == expected
    assert sum(expected) == total
    assert len(expected) < len(QSR(alpha=0, base=base, total=total).rounds(lr))
    assert expected[:-1] == sorted(expected[:-1])


def test_the_simulation_follows_it_and_one_step_is_data_parallel_sgd():
    setup, targets, curvatures = quadratics(clients=3, steps=99, lr=0.1)
    rule = QSR(alpha=0, base=1, total=8, schedule="linear", lowest=0.2)
    w = np.zeros(2)
    for step in range(8):
        w = w - 0.1 * rule.factor(step) * (curvatures * (w - targets)).mean(axis=0)
    run = simulate(setup, rule, seed=0, rounds=8)
    np.testing.assert_allclose(run.state["params"]["w"], w, rtol=1e-12)
    assert int(run.state["done"]) == 8


def test_the_rate_goes_on_falling_within_a_round():
    setup, targets, curvatures = quadratics(clients=2, steps=99, lr=0.1)
    rule = QSR(alpha=0.2, base=4, total=30)
    lengths, w, done = rule.rounds(0.1), np.zeros(2), 0
    for length in lengths:
        ends = np.stack([w, w])
        for step in range(done, done + length):
            ends = ends - 0.1 * rule.factor(step) * curvatures * (ends - targets)
        w, done = ends.mean(axis=0), done + length
    run = simulate(setup, rule, seed=0, rounds=len(lengths))
    np.testing.assert_allclose(run.state["params"]["w"], w, rtol=1e-10)
    after = simulate(setup, rule, seed=0, rounds=len(lengths) + 3)
    assert int(after.state["done"]) == 33  # one step a round when all is done


@pytest.mark.parametrize("seed", range(3))
def test_fewer_exchanges_and_no_less_accuracy(seed):
    setup = federation(seed, clients=5, model="mlp:16", partition="dirichlet:1")

    def accuracy(text):
        rule = parse(text)
        rounds = len(rule.rounds(setup.training.lr))
        return rounds, simulate(setup, rule, seed, rounds=rounds, eval_every=rounds).history.accuracy[-1]

    few, adaptive = accuracy("qsr:alpha=0.15:total=240")
    many, constant = accuracy("qsr:alpha=0:total=240")
    assert few < 0.6 * many
    assert adaptive > constant - 0.005


def test_what_it_needs_is_said():
    rule = QSR()
    with pytest.raises(RuleError, match=r"Round\.steps"):
        rule.step(rule.init({"w": np.zeros(1)}, 1), plain([[1.0]]))


@pytest.mark.parametrize(
    "bad", [{"alpha": -1}, {"base": 0}, {"total": 0}, {"schedule": "step"}, {"lowest": 0}, {"lowest": 2}]
)
def test_parameters_that_mean_nothing(bad):
    with pytest.raises(RuleError, match=next(iter(bad))):
        QSR(**bad)
