"""The loop: what a round does, that it is a function of its seed, and what the history means."""

from __future__ import annotations

import dataclasses
import gc
import tracemalloc

import numpy as np
import pytest

from pluribus.federated import data, server, simulate, training
from pluribus.federated.history import History
from pluribus.federated.measuring import accuracy_of_clients, measure
from pluribus.federated.participation import Cyclic
from pluribus.federated.seeding import derived
from pluribus.federated.setup import build, fingerprint, load
from pluribus.federated.simulation import SimulationError, advance, begin


def setup_of(settings, seed=0):
    return build(settings, load(settings), seed)


def same(one: History, other: History) -> bool:
    return all(getattr(one, f.name).tobytes() == getattr(other, f.name).tobytes() for f in dataclasses.fields(History))


def test_a_round_of_fedavg_by_hand(settings_of):
    setup, rule = setup_of(settings_of()), server.parse("fedavg")
    start = begin(setup, rule, 3, 1)
    assert start.state["params"].keys() == {"output.weight", "output.bias"}
    after = advance(setup, rule, 3, start)
    sizes = np.array([len(client) for client in setup.clients])
    locals_ = [
        training.train(
            setup.model, start.state["params"], client, setup.training, derived(3, "simulation.training", 0, i)
        ).params
        for i, client in enumerate(setup.clients)
    ]
    for name, value in after.state["params"].items():
        by_hand = sum(n * tree[name].astype(float) for n, tree in zip(sizes, locals_, strict=True)) / sizes.sum()
        np.testing.assert_allclose(value, by_hand, atol=1e-6)
    np.testing.assert_allclose(after.history.weights[0], sizes / sizes.sum())
    assert after.history.effective[0] == pytest.approx(sizes.sum() ** 2 / (sizes**2).sum())


def test_the_same_seed_the_same_bits_and_another_seed_others(settings_of):
    setup, rule = setup_of(settings_of(participation="bernoulli:0.6")), server.parse("fedavgm")
    one, two, other = (simulate(setup, rule, seed, rounds=5).history for seed in (1, 1, 2))
    assert same(one, two)
    assert not np.array_equal(one.present, other.present)


def test_earlier_rounds_do_not_know_of_later_ones(settings_of):
    setup, rule = setup_of(settings_of(attack="gaussian:2")), server.parse("median")
    short, long = (simulate(setup, rule, 0, rounds=rounds).history for rounds in (3, 6))
    assert short.accuracy.tobytes() == long.accuracy[:3].tobytes()
    assert short.weights.tobytes() == long.weights[:3].tobytes()


def test_nothing_depends_on_when_it_is_measured(settings_of):
    setup, rule = setup_of(settings_of()), server.parse("fedavg")
    often, seldom = (simulate(setup, rule, 0, rounds=5, eval_every=every).history for every in (1, 3))
    assert np.isfinite(often.accuracy).all()
    assert np.isfinite(seldom.accuracy).tolist() == [False, False, True, False, True]
    assert seldom.accuracy[[2, 4]].tolist() == often.accuracy[[2, 4]].tolist()
    assert seldom.client_accuracy.tolist() == often.client_accuracy.tolist()


def test_learning_happens(settings_of):
    setup = setup_of(settings_of())
    history = simulate(setup, server.parse("fedavg"), 0, rounds=15).history
    assert history.accuracy[-1] > 0.6
    assert history.loss[-1] < history.loss[0]
    assert history.train_loss[-1] < history.train_loss[0]


def test_a_round_without_anybody_leaves_the_model(settings_of):
    setup = dataclasses.replace(setup_of(settings_of()), participation=Cyclic((tuple(range(6)), ())))
    run = simulate(setup, server.parse("fedavg"), 0, rounds=4)
    h = run.history
    assert h.present.sum(axis=1).tolist() == [6, 0, 6, 0]
    assert h.accuracy[0] == h.accuracy[1]
    assert np.isnan(h.weights[1]).all()
    assert np.isnan(h.effective[1])
    assert np.isnan(h.train_loss[1])
    assert h.status.tolist() == [0, 1, 0, 1]
    assert np.isnan(h.gram).all()  # nobody in the last round
    assert np.isfinite(h.client_accuracy).all()


@pytest.mark.parametrize("rule", ["fedavg", "median", "krum", "fedlaw", "centered_clipping:radius=1", "fedadam"])
def test_one_nan_client_is_harmless(settings_of, rule):
    setup = setup_of(settings_of(attack="nan:1", clients=8))
    history = simulate(setup, server.parse(rule, attackers=1), 0, rounds=4).history
    bad = setup.attackers[0]
    assert np.isnan(history.weights[:, bad]).all()
    assert history.present[:, bad].all()
    assert np.isfinite(np.delete(history.weights, bad, axis=1)).all()
    assert np.isfinite(history.loss).all()
    assert np.isnan(history.gram[bad]).all()
    assert np.isfinite(np.delete(np.delete(history.gram, bad, 0), bad, 1)).all()


def test_attackers_send_what_the_attack_says(settings_of):
    seen = []

    class Spy(type(server.parse("fedavg"))):
        def step(self, state, round):
            seen.append(round)
            return super().step(state, round)

    setup = setup_of(settings_of(attack="sign_flip:2:3"))
    simulate(setup, Spy(), 0, rounds=1)
    honest = dataclasses.replace(setup, attack=None, attackers=())
    simulate(honest, Spy(), 0, rounds=1)
    for i, (sent, own) in enumerate(zip(seen[0].updates, seen[1].updates, strict=True)):
        factor = -3 if i in setup.attackers else 1
        for name in own:
            np.testing.assert_allclose(sent[name], factor * own[name], rtol=1e-6)
    assert seen[0].total_size == len(load(settings_of())) - len(setup.test) - len(setup.proxy)
    np.testing.assert_array_equal(seen[0].label_counts, setup.label_counts)


def test_label_flip_and_noise_change_what_clients_tell_but_not_what_they_are(settings_of):
    plain = setup_of(settings_of())
    noisy = setup_of(settings_of(label_noise="2:1", attack="label_flip:1"))
    np.testing.assert_array_equal(noisy.true_counts, plain.true_counts)
    np.testing.assert_array_equal(noisy.sizes, plain.sizes)
    assert len(noisy.noisy) == 2
    for i in range(6):
        changed = not np.array_equal(noisy.clients[i].y, plain.clients[i].y)
        assert changed == (i in noisy.noisy or i in noisy.attackers)
    (flipper,) = set(noisy.attackers)
    if flipper not in noisy.noisy:
        np.testing.assert_array_equal(noisy.clients[flipper].y, 2 - plain.clients[flipper].y)


def test_all_rules_of_a_seed_see_the_same_clients_whatever_the_proxy_is_for(settings_of):
    one, other = setup_of(settings_of(rules="fedavg")), setup_of(settings_of(rules="fedlaw"))
    assert fingerprint(one.clients[0]) == fingerprint(other.clients[0])
    assert fingerprint(one.clients[0]) != fingerprint(setup_of(settings_of(), seed=1).clients[0])


def test_accuracy_of_a_client_is_what_its_own_classes_get():
    by_class = np.array([1.0, 0.5, np.nan])
    counts = np.array([[10, 0, 0], [5, 5, 0], [0, 1, 9], [0, 0, 4]])
    np.testing.assert_allclose(accuracy_of_clients(by_class, counts), [1.0, 0.75, 0.5, np.nan])


def test_measures_by_hand():
    class Fixed:
        def probabilities(self, params, x):
            return np.array([[0.7, 0.3], [0.4, 0.6], [0.0, 1.0]])

    test = data.Dataset(np.zeros((3, 1)), np.array([0, 0, 0]), 2)
    by_class, accuracy, loss = measure(Fixed(), {}, test)
    assert accuracy == pytest.approx(1 / 3)
    np.testing.assert_allclose(by_class, [1 / 3, np.nan])
    tiny = float(np.finfo(np.float32).tiny)
    assert loss == pytest.approx(-(np.log(0.7) + np.log(0.4) + np.log(tiny)) / 3)


def test_a_model_that_diverged_is_a_result_and_no_crash(settings_of):
    setup = setup_of(settings_of(lr=1e30, model="mlp:4"))
    history = simulate(setup, server.parse("fedavg"), 0, rounds=3).history
    assert np.isfinite(history.accuracy).all()
    assert (history.status != 0).any()


def test_the_relation_is_of_the_last_round(settings_of):
    setup = setup_of(settings_of(attack="sign_flip:1"))
    history = simulate(setup, server.parse("fedavg"), 0, rounds=3).history
    np.testing.assert_allclose(np.diag(history.cosines), 1)
    liar = setup.attackers[0]
    honest = np.delete(np.delete(history.cosines, liar, 0), liar, 1)
    assert np.delete(history.cosines[liar], liar).mean() < honest.mean()
    d = np.diag(history.gram)[:, None] + np.diag(history.gram)[None] - 2 * history.gram
    np.testing.assert_allclose(history.squared_distances, d, atol=1e-9)


def test_a_failing_round_is_named(settings_of):
    class Broken(type(server.parse("fedavg"))):
        def step(self, state, round):
            if round.number == 2:
                raise ZeroDivisionError("by zero")
            return super().step(state, round)

    setup = setup_of(settings_of())
    with pytest.raises(SimulationError, match=r"^round 3: ZeroDivisionError: by zero$") as caught:
        simulate(setup, Broken(), 0, rounds=4)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_start_must_be_of_as_many_rounds(settings_of):
    setup, rule = setup_of(settings_of()), server.parse("fedavg")
    with pytest.raises(SimulationError, match="of 3 rounds, not of 4"):
        simulate(setup, rule, 0, rounds=4, start=begin(setup, rule, 0, 3))


def test_memory_is_flat_over_the_rounds(settings_of):
    setup, rule, held = setup_of(settings_of(clients=3)), server.parse("fedavgm"), {}

    def look(run):
        if run.round in (20, 80):
            gc.collect()  # frees Python's own stock of spare tuples, too
            held[run.round] = tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        simulate(setup, rule, 0, rounds=80, eval_every=40, after_round=look)
    finally:
        tracemalloc.stop()
    assert held[80] - held[20] < 40_000, held  # one round's updates kept would be 90,000
