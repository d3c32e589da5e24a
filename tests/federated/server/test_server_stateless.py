from dataclasses import replace

import numpy as np
import pytest
from server_rounds import a_round, model, plain

from pluribus import rules
from pluribus.core.errors import RuleError
from pluribus.federated.server import STATUS, Stateless

DELTAS = np.random.default_rng(0).normal(size=(7, 5))


def step(rule, one, start=None):
    return rule.step(rule.init({"w": np.zeros(5) if start is None else start}, one.n_clients), one)


@pytest.mark.parametrize(
    "rule",
    [rules.Median(), rules.TrimmedMean(f=2), rules.MultiKrum(f=2), rules.GeometricMedian(), rules.Mean()],
    ids=str,
)
def test_the_model_moves_by_the_rules_result(rule):
    state = step(Stateless(rule, server_lr=0.5), plain(DELTAS, sizes=[1, 1, 1, 1, 1, 1, 100]), np.ones(5))
    result = rule(list(DELTAS))
    np.testing.assert_allclose(state["params"]["w"], 1 + 0.5 * result.value, rtol=1e-12)
    np.testing.assert_allclose(state["weights"], result.weights, rtol=1e-12)


def test_sizes_count_only_if_asked():
    sizes = [1, 1, 1, 1, 1, 1, 100]
    state = step(Stateless(rules.Median(), weighting="size"), plain(DELTAS, sizes=sizes))
    np.testing.assert_allclose(state["params"]["w"], DELTAS[6])


def test_centered_clipping_starts_from_the_last_result():
    rule = Stateless(rules.CenteredClipping(radius=0.5), server_lr=0.1)
    state = rule.init({"w": np.ones(5)}, 7)
    x, v = np.ones(5), np.zeros(5)
    for number in range(4):
        deltas = DELTAS + number
        state = rule.step(state, plain(deltas))
        gaps = deltas - v
        v = v + np.mean([gap * min(1, 0.5 / np.linalg.norm(gap)) for gap in gaps], axis=0)
        x = x + 0.1 * v
        np.testing.assert_allclose(state["previous"]["w"], v, rtol=1e-9)
        np.testing.assert_allclose(state["params"]["w"], x, rtol=1e-9)


def test_rules_without_use_for_it_keep_no_last_result():
    assert "previous" not in Stateless(rules.Median()).init({"w": np.zeros(5)}, 7)
    assert "previous" in Stateless(rules.NNM(f=1) >> rules.CenteredClipping(radius=1.0)).init({"w": np.zeros(5)}, 7)


def test_too_few_clients_is_an_error_at_once_and_too_few_participants_a_round_left_out():
    rule = Stateless(rules.MultiKrum(f=2))
    with pytest.raises(
        RuleError, match="multi_krum:f=2 needs at least 7 participants a round, and there are 6 clients"
    ):
        rule.init({"w": np.zeros(5)}, 6)
    state = step(rule, plain(DELTAS[:6], n_clients=9), np.ones(5))
    assert STATUS[int(state["status"])] == "too few for the rule"
    np.testing.assert_array_equal(state["params"]["w"], np.ones(5))
    assert np.isnan(state["weights"]).all()
    bad = DELTAS.copy()
    bad[3, 2] = np.nan
    state = step(rule, plain(bad))
    assert STATUS[int(state["status"])] == "too few for the rule"
    assert state["dropped"].sum() == 1


def test_robust_rules_resist_and_the_mean_does_not():
    rng = np.random.default_rng(1)
    honest = 1 + 0.1 * rng.normal(size=(8, 5))
    deltas = np.vstack([honest, np.full((3, 5), -50.0)])
    for rule in (rules.Median(), rules.TrimmedMean(f=3), rules.Krum(f=3), rules.MultiKrum(f=3),
                 rules.GeometricMedian(), rules.NNM(f=3) >> rules.Median()):  # fmt: skip
        moved = step(Stateless(rule), plain(deltas))["params"]["w"]
        assert np.abs(moved - 1).max() < 0.4, rule
    assert step(Stateless(rules.Mean()), plain(deltas))["params"]["w"].max() < -10


@pytest.mark.parametrize("rule", [rules.MultiKrum(f=2), rules.Median(), rules.NNM(f=2) >> rules.Median()], ids=str)
def test_buffers_neither_decide_nor_open_a_door(rule):
    """A counter of 400,000 must not decide who is near, and an attacker must not reach the variances either."""
    params = model()
    one = a_round(params, scale=0.01)
    for k, update in enumerate(one.updates):
        if k < 2:
            update["layer.weight"][:] = 9.0
            update["norm.running_var"][:] = 1e9
        update["norm.num_batches_tracked"] = np.array(k * 10**6 if k >= 2 else 4 * 10**6)
    state = step_tree(Stateless(rule), params, one)
    assert np.abs(state["params"]["layer.weight"] - params["layer.weight"]).max() < 0.1
    assert (state["params"]["norm.running_var"] >= 0).all()
    assert state["params"]["norm.running_var"].max() < 5


def step_tree(rule, params, one):
    return rule.step(rule.init(params, one.n_clients), one)


def test_measuring_can_be_left_out():
    state = step(Stateless(rules.Median(), measure=False), plain(DELTAS))
    assert np.isnan(state["weights"]).all()
    np.testing.assert_allclose(state["params"]["w"], np.median(DELTAS, axis=0))
    assert not np.isnan(step(Stateless(rules.MultiKrum(f=1), measure=False), plain(DELTAS))["weights"]).any()


def stock(models, base):
    """Model Stock, directly."""
    apart = models - base
    units = apart / np.linalg.norm(apart, axis=1, keepdims=True)
    k = len(models)
    cosine = max((units @ units.T)[~np.eye(k, dtype=bool)].mean(), 0)
    t = k * cosine / (1 + (k - 1) * cosine)
    return t * models.mean(axis=0) + (1 - t) * base


def test_a_rule_of_models_gets_models_and_the_global_one():
    """Round after round: the base is the global model that the participants started from, not the last step."""
    rule, deltas = Stateless(rules.ModelStock()), 1 + 0.5 * DELTAS
    state, x = rule.init({"w": np.arange(5.0)}, 7), np.arange(5.0)
    for number in range(3):
        state = rule.step(state, plain(deltas + number))
        x = stock(x + deltas + number, x)
        np.testing.assert_allclose(state["params"]["w"], x, rtol=1e-9)
    assert (rules.Clip(1e9) >> rules.ModelStock()).of_models
    assert rules.mix(rules.ModelStock(), rules.Mean()).of_models
    assert rules.per_group(rules.FedCPA()).uses_previous
    assert rules.Weighted(rules.ModelStock()).of_models
    assert rules.Gas(rules.ModelStock(), f=1).of_models
    assert not rules.per_group(rules.Median()).of_models


def quadratic(goal):
    """Half the squared distance of the parameters to a goal, and its gradient."""

    def loss(params):
        gap = params["w"] - goal
        return 0.5 * float(gap @ gap), {"w": gap}

    return loss


@pytest.mark.parametrize("rule", [rules.FLTrust(), rules.FedGP(), rules.FedDA()], ids=lambda r: r.name)
def test_the_trusted_row_is_the_servers_own_update(rule):
    goal, start, one = np.full(5, 3.0), np.ones(5), plain(DELTAS)
    server = Stateless(rule, proxy_steps=2, proxy_lr=0.5)
    state = server.init({"w": start}, 7)
    with pytest.raises(RuleError, match=rf"{rule.name} learns on a small clean set .* no proxy objective; keep some"):
        server.step(state, one)
    state = server.step(state, replace(one, proxy=quadratic(goal)))
    own = (1 - 0.5**2) * (goal - start)  # two steps, half of the way each
    expected = rule(list(DELTAS), reference=own).value
    np.testing.assert_allclose(state["params"]["w"], start + expected, rtol=1e-12)
    assert "previous" not in state


def test_fltrust_withstands_more_attackers_than_honest_ones():
    deltas = np.vstack([np.full((2, 5), 0.9), np.full((5, 5), -50.0)])
    one = replace(plain(deltas), proxy=quadratic(np.full(5, 10.0)))
    moved = step(Stateless(rules.FLTrust()), one)["params"]["w"]
    np.testing.assert_allclose(moved, 1.0)  # as long as the server's own step, of 0.1 * 10


def test_bad_options():
    with pytest.raises(RuleError, match="proxy_steps must be a whole number"):
        Stateless(rules.FLTrust(), proxy_steps=0)
    with pytest.raises(RuleError, match="proxy_lr must be a positive number"):
        Stateless(rules.FLTrust(), proxy_lr=0)
    with pytest.raises(RuleError, match="takes a rule such as"):
        Stateless("median")
    with pytest.raises(RuleError, match="weighting must be one of 'uniform', 'size'"):
        Stateless(rules.Median(), weighting="all")
