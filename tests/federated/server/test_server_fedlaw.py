import numpy as np
import pytest
from server_rounds import a_round, leaves, model, plain

from pluribus.core.errors import RuleError
from pluribus.federated.server import FedAvg, FedLAW, ServerFineTune, fedlaw


def step(rule, params, one):
    return rule.step(rule.init(params, one.n_clients), one)


def bowl(target, curvature=1.0):
    """0.5 c |w - t|^2, remembering what it was asked."""

    def loss(params):
        gap = params["w"] - target
        loss.asked.append(params["w"].copy())
        return 0.5 * curvature * float(gap @ gap), {"w": curvature * gap}

    loss.asked = []
    return loss


def rugged(params):
    w = params["w"]
    return float(np.sin(3 * w).sum() + 0.1 * w @ w), {"w": 3 * np.cos(3 * w) + 0.2 * w}


@pytest.mark.parametrize("gamma", ["learned", 1.0, 0.7])
def test_the_path_is_adam_on_the_true_gradient(gamma):
    """Every point that the proxy loss is asked for, against Adam on finite differences of the formula."""
    rng = np.random.default_rng(0)
    x, deltas, sizes = rng.normal(size=6), rng.normal(size=(4, 6)), np.array([1.0, 2, 3, 4])
    asked = []

    def recorded(params):
        asked.append(params["w"].copy())
        return rugged(params)

    step(FedLAW(gamma, steps=7, lr=0.1, beta1=0.4, beta2=0.9), {"w": x}, plain(deltas, sizes=sizes, proxy=recorded))

    def made(point):
        z, factor = (point[:4], np.exp(point[4])) if gamma == "learned" else (point, gamma)
        lam = np.exp(z) / np.exp(z).sum()
        return factor * sum(share * (x + delta) for share, delta in zip(lam, deltas, strict=True))

    point = np.log(sizes / sizes.sum())
    point = np.append(point, 0.0) if gamma == "learned" else point
    m = v = np.zeros(len(point))
    for t in range(8):
        np.testing.assert_allclose(asked[t], made(point), atol=2e-6)
        slope = np.array(
            [
                (rugged({"w": made(point + 1e-6 * e)})[0] - rugged({"w": made(point - 1e-6 * e)})[0]) / 2e-6
                for e in np.eye(len(point))
            ]
        )
        m, v = 0.4 * m + 0.6 * slope, 0.9 * v + 0.1 * slope**2
        point = point - 0.1 * (m / (1 - 0.4 ** (t + 1))) / (np.sqrt(v / (1 - 0.9 ** (t + 1))) + 1e-8)
    assert len(asked) == 8


def test_untouched_weights_with_gamma_one_are_fedavg():
    params = model()
    one = a_round(params)
    law, average = step(FedLAW(gamma=1.0, steps=0), params, one), step(FedAvg(), params, one)
    for name in params:
        np.testing.assert_allclose(law["params"][name], average["params"][name], rtol=1e-13)
    np.testing.assert_allclose(law["weights"], average["weights"], rtol=1e-13)


@pytest.mark.parametrize("gamma", ["learned", 1.0])
def test_a_client_with_random_weights_counts_for_almost_nothing(gamma):
    rng = np.random.default_rng(1)
    target = rng.normal(size=20)
    deltas = [target + 0.1 * rng.normal(size=20) for _ in range(4)] + [5 * rng.normal(size=20)]
    state = step(FedLAW(gamma), {"w": np.zeros(20)}, plain(deltas, proxy=bowl(target)))
    assert state["weights"][4] < 0.03  # it started at 0.2
    assert state["proxy_loss"][1] < 0.1 * state["proxy_loss"][0]


@pytest.mark.parametrize("rule", [FedLAW(lr=2.0), FedLAW(gamma=1, lr=0.5), ServerFineTune(lr=5.0), ServerFineTune()])
def test_the_proxy_loss_never_ends_above_fedavgs(rule):
    average = FedAvg()
    for seed in range(15):
        rng = np.random.default_rng(seed)
        params = {"w": rng.normal(size=8)}
        one = plain(rng.normal(size=(5, 8)), sizes=rng.integers(1, 9, size=5), proxy=rugged)
        state, start = step(rule, params, one), step(average, params, one)
        at_start, at_end = rugged(start["params"])[0], rugged(state["params"])[0]
        assert at_end <= at_start + 1e-12
        np.testing.assert_allclose(state["proxy_loss"], [at_start, at_end], rtol=1e-9)


def test_gamma_shrinks_when_the_proxy_set_says_so():
    deltas = np.ones((3, 10))
    learned = step(FedLAW(lr=0.1), {"w": np.zeros(10)}, plain(deltas, proxy=bowl(0.6 * np.ones(10))))
    assert learned["gamma"] == pytest.approx(0.6, abs=0.05)
    fixed = step(FedLAW(gamma=1), {"w": np.zeros(10)}, plain(deltas, proxy=bowl(0.6 * np.ones(10))))
    assert fixed["gamma"] == 1
    np.testing.assert_allclose(fixed["params"]["w"], np.ones(10))


def test_buffers_do_not_shrink():
    params = model()
    state = step(FedLAW(gamma=0.5, steps=2), params, a_round(params))
    lam = state["weights"][~np.isnan(state["weights"])]
    var = params["norm.running_var"] + sum(
        share * update["norm.running_var"] for share, update in zip(lam, a_round(params).updates, strict=True)
    )
    np.testing.assert_allclose(state["params"]["norm.running_var"], var, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_updates_are_not_stacked_and_give_the_same(monkeypatch, dtype):
    params = model(dtype=dtype)
    one = a_round(params)
    small = step(FedLAW(steps=10), params, one)
    monkeypatch.setattr(fedlaw, "STACKED", 0)
    monkeypatch.setattr(fedlaw, "TILE", 4)
    large = step(FedLAW(steps=10), params, one)
    tolerance = 1e-10 if dtype == "float64" else 1e-5
    for name, value in leaves(small).items():
        np.testing.assert_allclose(leaves(large)[name], value, rtol=tolerance, atol=tolerance)


def test_coherence_is_the_mean_cosine():
    deltas = [[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]
    state = step(FedLAW(steps=0), {"w": np.zeros(2)}, plain(deltas, proxy=bowl(np.zeros(2))))
    assert state["coherence"] == pytest.approx((0 + 2**-0.5 + 2**-0.5) / 3)
    alone = step(FedLAW(steps=0), {"w": np.zeros(2)}, plain(deltas[:1], proxy=bowl(np.zeros(2))))
    assert np.isnan(alone["coherence"])
    assert alone["weights"].tolist() == [1.0]


def test_a_client_without_samples_stays_out():
    target = np.ones(3)
    one = plain([target, np.zeros(3)], sizes=[0, 5], proxy=bowl(target))
    assert step(FedLAW(gamma=1), {"w": np.zeros(3)}, one)["weights"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("rule", [FedLAW(), ServerFineTune()])
def test_a_proxy_loss_of_nan_leaves_fedavg(rule):
    def broken(params):
        return float("nan"), {"w": np.full(2, np.nan)}

    one = plain([[1.0, 2.0], [3.0, 4.0]], proxy=broken)
    state = step(rule, {"w": np.zeros(2)}, one)
    np.testing.assert_allclose(state["params"]["w"], [2.0, 3.0])
    assert int(state["status"]) == 0


def test_fine_tuning_is_gradient_descent_with_as_many_gradients_as_fedlaw():
    target, deltas = np.array([1.0, -1.0, 2.0]), np.random.default_rng(2).normal(size=(3, 3))
    law, tuned = bowl(target), bowl(target)
    params = {"w": np.zeros(3)}
    step(FedLAW(), params, plain(deltas, proxy=law))
    state = step(ServerFineTune(), params, plain(deltas, proxy=tuned))
    assert len(law.asked) == len(tuned.asked)
    w = deltas.mean(axis=0)
    for _ in range(50):
        w = w - 0.1 * (w - target)
    np.testing.assert_allclose(state["params"]["w"], w, rtol=1e-12)


@pytest.mark.parametrize("rule", [FedLAW(), ServerFineTune()])
def test_without_a_proxy_set_it_says_what_to_do(rule):
    with pytest.raises(RuleError, match=f"{type(rule).__name__} learns on a small clean set"):
        step(rule, {"w": np.zeros(1)}, plain([[1.0]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": "free"}, "'fixed' .which is 1. or a positive number"),
        ({"gamma": 0.0}, "gamma must be a positive number"),
        ({"steps": -1}, "steps must be a whole number of at least 0"),
        ({"lr": 0}, "lr must be a positive number"),
        ({"beta1": 1.0}, "beta1 must be below 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(RuleError, match=message):
        FedLAW(**options)
