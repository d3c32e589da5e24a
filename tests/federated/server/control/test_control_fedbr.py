import numpy as np
import pytest
from federations import federation
from server_rounds import same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job
from pluribus.federated.data import Dataset
from pluribus.federated.models import MLP, Batch, softmax
from pluribus.federated.server import FedAvg, FedBR
from pluribus.federated.server.control.fedbr import FedBRClient, contrast_slopes
from pluribus.federated.training import LocalTraining


def skewed(seed, **settings):
    return federation(
        seed, **({"clients": 10, "partition": "dirichlet:0.1", "epochs": 2, "model": "mlp:16"} | settings)
    )


def contrast(local, everybody, mine, tau):
    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / (np.linalg.norm(a) * np.linalg.norm(b))

    return np.mean(
        [
            -np.log(np.exp(tau * cosine(a, b)) / (np.exp(tau * cosine(a, b)) + np.exp(tau * cosine(a, c))))
            for a, b, c in zip(local, everybody, mine, strict=True)
        ]
    )


def test_slopes_of_the_contrast_against_differences():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(4, 3)) for _ in range(3)]
    for number, slope in enumerate(contrast_slopes(*parts, 2.0)):
        for place in np.ndindex(4, 3):
            ends = []
            for sign in (1, -1):
                moved = [part.copy() for part in parts]
                moved[number][place] += sign * 1e-6
                ends.append(contrast(*moved, 2.0))
            assert slope[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-8)
    zeros = contrast_slopes(np.zeros((2, 3)), np.ones((2, 3)), np.ones((2, 3)), 1.0)
    assert all(np.isfinite(value).all() for value in zeros)


def test_a_clients_step_written_out():
    """One step on one batch: the projection climbs, then the model descends all three terms, by differences."""
    rng = np.random.default_rng(1)
    model = MLP(4, 3, 2, activation="tanh")
    params = {name: rng.normal(size=value.shape) for name, value in model.init(0).items()}
    x, y, pseudo = rng.normal(size=(5, 4)), np.array([0, 1, 1, 0, 1]), rng.normal(size=(1, 4))
    projection = rng.normal(size=(3, 3))
    job = Job(
        model,
        params,
        {"pseudo": pseudo, "projection": {"weight": projection}},
        Dataset(x, y, 2),
        LocalTraining(batch_size=5, lr=0.1),
        {},
        seed=3,
        round=1,
        client=0,
    )
    report = FedBRClient(balance=0.7, contrast=0.4, tau=2.0, count=2, mix=3).train(job)
    order = np.arange(5)  # all five in one batch; pseudo-samples are one and the same, so the order does not matter

    def hidden(tree, samples):
        return np.tanh(samples @ tree["hidden.weight"].T + tree["hidden.bias"])

    u = np.repeat(pseudo, 5, axis=0)

    def term(tree, p, through=params):
        return contrast(hidden(tree, u) @ p.T, hidden(through, u) @ p.T, hidden(tree, x[order]) @ p.T, 2.0)

    def slope(function, array):
        found = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[place] += sign * 1e-6
                ends.append(function(moved))
            found[place] = (ends[0] - ends[1]) / 2e-6
        return found

    climbed = projection + 0.1 * slope(lambda p: term(params, p), projection)
    np.testing.assert_allclose(report.message["projection"]["weight"], climbed - projection, rtol=1e-5, atol=1e-8)

    def loss(tree):
        z = hidden(tree, u) @ tree["output.weight"].T + tree["output.bias"]
        balance = -np.log(softmax(z)).mean(axis=1).mean()
        return model.loss_and_grad(tree, Batch(x, y))[0] + 0.7 * balance + 0.4 * term(tree, climbed)

    for name, value in params.items():
        expected = value - 0.1 * slope(lambda v, n=name: loss(params | {n: v}), value)
        np.testing.assert_allclose(report.params[name], expected, rtol=1e-6, atol=1e-7)


def test_without_its_terms_it_is_fedavg_bit_for_bit_and_pseudo_samples_are_sent_once():
    setup = federation(clients=3)
    rule = FedBR(balance=0.0, contrast=0.0)
    run = simulate(setup, rule, seed=1, rounds=2)
    same_bits(run.state["params"], simulate(setup, FedAvg(), seed=1, rounds=2).state["params"])
    assert run.state["filled"].all()
    assert run.state["pseudo"].shape == (3 * 8, 64)
    first = simulate(setup, rule, seed=1, rounds=1)
    same_bits({"p": run.state["pseudo"]}, {"p": first.state["pseudo"]})
    x = setup.clients[0].x
    assert x.min(axis=0).min() <= run.state["pseudo"][:8].min() <= run.state["pseudo"][:8].max() <= x.max()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_skewed_digits_balance_rises_and_accuracy_with_it(seed):
    setup = skewed(seed)
    ends, accuracy = [], []
    for weight in (0.0, 0.5, 2.0):
        run = simulate(setup, FedBR(balance=weight, contrast=0.0), seed=seed, rounds=12, eval_every=12)
        p = setup.model.probabilities(run.state["params"], run.state["pseudo"])
        ends.append(-(p * np.log(p + 1e-12)).sum(axis=1).mean())
        accuracy.append(run.history.accuracy[-1])
    assert ends[0] < ends[1] < ends[2]
    assert accuracy[1] > accuracy[0]


def test_both_parts_are_used():
    setup = skewed(0, clients=3)
    ends = [
        simulate(setup, FedBR(balance=b, contrast=c), seed=0, rounds=3).state["params"]["hidden.weight"]
        for b, c in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    ]
    assert not np.allclose(ends[0], ends[1])
    assert not np.allclose(ends[0], ends[2])


def test_bad_input_is_told():
    with pytest.raises(RuleError, match="take the model mlp:H"):
        FedBR().init({"output.weight": np.zeros((2, 3)), "output.bias": np.zeros(2)}, 3)
    for bad in ({"tau": 0.0}, {"count": 0}, {"balance": -1.0}):
        with pytest.raises(RuleError, match=next(iter(bad))):
            FedBR(**bad)
