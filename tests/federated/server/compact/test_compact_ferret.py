import numpy as np
import pytest
from federations import federation
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.seeding import generator
from pluribus.federated.server import FedAvg, Ferret
from pluribus.federated.server.compact import ferret
from pluribus.federated.server.compact.ferret import FerretClient, products, rebuild


def test_both_ends_draw_the_same_directions_blocks_or_not(monkeypatch):
    change = {"b": np.arange(6.0).reshape(2, 3), "a": np.ones(4)}
    shapes = {name: value.shape for name, value in change.items()}
    monkeypatch.setattr(ferret, "BLOCK", 3 * 5)  # three rows of V at a time
    values = products(change, 5, draw=7, client=2)
    flat = np.concatenate([change["a"], change["b"].ravel()])
    v = np.concatenate(
        [generator(7, "ferret.directions", 2, k).standard_normal((min(3, 10 - 3 * k), 5)) for k in range(4)]
    )
    np.testing.assert_allclose(values, v.T @ flat / 5, rtol=1e-6)
    rebuilt = rebuild(values, shapes, draw=7, client=2)
    found = np.concatenate([rebuilt["a"], rebuilt["b"].ravel()])
    np.testing.assert_allclose(found, v @ np.asarray(values, dtype=float), rtol=1e-12)
    assert (products(change, 5, draw=7, client=3) != values).all()
    assert (products(change, 5, draw=8, client=2) != values).all()


def test_the_reconstruction_is_unbiased_and_its_error_is_as_stated():
    d, directions, draws = 30, 20, 4000
    delta = {"w": np.random.default_rng(0).normal(size=d)}
    rebuilt = np.stack([rebuild(products(delta, directions, k, 0), {"w": (d,)}, k, 0)["w"] for k in range(draws)])
    size = np.linalg.norm(delta["w"])
    errors = ((rebuilt - delta["w"]) ** 2).sum(axis=1) / size**2
    assert errors.mean() == pytest.approx((d + 1) / directions, rel=0.05)
    assert np.linalg.norm(rebuilt.mean(axis=0) - delta["w"]) / size < 4 * np.sqrt((d + 1) / directions / draws)


def test_the_step_written_out():
    rng = np.random.default_rng(1)
    deltas, sizes = [{"w": rng.normal(size=5)} for _ in range(3)], np.array([1.0, 2.0, 3.0])
    told = [{"products": {"values": products(d, 4, 0, i), "draw": np.array(0)}} for i, d in enumerate(deltas)]
    rule = Ferret(directions=4, server_lr=0.3)
    state = rule.step(rule.init({"w": np.ones(5)}, 3), plain(np.zeros((3, 5)), sizes, messages=told))
    expected = np.ones(5)
    for i in range(3):
        expected += 0.3 * sizes[i] / 6 * rebuild(told[i]["products"]["values"], {"w": (5,)}, 0, i)["w"]
    np.testing.assert_allclose(state["params"]["w"], expected, rtol=1e-12)
    assert int(state["draws"]) == 1


def test_the_message_is_k_numbers_and_the_update_is_none():
    seen = []

    class Watched(Ferret):
        def advance(self, state, round):
            seen.extend(zip(round.updates, round.messages, strict=True))
            return super().advance(state, round)

    simulate(federation(clients=3), Watched(directions=32), seed=0, rounds=2)
    for update, message in seen:
        assert not any(value.any() for value in update.values())
        assert FerretClient.upload_bytes(update, message) == 32 * 4 + 8


def test_on_digits_it_follows_fedavg():
    """d / K = 10; mean accuracy over 3 seeds within 2 points."""
    gaps = []
    for seed in range(3):
        setup = federation(seed, clients=10, partition="dirichlet:1", epochs=2, model="mlp:16")
        size = sum(value.size for value in setup.model.init(0).values())
        ends = [
            simulate(setup, rule, seed=seed, rounds=20, eval_every=20).history.accuracy[-1]
            for rule in (FedAvg(), Ferret(directions=size // 10))
        ]
        gaps.append(ends[0] - ends[1])
    assert abs(np.mean(gaps)) < 0.02


def test_bad_input_is_told():
    with pytest.raises(RuleError, match="directions must be a whole number"):
        Ferret(directions=0)
    rule = Ferret()
    with pytest.raises(RuleError, match=r"Ferret\(\)\.client"):
        rule.step(rule.init({"w": np.zeros(2)}, 2), plain(np.ones((2, 2))))
