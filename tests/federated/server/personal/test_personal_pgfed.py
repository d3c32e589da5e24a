"""PGFed against its equations on quadratics, its ends, and two groups of digits."""

import numpy as np
import pytest
from federations import quadratics
from personal_digits import ALONE, OTHERS, SAME, finish, two_groups

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import PGFed


@pytest.mark.parametrize("start", ["global", "own"])
@pytest.mark.parametrize("momentum", [0.0, 0.3])
def test_the_equations_written_out(start, momentum):
    n, lr, mu, pace = 3, 0.1, 0.4, 0.2
    setup, targets, curvatures = quadratics(clients=n, steps=4, lr=lr)
    run = simulate(setup, PGFed(mu=mu, pace=pace, momentum=momentum, start=start), seed=0, rounds=5)
    x, own, a = np.zeros(2), np.zeros((n, 2)), np.full((n, n), 1 / n)
    g, f, kept = None, None, [None] * n

    def risk(i, y):
        return 0.5 * (curvatures[i] * (y - targets[i]) ** 2).sum(), curvatures[i] * (y - targets[i])

    for _ in range(5):
        ends = []
        for i in range(n):
            y = (x if start == "global" else own[i]).copy()
            extra = np.zeros(2) if g is None else mu * sum(a[i, j] * g[j] for j in range(n) if j != i)
            if momentum:
                extra = extra if kept[i] is None else (1 - momentum) * extra + momentum * kept[i]
                kept[i] = extra
            for _ in range(4):
                y -= lr * (risk(i, y)[1] + extra)
            ends.append(y)
        if g is not None:
            for i in range(n):
                for j in range(n):
                    if j != i:
                        a[i, j] = max(0, a[i, j] - pace * mu * (f[j] + g[j] @ (ends[i] - own[j])))
        own = np.array(ends)
        f, g = zip(*(risk(i, own[i]) for i in range(n)), strict=True)
        x = own.mean(axis=0)
    np.testing.assert_allclose(run.state["params"]["w"], x, rtol=1e-9)
    np.testing.assert_allclose(run.state["personal"]["w"], own, rtol=1e-9)
    np.testing.assert_allclose(run.state["others"], a, rtol=1e-9)


def test_without_the_others_it_is_local_training():
    setup, targets, curvatures = quadratics(clients=3, steps=4, lr=0.1)
    run = simulate(setup, PGFed(mu=0, start="own"), seed=0, rounds=6)
    y = np.zeros((3, 2))
    for _ in range(24):
        y -= 0.1 * curvatures * (y - targets)
    np.testing.assert_allclose(run.state["personal"]["w"], y, rtol=1e-12)


@pytest.mark.parametrize("model", ["softmax", "mlp:16"])
def test_the_groups_coefficients_end_higher(model):
    for seed in range(3):
        run, accuracy = finish(two_groups(seed, model), "pgfed", seed, rounds=10)
        a = run.state["others"]
        assert a[SAME & OTHERS].mean() > 1.1 * a[~SAME].mean()
        assert (a >= 0).all()
        assert accuracy > finish(two_groups(seed, model), "fedavg", seed, rounds=10)[1]


def test_the_others_help_those_with_few_samples():
    """From their own model; the gain over local training is a point of accuracy, the same for all seeds."""
    gains = []
    for seed in range(3):
        setup = two_groups(seed, "mlp:16")
        gains.append(finish(setup, "pgfed:start=own:mu=0.5:pace=0.02", seed)[1] - finish(setup, ALONE, seed)[1])
    assert np.mean(gains) > 0


def test_absent_clients_are_known_by_their_last_gradient():
    setup, *_ = quadratics(clients=4, steps=2, lr=0.1, participation="cyclic:2")
    rule = PGFed()
    one = simulate(setup, rule, seed=0, rounds=1)
    here = one.history.present[0]
    assert np.isfinite(one.state["constants"][here]).all()
    assert np.isnan(one.state["constants"][~here]).all()
    a = one.state["others"]
    sent = rule.offer(one.state, int(np.flatnonzero(~here)[0])).told["others"]["w"]
    expected = 0.1 * sum(a[0, j] * one.state["gradients"]["w"][j] for j in np.flatnonzero(here))
    np.testing.assert_allclose(sent, expected, rtol=1e-12)


def test_bad_parameters():
    for bad in ({"mu": -1}, {"pace": -1}, {"momentum": 1.0}, {"start": "x"}):
        with pytest.raises(RuleError, match="PGFed"):
            PGFed(**bad)
