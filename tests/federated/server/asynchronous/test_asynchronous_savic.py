"""Local SGD with scaling: the algorithm by hand, its special cases, and badly scaled quadratics."""

import dataclasses

import numpy as np
import pytest
from federations import federation, quadratics
from server_rounds import plain, same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import FedAvg, ScaledLocalSGD, parse


def by_hand(targets, curvatures, *, scaling, alpha, beta, steps, lr, rounds):
    """Models and D; the Hessian's diagonal is the curvature, so OASIS measures it exactly."""
    w, d = np.zeros(targets.shape[1]), np.ones(targets.shape[1])
    for number in range(1, rounds + 1):
        scale = np.maximum(alpha, abs(d) if scaling == "oasis" else np.sqrt(d))
        gradient = np.mean([a * (w - t) for a, t in zip(curvatures, targets, strict=True)], axis=0)
        ends = []
        for a, t in zip(curvatures, targets, strict=True):
            y = w.copy()
            for _ in range(steps):
                y = y - lr * a * (y - t) / scale
            ends.append(y)
        w = np.mean(ends, axis=0)
        keep = (beta - beta**number) / (1 - beta**number) if scaling == "adam" else beta
        d = keep * d + (1 - keep) * (curvatures.mean(axis=0) if scaling == "oasis" else gradient**2)
    return w, d


@pytest.mark.parametrize("scaling", ["rmsprop", "adam", "oasis"])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_algorithm_written_out(scaling, steps):
    setup, targets, curvatures = quadratics(clients=3, steps=steps, lr=0.1, size=4)
    rule = ScaledLocalSGD(scaling=scaling, alpha=0.3, beta=0.7)
    run = simulate(setup, rule, seed=0, rounds=5)
    w, d = by_hand(targets, curvatures, scaling=scaling, alpha=0.3, beta=0.7, steps=steps, lr=0.1, rounds=5)
    np.testing.assert_allclose(run.state["params"]["w"], w, rtol=1e-7)
    np.testing.assert_allclose(run.state["scale"]["w"], d, rtol=1e-7)


def test_a_scale_of_one_is_local_sgd():
    setup = federation(clients=3)
    one, other = (
        simulate(setup, rule, seed=0, rounds=2).state["params"]
        for rule in (ScaledLocalSGD(scaling="identity"), FedAvg(weighting="uniform"))
    )
    same_bits(one, other)


@pytest.mark.parametrize("scaling", ["rmsprop", "adam", "oasis"])
def test_identical_clients_are_one_machine(scaling):
    setup, *_ = quadratics(clients=1, steps=3, lr=0.1)
    three = dataclasses.replace(
        setup,
        clients=setup.clients * 3,
        true_counts=np.repeat(setup.true_counts, 3, axis=0),
        participation=quadratics(clients=3)[0].participation,
    )
    rule = ScaledLocalSGD(scaling=scaling)
    one, other = (simulate(here, rule, seed=0, rounds=4).state["params"]["w"] for here in (setup, three))
    np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_condition_number_of_a_thousand(seed):
    """Rounds to 0.1 % of the first gap: OASIS, which knows the curvature, beside local SGD at its best step.

    RMSProp's and Adam's scales are gradients and not curvature; they shorten the way for some seeds and steps only.
    """
    setup, targets, _ = quadratics(clients=4, steps=4, size=8, seed=seed)
    curvatures = np.repeat(np.geomspace(0.01, 10, 8)[None], 4, axis=0)
    sets = tuple(
        dataclasses.replace(own, x=np.concatenate([a, t])[None])
        for own, a, t in zip(setup.clients, curvatures, targets, strict=True)
    )
    optimum = (curvatures * targets).sum(axis=0) / curvatures.sum(axis=0)

    def gap(w):
        return 0.5 * (curvatures * ((w - targets) ** 2 - (optimum - targets) ** 2)).sum(axis=1).mean()

    def rounds(text, lr):
        gaps = []
        here = dataclasses.replace(setup, clients=sets, training=dataclasses.replace(setup.training, lr=lr))
        simulate(
            here,
            parse(text),
            seed,
            rounds=60,
            eval_every=60,
            after_round=lambda r: gaps.append(gap(r.state["params"]["w"])),
        )
        reached = np.flatnonzero(np.array(gaps) < 1e-3 * gap(np.zeros(8)))
        return reached[0] + 1 if len(reached) else np.inf

    scaled = min(rounds("savic:scaling=oasis:alpha=0.001:beta=0.5", lr) for lr in (0.1, 0.15, 0.2, 0.3))
    unscaled = min(rounds("savic:scaling=identity", lr) for lr in (0.03, 0.1, 0.15))
    assert 4 * scaled < unscaled


@pytest.mark.parametrize("scaling", ["rmsprop", "adam", "oasis"])
def test_digits_are_learned(scaling):
    setup = federation(clients=4, model="mlp:16", epochs=2)
    run = simulate(setup, ScaledLocalSGD(scaling=scaling), seed=0, rounds=15)
    assert run.history.accuracy[-1] > 0.7
    assert run.state["scale"].keys() == run.state["params"].keys()


def test_what_it_needs_is_said():
    rule = ScaledLocalSGD()
    with pytest.raises(RuleError, match="complex"):
        rule.init({"w": np.zeros(2, dtype=complex)}, 2)
    with pytest.raises(RuleError, match="measured"):
        rule.step(rule.init({"w": np.zeros(1)}, 1), plain([[1.0]]))


@pytest.mark.parametrize("bad", [{"scaling": "adagrad"}, {"alpha": 0}, {"beta": 1}, {"probe": 0}])
def test_parameters_that_mean_nothing(bad):
    with pytest.raises(RuleError, match=next(iter(bad))):
        ScaledLocalSGD(**bad)
