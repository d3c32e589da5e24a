from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from server_rounds import same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job
from pluribus.federated.data import Dataset
from pluribus.federated.models import Batch, Softmax, softmax
from pluribus.federated.server import FedLabel
from pluribus.federated.server.control.fedlabel import FedLabelClient
from pluribus.federated.training import LocalTraining


def loss(z, everybody, threshold, kl, judge="surer"):
    """The unlabelled loss as the formula has it; pseudo-labels are constants."""
    total = 0.0
    for scores, g in zip(z, everybody, strict=True):
        p = np.exp(scores) / np.exp(scores).sum()
        judged = {"local": p, "global": g}.get(judge, p if p.max() >= g.max() else g)
        if judged.max() > threshold:
            total += -np.log(p[judged.argmax()])
            if p.argmax() == g.argmax():
                total += kl * (p * np.log(p / g)).sum()
    return total / len(z)


@pytest.mark.parametrize("judge", ["surer", "local", "global"])
def test_the_slope_against_differences(judge):
    rng = np.random.default_rng(0)
    z, everybody = rng.normal(scale=2, size=(12, 4)), softmax(rng.normal(scale=2, size=(12, 4)))
    client = FedLabelClient(0.1, 0.6, 0.7, judge, 0)
    slope = client.slope(softmax(z), everybody)
    for place in np.ndindex(z.shape):
        ends = []
        for sign in (1, -1):
            moved = z.copy()
            moved[place] += sign * 1e-6
            ends.append(loss(moved, everybody, 0.6, 0.7, judge))
        assert slope[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-7)
    unsure = np.flatnonzero(np.maximum(softmax(z).max(axis=1), everybody.max(axis=1)) <= 0.6)
    assert len(unsure)
    assert not slope[unsure].any()


def test_steps_written_out_by_differences():
    """Three steps on six samples of which three have labels; from the second on the two models differ."""
    rng = np.random.default_rng(2)
    model = Softmax(4, 3)
    start = {"output.weight": 2 * rng.normal(size=(3, 4)), "output.bias": rng.normal(size=3)}
    dataset = Dataset(rng.normal(size=(6, 4)), np.array([0, 1, 2, 0, 1, 2]), 3)
    how = LocalTraining(epochs=3, batch_size=10, lr=0.5)
    job = Job(model, start, {}, dataset, how, {}, seed=4, round=0, client=0)
    client = FedLabelClient(0.5, 0.4, 0.7, "surer", 0)
    known = client.known(6, 0)
    labelled, x = Batch(dataset.x[known], dataset.y[known]), dataset.x[~known]
    everybody = model.probabilities(start, x)
    w = {name: value.copy() for name, value in start.items()}

    def whole(tree):
        return model.loss_and_grad(tree, labelled)[0] + loss(model.logits(tree, x), everybody, 0.4, 0.7)

    for _ in range(3):
        slopes = {}
        for name, value in w.items():
            slopes[name] = np.zeros_like(value)
            for place in np.ndindex(value.shape):
                ends = []
                for sign in (1, -1):
                    moved = value.copy()
                    moved[place] += sign * 1e-6
                    ends.append(whole(w | {name: moved}))
                slopes[name][place] = (ends[0] - ends[1]) / 2e-6
        w = {name: value - 0.5 * slopes[name] for name, value in w.items()}
    for name, value in client.train(job).params.items():
        np.testing.assert_allclose(value, w[name], rtol=1e-5, atol=1e-7)
    assert loss(model.logits(w, x), everybody, 0.4, 0.7) != loss(model.logits(w, x), everybody, 0.4, 0.0)


def test_where_both_models_are_one_it_is_pseudo_labelling_without_kl():
    p = softmax(np.random.default_rng(1).normal(scale=3, size=(9, 4)))
    with_kl, without = (FedLabelClient(0.1, 0.5, kl, "surer", 0).slope(p, p) for kl in (5.0, 0.0))
    np.testing.assert_allclose(with_kl, without, atol=1e-15)
    assert without.any()


def a_job(setup, **how):
    return Job(
        setup.model, setup.model.init(0), {}, setup.clients[0], LocalTraining(**how), {}, seed=4, round=0, client=0
    )


def test_threshold_one_trains_on_labelled_samples_only_for_as_many_steps():
    setup = federation(clients=3)
    job = a_job(setup, epochs=2)
    client = FedLabel(labelled=0.2, threshold=1.0).client
    known = client.known(len(job.dataset), 0)
    assert known.sum() == round(0.2 * len(known))
    how = replace(job.how, steps=job.how.planned_steps(len(job.dataset)))
    expected = replace(job, dataset=job.dataset.take(np.flatnonzero(known)), how=how).train()
    same_bits(client.train(job).params, expected.params)


def test_labels_of_the_others_are_never_looked_at():
    setup = federation(clients=3)
    job = a_job(setup)
    client = FedLabel(threshold=0.3).client
    known = client.known(len(job.dataset), 0)
    lies = np.where(known, job.dataset.y, 0)
    one, other = client.train(job), client.train(replace(job, dataset=job.dataset.with_labels(lies)))
    same_bits(one.params, other.params)
    assert (client.known(50, 1) != client.known(50, 2)).any()
    assert (FedLabel(seed=1).client.known(50, 1) != client.known(50, 1)).any()
    assert FedLabel(labelled=0.001).client.known(5, 0).sum() == 1


def test_all_labelled_is_plain_training():
    setup = federation(clients=3)
    job = a_job(setup)
    same_bits(FedLabel(labelled=1.0).client.train(job).params, job.train().params)


def test_on_digits_unlabelled_samples_do_no_harm():
    """Mean of 3 seeds; the published gain is within the spread at this size."""
    ends = {"pseudo": [], "labels": []}
    for seed in range(3):
        setup = federation(seed, clients=10, partition="dirichlet:0.3", epochs=2, model="mlp:16")
        for name, threshold in (("pseudo", 0.9), ("labels", 1.0)):
            run = simulate(setup, FedLabel(threshold=threshold), seed=seed, rounds=20, eval_every=20)
            ends[name].append(run.history.accuracy[-1])
    assert np.mean(ends["pseudo"]) > np.mean(ends["labels"]) - 0.02
    assert ends["pseudo"] != ends["labels"]


def test_bad_input_is_told():
    for bad in ({"labelled": 0.0}, {"labelled": 1.5}, {"threshold": 1.1}, {"judge": "both"}, {"kl": -1.0}):
        with pytest.raises(RuleError, match=next(iter(bad))):
            FedLabel(**bad)
