import numpy as np
import pytest
from federations import federation
from server_rounds import same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job
from pluribus.federated.server import Curriculum, FedAvg
from pluribus.federated.server.control.curriculum import sample_losses
from pluribus.federated.training import LocalTraining


def test_all_samples_is_fedavg_bit_for_bit():
    setup = federation(clients=3)
    one = simulate(setup, Curriculum(start=1.0), seed=1, rounds=2)
    same_bits(one.state["params"], simulate(setup, FedAvg(), seed=1, rounds=2).state["params"])


def test_pacing():
    rule = Curriculum(start=0.2, rounds=4)
    np.testing.assert_allclose([rule.share(t) for t in range(6)], [0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert Curriculum(start=0.2, rounds=4, power=0.5).share(1) == pytest.approx(0.6)


class Seen:
    """A model that keeps what it was trained on."""

    def __init__(self, model):
        self.model, self.samples = model, []

    def loss_and_grad(self, params, batch):
        self.samples += [tuple(row) for row in batch.x]
        return self.model.loss_and_grad(params, batch)

    def probabilities(self, params, x):
        return self.model.probabilities(params, x)


@pytest.mark.parametrize("order", ["easy", "hard", "random"])
def test_a_client_trains_on_the_right_samples(order):
    setup = federation(clients=3)
    params, dataset = setup.model.init(1), setup.clients[0]
    model = Seen(setup.model)
    job = Job(model, params, {}, dataset, LocalTraining(), {}, seed=5, round=0, client=0)
    report = Curriculum(order=order, start=0.25).client.train(job)
    count = int(np.ceil(0.25 * len(dataset)))
    assert report.steps == -(-count // 32)
    losses = -np.log(setup.model.probabilities(params, dataset.x)[np.arange(len(dataset)), dataset.y])
    np.testing.assert_allclose(sample_losses(setup.model, params, dataset), losses, rtol=1e-5)
    easiest = np.sort(losses)[:count]
    used = np.sort([losses[np.flatnonzero((dataset.x == row).all(axis=1))[0]] for row in model.samples])
    assert len(used) == count
    if order == "easy":
        np.testing.assert_allclose(used, easiest)
    elif order == "hard":
        np.testing.assert_allclose(used, np.sort(losses)[-count:])
    else:
        assert used.max() > easiest.max()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_a_trained_model_easy_samples_are_easier_to_agree_on(seed):
    """Local gradients differ less between clients on easy samples than on as many random ones; not in round 1."""
    from pluribus.federated.models import Batch

    setup = federation(seed, clients=10, partition="dirichlet:0.3", model="mlp:16", epochs=2)
    params = simulate(setup, FedAvg(), seed=seed, rounds=12, eval_every=12).state["params"]

    def spread(order):
        found = []
        for i, dataset in enumerate(setup.clients):
            losses = sample_losses(setup.model, params, dataset)
            rank = losses if order == "easy" else np.random.default_rng([seed, i]).random(len(losses))
            chosen = np.argsort(rank)[: max(1, len(losses) * 3 // 10)]
            _, grads = setup.model.loss_and_grad(params, Batch(dataset.x[chosen], dataset.y[chosen]))
            found.append(np.concatenate([g.ravel() for g in grads.values()]))
        return np.linalg.norm(found - np.mean(found, axis=0), axis=1).mean()

    assert spread("easy") < spread("random")


def test_bad_input_is_told():
    for bad, match in (({"start": 0.0}, "start must be"), ({"start": 2.0}, "at most 1"), ({"order": "odd"}, "one of")):
        with pytest.raises(RuleError, match=match):
            Curriculum(**bad)
