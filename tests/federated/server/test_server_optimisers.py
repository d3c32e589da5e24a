import numpy as np
import pytest
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated.server import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

ROUNDS, CLIENTS, SIZE = 6, 3, 4
DELTAS = np.random.default_rng(0).normal(size=(ROUNDS, CLIENTS, SIZE)) * [1.0, 0.1, 1e-3, 0.0]
SIZES = np.array([1.0, 2.0, 5.0])
START = np.array([1.0, -2.0, 0.5, 3.0])


def run(rule):
    state = rule.init({"w": START}, CLIENTS)
    path = []
    for deltas in DELTAS:
        state = rule.step(state, plain(deltas, sizes=SIZES))
        path.append(state["params"]["w"])
    return np.array(path), state


def averages():
    return [sum(n * d for n, d in zip(SIZES, deltas, strict=True)) / SIZES.sum() for deltas in DELTAS]


def test_fedavgm_is_heavy_ball():
    x, m, path = START.copy(), np.zeros(SIZE), []
    for change in averages():
        m = 0.8 * m + change
        x = x + 0.3 * m
        path.append(x)
    np.testing.assert_allclose(run(FedAvgM(0.3, 0.8))[0], path, rtol=1e-12)
    np.testing.assert_allclose(run(FedAvgM(1.0, 0.0))[0], run(FedAvg())[0], rtol=1e-13)


@pytest.mark.parametrize("rule", [FedAdagrad, FedAdam, FedYogi])
@pytest.mark.parametrize("tau", [1e-3, 0.1])
def test_adaptive_rules_against_algorithm_2(rule, tau):
    lr, b1, b2 = 0.05, 0.7, 0.95
    x, m, v, path = START.copy(), np.zeros(SIZE), np.full(SIZE, tau**2), []
    for change in averages():
        m = b1 * m + (1 - b1) * change
        for j in range(SIZE):
            square = change[j] ** 2
            if rule is FedAdagrad:
                v[j] += square
            elif rule is FedAdam:
                v[j] = b2 * v[j] + (1 - b2) * square
            else:
                v[j] = v[j] - (1 - b2) * square * (1 if v[j] > square else -1 if v[j] < square else 0)
        x = x + lr * m / (np.sqrt(v) + tau)
        path.append(x)
    options = {"server_lr": lr, "beta1": b1, "tau": tau} | ({} if rule is FedAdagrad else {"beta2": b2})
    found, state = run(rule(**options))
    np.testing.assert_allclose(found, path, rtol=1e-11)
    np.testing.assert_allclose(state["v"]["w"], v, rtol=1e-12)
    np.testing.assert_allclose(state["m"]["w"], m, rtol=1e-12)
    assert int(state["steps"]) == ROUNDS


def test_bias_correction_is_named_and_changes_the_first_step():
    # With it the first step is lr * sign(D) (v starts at zero); without it m is a tenth of D.
    change = averages()[0]
    plain_step = run(FedAdam(server_lr=0.1))[0][0] - START
    corrected = run(FedAdam(server_lr=0.1, bias_correction=True, tau=1e-12))[0][0] - START
    np.testing.assert_allclose(corrected[:3], 0.1 * np.sign(change[:3]), rtol=1e-6)
    v = 0.99 * 1e-6 + 0.01 * change**2
    np.testing.assert_allclose(plain_step, 0.1 * 0.1 * change / (np.sqrt(v) + 1e-3), rtol=1e-12)


def torch_path(make):
    torch = pytest.importorskip("torch", reason="compares with torch.optim, which needs the torch extra")
    x = torch.tensor(START, requires_grad=True)
    optimiser, path = make(torch.optim, [x]), []
    for change in averages():
        x.grad = torch.tensor(-change)
        optimiser.step()
        path.append(x.detach().numpy().copy())
    return path


def test_against_torch_sgd():
    path = torch_path(lambda optim, xs: optim.SGD(xs, lr=0.3, momentum=0.9))
    np.testing.assert_allclose(run(FedAvgM(0.3))[0], path, rtol=1e-12)


def test_against_torch_adam():
    path = torch_path(lambda optim, xs: optim.Adam(xs, lr=0.05, betas=(0.9, 0.99), eps=1e-3))
    np.testing.assert_allclose(run(FedAdam(0.05, bias_correction=True))[0], path, rtol=1e-12)


def test_against_torch_adagrad():
    path = torch_path(lambda optim, xs: optim.Adagrad(xs, lr=0.05, initial_accumulator_value=1e-6, eps=1e-3))
    np.testing.assert_allclose(run(FedAdagrad(0.05))[0], path, rtol=1e-12)


@pytest.mark.parametrize("rule", [FedAdam(), FedYogi(), FedAdagrad(), FedYogi(bias_correction=True)])
def test_second_moments_stay_non_negative_and_steps_finite(rule):
    state = rule.init({"w": np.zeros(3)}, 1)
    for scale in (1e3, 0.0, 1e-8, 1e3, 0.0, 1.0, 1e-200):
        state = rule.step(state, plain([[scale, -scale, 0.0]]))
        assert (state["v"]["w"] >= 0).all()
        assert np.isfinite(state["params"]["w"]).all()
        assert state["params"]["w"][2] == 0


def test_moments_wait_while_nobody_comes():
    rule = FedAvgM()
    state = rule.step(rule.init({"w": np.zeros(2)}, 2), plain([[1, 1], [1, 1]]))
    later = rule.step(state, plain([], n_clients=2))
    np.testing.assert_array_equal(later["momentum"]["w"], state["momentum"]["w"])
    assert int(later["steps"]) == 1


def test_half_precision_models_keep_double_precision_moments():
    rule = FedAdam()
    state = rule.init({"w": np.zeros(2, dtype=np.float16)}, 1)
    assert state["v"]["w"].dtype == np.float64
    np.testing.assert_allclose(state["v"]["w"], 1e-6, rtol=1e-12)
    assert rule.step(state, plain([[0.01, 0.02]]))["params"]["w"].dtype == np.float16


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (FedAvgM, {"momentum": 1.0}, "momentum must be below 1"),
        (FedAdam, {"beta1": -0.1}, "beta1 must be a non-negative number"),
        (FedYogi, {"beta2": 1}, "beta2 must be below 1"),
        (FedAdagrad, {"tau": 0}, "tau must be a positive number"),
        (FedAdam, {"bias_correction": 1}, "bias_correction must be true or false"),
    ],
)
def test_bad_options(rule, options, message):
    with pytest.raises(RuleError, match=message):
        rule(**options)


def test_complex_tensors_are_refused():
    with pytest.raises(RuleError, match="'w' is complex"):
        FedAdam().init({"w": np.zeros(2, dtype=complex)}, 2)
