import numpy as np
import pytest
from federations import federation, quadratics
from server_rounds import same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.models import MLP, Batch, Softmax
from pluribus.federated.server import AdversarialTraining, FedAvg, adversarial_samples
from pluribus.federated.simulation import SimulationError, advance, begin


def test_radius_zero_is_fedavg_bit_for_bit():
    setup = federation(clients=3)
    one = simulate(setup, AdversarialTraining(radius=0.0), seed=1, rounds=2)
    same_bits(one.state["params"], simulate(setup, FedAvg(), seed=1, rounds=2).state["params"])


def test_for_two_classes_of_logistic_regression_the_ascent_finds_the_worst_corner():
    """There the worst sample within the box is x - radius sign(w_y - w_other), whatever the steps."""
    rng = np.random.default_rng(0)
    model = Softmax(4, 2)
    params = {"output.weight": rng.normal(size=(2, 4)), "output.bias": rng.normal(size=2)}
    x, y = rng.normal(size=(7, 4)), rng.integers(2, size=7)
    gap = params["output.weight"][y] - params["output.weight"][1 - y]
    moved = adversarial_samples(model, params, Batch(x, y), 0.3, ascents=3)
    np.testing.assert_allclose(moved, x - 0.3 * np.sign(gap), rtol=1e-12)
    round_ball = adversarial_samples(model, params, Batch(x, y), 0.3, ascents=3, norm="l2")
    np.testing.assert_allclose(round_ball, x - 0.3 * gap / np.linalg.norm(gap, axis=1, keepdims=True), rtol=1e-9)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_samples_stay_in_the_ball_and_their_loss_rises(norm):
    rng = np.random.default_rng(1)
    model = MLP(5, 8, 3)
    params, x, y = model.init(0), rng.normal(size=(20, 5)), rng.integers(3, size=20)
    moved = adversarial_samples(model, params, Batch(x, y), 0.2, norm=norm)
    sizes = np.abs(moved - x).max(axis=1) if norm == "linf" else np.linalg.norm(moved - x, axis=1)
    assert (sizes <= 0.2 * (1 + 1e-9)).all()
    assert sizes.max() > 0.19
    assert model.loss_and_grad(params, Batch(moved, y))[0] > model.loss_and_grad(params, Batch(x, y))[0]
    np.testing.assert_array_equal(adversarial_samples(model, params, Batch(x, y), 0.0), x)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_robust_accuracy_on_digits_is_above_fedavgs(seed):
    setup = federation(seed, clients=4, epochs=3, model="mlp:32", lr=0.2)

    def robust(rule):
        params = simulate(setup, rule, seed=seed, rounds=15, eval_every=15).state["params"]
        moved = adversarial_samples(setup.model, params, Batch(setup.test.x, setup.test.y), 0.15)
        return (setup.model.predict(params, moved) == setup.test.y).mean()

    assert robust(AdversarialTraining(radius=0.15)) > robust(FedAvg()) + 0.02


@pytest.mark.parametrize("steps", [1, 5])
def test_the_robust_loss_of_a_wide_network_falls(steps):
    """With one and with several local steps (batches) a round."""
    setup = federation(0, clients=3, model="mlp:128", batch_size=500 if steps == 1 else 100, lr=0.2)
    rule = AdversarialTraining(radius=0.05)
    run, losses = begin(setup, rule, 0, 9), []
    batch = Batch(*(np.concatenate([getattr(c, name) for c in setup.clients]) for name in ("x", "y")))
    for _ in range(9):
        run = advance(setup, rule, 0, run, eval_every=9)
        moved = adversarial_samples(setup.model, run.state["params"], batch, 0.05, ascents=3)
        losses.append(setup.model.loss_and_grad(run.state["params"], Batch(moved, batch.y))[0])
    assert losses[0] > losses[4] > losses[-1]


def test_bad_input_is_told():
    with pytest.raises(RuleError, match="norm must be one of 'linf', 'l2'"):
        AdversarialTraining(norm="l1")
    with pytest.raises(RuleError, match="ascents must be a whole number"):
        AdversarialTraining(ascents=0)
    setup, *_ = quadratics()
    with pytest.raises(SimulationError, match="Quadratic is no model"):
        simulate(setup, AdversarialTraining(), seed=0, rounds=1)
