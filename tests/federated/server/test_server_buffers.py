"""Buffers and counters by policy: what a user can say about each name."""

from dataclasses import replace

import numpy as np
import pytest
from server_rounds import a_round, model

from pluribus.core.errors import RuleError
from pluribus.federated.server import FedAvg, parse
from pluribus.federated.server.buffers import rebased
from pluribus.federated.server.rule import local_models

VAR, COUNT = "norm.running_var", "norm.num_batches_tracked"


def stepped(policies, params=None):
    params = params or model()
    round = a_round(params)
    if "norm.running_mean" in params:
        rng = np.random.default_rng(3)
        for update in round.updates:
            update["norm.running_mean"] = rng.normal(size=3)
    return params, round, FedAvg(policies=policies).step(FedAvg().init(params, 8), round)["params"]


def test_without_a_policy_and_with_the_mean_nothing_changes():
    plain, told = stepped(())[2], stepped((("*", "mean"),))[2]
    assert all(np.array_equal(plain[name], told[name]) for name in plain)


def test_keep_and_max():
    params, round, after = stepped(((VAR, "keep"), ("*num_batches_tracked", "max")))
    np.testing.assert_array_equal(after[VAR], params[VAR])
    assert after[COUNT] == params[COUNT] + max(int(update[COUNT]) for update in round.updates)
    assert after[COUNT].dtype == params[COUNT].dtype


def test_pooled_is_the_variance_of_all_samples_together():
    params = model() | {"norm.running_mean": np.array([0.5, -1.0, 2.0])}
    params, round, after = stepped((("*running_var", "pooled"),), params)
    w = np.asarray(round.sizes) / np.sum(round.sizes)
    means = np.array([params["norm.running_mean"] + u["norm.running_mean"] for u in round.updates])
    variances = np.array([params[VAR] + u[VAR] for u in round.updates])
    wanted = w @ variances + w @ (means - w @ means) ** 2
    np.testing.assert_allclose(after[VAR], wanted, rtol=1e-12)


def test_the_first_pattern_that_fits_goes():
    params, _, after = stepped((("norm.*", "keep"), ("*", "max")))
    np.testing.assert_array_equal(after[VAR], params[VAR])
    assert not np.array_equal(after["layer.bias"], params["layer.bias"])


def test_errors_teach():
    with pytest.raises(RuleError, match=r"pairs such as \(\('\*running_var', 'pooled'\)"):
        FedAvg(policies=(("*", "first"),))
    with pytest.raises(RuleError, match=r"running_mean beside it, and 'norm\.running_var' is none"):
        stepped((("*running_var", "pooled"),))
    with pytest.raises(RuleError, match=r"takes .*not policies"):
        parse("fedavg:policies=keep")


@pytest.mark.parametrize("text", ["fedavg", "fedavgm", "fedadam", "median", "fedlaw:steps=2", "fedbuff", "feddisco"])
def test_a_stale_variance_cannot_become_negative(text):
    rule, old = parse(text), model()
    now = old | {VAR: np.full(3, 0.01)}  # it fell far since they started
    round = a_round(old)
    updates = [{**update, VAR: -0.5 * old[VAR]} for update in round.updates]  # each ends at half of the old one
    stale = replace(round, updates=updates, starts=[old] * 7, staleness=np.full(7, 2))
    state = {**rule.init(now, 8), "params": now}
    after = rule.step(state, stale)
    assert (after["params"][VAR] > 0).all()
    assert (after["params"][VAR] <= 0.5 * old[VAR] + 1e-12).all()


def test_what_a_stale_client_ended_at_stays():
    old, now = model(), model(1)
    round = replace(a_round(old), starts=[old] * 7, staleness=np.array([0, 1, 0, 1, 0, 1, 0]))
    moved = rebased(round, now, [VAR])
    before, after = local_models(round, now), local_models(moved, now)
    for one, other in zip(before, after, strict=True):
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-12)
