import numpy as np
import pytest
from federations import federation
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import QFFL, FedAvg


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_the_step_written_out(q):
    rng = np.random.default_rng(0)
    deltas, losses, sizes = rng.normal(size=(4, 3)), rng.uniform(0.1, 3.0, size=4), np.array([1.0, 2.0, 3.0, 4.0])
    rule = QFFL(q=q, lr=0.2)
    state = rule.step(rule.init({"w": np.ones(3)}, 4), plain(deltas, sizes, losses=losses))
    top, bottom = np.zeros(3), 0.0
    for p, delta, loss in zip(sizes / sizes.sum(), deltas, losses + 1e-10, strict=True):
        gradient = -delta / 0.2
        top += p * loss**q * gradient
        bottom += p * (q * loss ** (q - 1) * (gradient @ gradient) + loss**q / 0.2)
    np.testing.assert_allclose(state["params"]["w"], 1 - top / bottom, rtol=1e-9)


def test_without_fairness_it_is_fedavg():
    setup = federation(clients=3)
    for weighting in ("size", "uniform"):
        one = simulate(setup, QFFL(q=0.0, weighting=weighting), seed=1, rounds=2).state["params"]
        other = simulate(setup, FedAvg(weighting=weighting), seed=1, rounds=2).state["params"]
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-7)


def test_large_losses_and_powers_do_not_overflow_and_the_worst_counts_most():
    rule = QFFL(q=50.0)
    state = rule.step(rule.init({"w": np.zeros(2)}, 2), plain(np.eye(2), losses=np.array([1e-3, 1e6])))
    assert np.isfinite(state["params"]["w"]).all()
    assert state["weights"][1] == pytest.approx(1.0)
    state = QFFL().step(rule.init({"w": np.zeros(2)}, 2), plain(np.eye(2), losses=np.zeros(2)))
    assert np.isfinite(state["params"]["w"]).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_worst_client_gains(seed):
    """On quadratics, with their true losses, the largest loss at the end falls as q grows."""
    rng = np.random.default_rng(seed)
    targets, curvatures = rng.normal(size=(4, 2)), rng.uniform(0.5, 2.0, size=(4, 2))

    def losses(w):
        return (0.5 * curvatures * (w - targets) ** 2).sum(axis=1)

    ends = []
    for q in (0.0, 1.0, 4.0):
        rule = QFFL(q=q, lr=0.05)
        state = rule.init({"w": np.zeros(2)}, 4)
        for _ in range(300):
            w = state["params"]["w"]
            state = rule.step(state, plain(-0.05 * curvatures * (w - targets), losses=losses(w)))
        ends.append(losses(state["params"]["w"]).max())
    assert ends[0] > ends[1] > ends[2]


def test_bad_input_is_told():
    rule = QFFL()
    with pytest.raises(RuleError, match=r"needs each participant's loss .* `Round.losses`"):
        rule.step(rule.init({"w": np.zeros(2)}, 2), plain(np.ones((2, 2))))
    with pytest.raises(RuleError, match="losses >= 0"):
        rule.step(rule.init({"w": np.zeros(2)}, 2), plain(np.ones((2, 2)), losses=np.array([1.0, -1.0])))
    with pytest.raises(RuleError, match="q must be"):
        QFFL(q=-1.0)
