"""FedAsync: models mixed in one after another, and the three functions of staleness."""

import numpy as np
import pytest
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated.server import FedAsync


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", [FedAsync(), FedAsync(staleness="hinge", a=2, b=1), FedAsync(staleness="constant")])
def test_mixed_in_one_after_another(rule, seed):
    rng = np.random.default_rng(seed)
    now, starts, deltas = rng.normal(size=3), rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    tau = np.array([2, 0, 5, 2])
    x = now.copy()
    for k in (2, 0, 3, 1):  # the stalest first, then by id
        share = rule.alpha * float(rule.discount(np.array([float(tau[k])]))[0])
        x = (1 - share) * x + share * (starts[k] + deltas[k])
    told = plain(deltas, staleness=tau, starts=[{"w": start} for start in starts])
    after = rule.step(rule.init({"w": now}, 4), told)
    np.testing.assert_allclose(after["params"]["w"], x, rtol=1e-10)
    assert 0 < after["weights"].sum() < 1


def test_the_functions():
    tau = np.array([0.0, 3.0, 4.0, 5.0, 9.0])
    np.testing.assert_allclose(FedAsync(a=0.5).discount(tau), [1, 0.5, 5**-0.5, 6**-0.5, 10**-0.5])
    np.testing.assert_allclose(FedAsync(staleness="hinge", a=10, b=4).discount(tau), [1, 1, 1, 1 / 11, 1 / 51])
    np.testing.assert_allclose(FedAsync(staleness="constant").discount(tau), 1)


def test_alpha_one_and_fresh_is_the_client_s_model():
    rule = FedAsync(alpha=1)
    after = rule.step(rule.init({"w": np.ones(2)}, 3), plain([[2.0, 3.0]], clients=(1,), n_clients=3))
    assert after["params"]["w"].tolist() == [3, 4]


def test_a_stale_model_pulls_back_to_where_it_started():
    rule = FedAsync(alpha=0.5, staleness="constant")
    told = plain([[0.0]], n_clients=2, staleness=np.array([7]), starts=[{"w": np.zeros(1)}])
    assert rule.step(rule.init({"w": np.full(1, 8.0)}, 2), told)["params"]["w"] == 4


@pytest.mark.parametrize("bad", [{"alpha": 0}, {"alpha": 1.5}, {"staleness": "steep"}, {"a": -1}, {"b": -1}])
def test_parameters_that_mean_nothing(bad):
    with pytest.raises(RuleError, match=next(iter(bad))):
        FedAsync(**bad)
