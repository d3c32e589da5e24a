"""Attacks that hide: copies of one client, bounds on distances, z searched against the server, idlers, back doors."""

import numpy as np
import pytest

import pluribus
from pluribus import rules
from pluribus.federated import attacks
from pluribus.federated.attacks import Attack, Scene, Trigger
from pluribus.federated.data import Dataset
from pluribus.federated.errors import SettingError


def _trees(n, seed=0, loc=0.0):
    rng = np.random.default_rng(seed)
    return [
        {"w": loc + rng.normal(size=(3, 4)), "b": (loc + rng.normal(size=5)).astype(np.float32), "counter": np.array(i)}
        for i in range(n)
    ]


def _row(tree):
    return np.concatenate([tree["w"].ravel(), tree["b"].astype(float)])


def _rows(trees):
    return np.stack([_row(tree) for tree in trees])


HONEST, OWN = _trees(8, loc=0.5), _trees(3, seed=1)


# --- distances ------------------------------------------------------------------------------------------------------


def _direction(rows, name):
    mean = rows.mean(axis=0)
    return {"std": -rows.std(axis=0, ddof=1), "unit": -mean / np.linalg.norm(mean), "sign": -np.sign(mean)}[name]


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
@pytest.mark.parametrize("kind", ["min_max", "min_sum"])
@pytest.mark.parametrize("honest", [HONEST, _trees(2, 5), _trees(30, 6)], ids=["8", "2", "30"])
def test_as_far_as_the_bound_and_no_further(kind, direction, honest):
    """The bound holds with equality, and not a step further along the same line."""
    rows = _rows(honest)
    between = np.square(rows[:, None] - rows[None]).sum(axis=2)
    sent = Attack(kind, 3, variant=direction).poison_updates(honest, OWN, 0, 0)
    made = _row(sent[0])
    path = _direction(rows, direction)
    along = made - rows.mean(axis=0)
    gamma = along @ path / (path @ path)
    assert gamma > 0
    np.testing.assert_allclose(along, gamma * path, atol=1e-6)
    for step, inside in ((gamma * 0.999, True), (gamma * 1.001, False)):
        distances = np.square(rows.mean(axis=0) + step * path - rows).sum(axis=1)
        if kind == "min_max":
            assert (distances.max() <= between.max()) == inside
        else:
            assert (distances.sum() <= between.sum(axis=1).min()) == inside
    assert all(np.array_equal(tree["w"], sent[0]["w"]) for tree in sent)
    assert [int(tree["counter"]) for tree in sent] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["min_max", "min_sum"])
def test_with_one_honest_client_or_none_or_equal_ones(kind):
    one = Attack(kind, 3).poison_updates(HONEST[:1], OWN, 0, 0)
    np.testing.assert_allclose(_row(one[0]), _row(HONEST[0]), rtol=1e-6)
    same = Attack(kind, 3, variant="unit").poison_updates([HONEST[0]] * 4, OWN, 0, 0)
    np.testing.assert_allclose(_row(same[0]), _row(HONEST[0]), atol=1e-6)
    zero = [{"w": np.zeros((3, 4)), "b": np.zeros(5, np.float32), "counter": np.array(0)}] * 3
    assert not _row(Attack(kind, 3, variant="unit").poison_updates(zero, OWN, 0, 0)[0]).any()
    alone = Attack(kind, 3).poison_updates([], OWN, 0, 0)
    np.testing.assert_array_equal(_row(alone[0]), _row(Attack(kind, 3).poison_updates(OWN, OWN, 0, 0)[0]))


# --- adaptive z -----------------------------------------------------------------------------------------------------


def _server(rule, honest, asked):
    def defence(sent):
        asked.append(_row(sent[0]))
        value = pluribus.aggregate([{"w": t["w"], "b": t["b"]} for t in (*honest, *sent)], rule=rule).value
        return {**value, "counter": np.array(1)}

    return defence


@pytest.mark.parametrize("rule", [rules.Mean(), rules.Median(), rules.Krum(f=3), rules.TrimmedMean(f=3)], ids=str)
def test_adaptive_z_moves_the_server_furthest(rule):
    honest = _trees(9, seed=7, loc=0.5)
    asked: list = []
    defence = _server(rule, honest, asked)
    sent, z = attacks.alie_adaptive(honest, OWN, defence)
    assert len(asked) == 15
    quiet = _row(defence(attacks.alie(honest, OWN, 0.0)))

    def moved(z):
        return np.linalg.norm(_row(defence(attacks.alie(honest, OWN, z))) - quiet)

    best = moved(z)
    assert best >= max(moved(other) for other in (0.3, 0.5, 0.74, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0)) * 0.95
    np.testing.assert_array_equal(_row(sent[0]), _row(attacks.alie(honest, OWN, z)[0]))
    assert moved(attacks.alie_z_max(12, 3)) <= best * (1 + 1e-12)


def test_a_mean_is_moved_furthest_by_the_largest_z_and_krum_is_not():
    honest = _trees(9, seed=7, loc=0.5)
    assert attacks.alie_adaptive(honest, OWN, _server(rules.Mean(), honest, []))[1] == 32
    assert attacks.alie_adaptive(honest, OWN, _server(rules.Krum(f=3), honest, []))[1] < 4


def test_a_server_that_never_moves_gets_the_smallest_z_and_nan_counts_for_nothing():
    still = {"w": np.zeros((3, 4)), "b": np.zeros(5)}
    assert attacks.alie_adaptive(HONEST, OWN, lambda sent: still)[1] == pytest.approx(0.25 * 2**-0.75)

    def breaks(sent):
        far = np.abs(_row(sent[0])).max()
        return {"w": np.full((3, 4), np.nan if far > 3 else far), "b": np.zeros(5)}

    sent, _ = attacks.alie_adaptive(HONEST, OWN, breaks)
    assert np.abs(_row(sent[0])).max() <= 3


def test_adaptive_z_by_its_text():
    attack = attacks.parse("alie:3:adaptive")
    assert str(attack) == "alie:3:adaptive"
    sent, memory = attack.send(Scene(HONEST, OWN, defence=_server(rules.Mean(), HONEST, [])), {})
    np.testing.assert_array_equal(_row(sent[0]), _row(attacks.alie(HONEST, OWN, 32.0)[0]))
    assert memory == {}
    with pytest.raises(SettingError, match="asks the server's rule"):
        attack.poison_updates(HONEST, OWN, 0, 0)


def test_the_running_rule_as_a_defence():
    from pluribus.federated import server
    from pluribus.federated.server.base import Round

    rule = server.parse("fedavg:server_lr=0.5", attackers=1)
    state = rule.init(_model(1.0), 3)
    updates = [HONEST[0], OWN[0], HONEST[1]]
    round = Round(0, (0, 1, 2), updates, np.array([1.0, 1.0, 2.0]), 3, 4.0)
    moved = attacks.defence_of(rule, state, round, [1])([HONEST[2]])
    want = 0.5 * (HONEST[0]["w"] + HONEST[2]["w"] + 2 * HONEST[1]["w"]) / 4
    np.testing.assert_allclose(moved["w"], want, atol=1e-12)
    assert list(moved) == ["w", "b"]
    assert round.updates[1] is OWN[0]
    np.testing.assert_array_equal(state["params"]["w"], 1.0)


# --- mimic ----------------------------------------------------------------------------------------------------------


def _honest_round(number, n=6):
    """Clients that differ from each other along one axis, with a little noise of the round."""
    rng = np.random.default_rng(100 + number)
    axis = np.zeros((3, 4))
    axis[1, 2] = 1
    return [
        {"w": (i - 2.4) * axis + 0.1 * rng.normal(size=(3, 4)), "b": 0.1 * rng.normal(size=5), "counter": np.array(i)}
        for i in range(n)
    ]


def _by_the_reference(rounds, warmup, start):
    """The published iteration on stacked rows; which client is copied in each round."""
    chosen, mu, z = [], None, None
    for t, rows in enumerate(map(_rows, rounds)):
        average = rows.mean(axis=0)
        if t == 0:
            mu = average
            z = (rows - mu).T @ ((rows - mu) @ start)
            z /= np.linalg.norm(z)
        elif t < warmup:
            mu = t / (1 + t) * mu + average / (1 + t)
            u = (rows - mu).T @ ((rows - mu) @ z)
            z = t / (1 + t) * z + u / np.linalg.norm(u) / (1 + t)
            z /= np.linalg.norm(z)
        chosen.append(int(np.argmax(rows @ z)) if t < warmup else chosen[-1])
    return chosen, z


@pytest.mark.parametrize("warmup", [1, 4])
def test_mimic_is_the_published_iteration(warmup):
    from pluribus.federated.seeding import generator

    rng = generator(3, "attack.mimic")
    start = np.concatenate([rng.standard_normal((3, 4)).ravel(), rng.standard_normal(5)])
    rounds = [_honest_round(t) for t in range(8)]
    want, direction = _by_the_reference(rounds, warmup, start)
    attack, memory = Attack("mimic", 2, warmup), {}
    for t, honest in enumerate(rounds):
        sent, memory = attack.send(Scene(honest, OWN[:2], seed=3, round=t), memory)
        for tree, own in zip(sent, OWN, strict=False):
            np.testing.assert_array_equal(tree["w"], honest[want[t]]["w"])
            np.testing.assert_allclose(tree["b"], honest[want[t]]["b"], rtol=1e-6)
            assert tree["b"].dtype == own["b"].dtype
            assert tree["counter"] == own["counter"]
    np.testing.assert_allclose(_row(memory["direction"]), direction, atol=1e-12)
    # The axis on which clients differ was found, and with it a client at one of its ends.
    assert abs(memory["direction"]["w"][1, 2]) > 0.95
    assert want[-1] in (0, 5)


def test_mimic_stays_with_its_client_and_finds_another_where_it_is_missing():
    attack, memory = Attack("mimic", 1, 2), {}
    ids = [4, 7, 9, 12, 20, 21]
    for t in range(2):
        _, memory = attack.send(Scene(_honest_round(t), OWN[:1], round=t, clients=ids), memory)
    target = int(memory["target"])
    assert target in (4, 21)
    end, next_to_it = (0, 1) if target == 4 else (5, 4)
    honest = _honest_round(5)
    without = [k for k in range(6) if k != end]
    scene = Scene([honest[k] for k in without], OWN[:1], clients=[ids[k] for k in without])
    sent, after = attack.send(scene, memory)
    np.testing.assert_array_equal(sent[0]["w"], honest[next_to_it]["w"])
    assert int(after["target"]) == target
    sent, after = attack.send(Scene(honest, OWN[:1], clients=ids), after)
    np.testing.assert_array_equal(sent[0]["w"], honest[end]["w"])
    # Its client is copied even in a round in which another one lies further along.
    sent, _ = attack.send(Scene(honest[::-1], OWN[:1], clients=ids), after)
    np.testing.assert_array_equal(sent[0]["w"], honest[::-1][end]["w"])


def test_mimic_passes_over_broken_updates_and_rounds_without_honest_clients():
    honest = _honest_round(0)
    honest[0]["w"][0, 0] = np.nan
    sent, memory = Attack("mimic", 1).send(Scene(honest, OWN[:1]), {})
    assert np.isfinite(_row(sent[0])).all()
    assert np.isfinite(_row(memory["direction"])).all()
    for scene in (Scene([], OWN[:1]), Scene(honest[:1], OWN[:1], clients=[0])):
        sent, after = Attack("mimic", 1).send(scene, memory)
        np.testing.assert_array_equal(_row(sent[0]), _row(OWN[0]))
        assert int(after["seen"]) == 1
    assert Attack("mimic", 1).send(Scene(honest, []), memory) == ([], memory)


def test_what_a_mimic_remembers_is_not_changed_from_outside_its_calls():
    attack = Attack("mimic", 1)
    _, first = attack.send(Scene(_honest_round(0), OWN[:1]), {})
    kept = {name: value.copy() for name, value in first["direction"].items()}
    one = attack.send(Scene(_honest_round(1), OWN[:1]), first)[1]
    two = attack.send(Scene(_honest_round(1), OWN[:1]), first)[1]
    for name, value in kept.items():
        np.testing.assert_array_equal(first["direction"][name], value)
        np.testing.assert_array_equal(one["direction"][name], two["direction"][name])


# --- free riders ----------------------------------------------------------------------------------------------------


def _model(value):
    return {"w": np.full((3, 4), value), "b": np.full(5, -value, np.float32), "counter": np.array(int(value))}


def test_free_riders_send_nothing_or_what_the_model_changed_by():
    idle, _ = attacks.parse("free_rider:3").send(Scene(HONEST, OWN), {})
    lazy, memory = attacks.parse("free_rider:3:delta"), {}
    first, memory = lazy.send(Scene(HONEST, OWN, params=_model(2.0)), memory)
    second, memory = lazy.send(Scene(HONEST, OWN, params=_model(2.5)), memory)
    for sent, w, b in ((idle, 0, 0), (first, 0, 0), (second, 0.5, -0.5)):
        for tree, own in zip(sent, OWN, strict=True):
            np.testing.assert_array_equal(tree["w"], w)
            np.testing.assert_array_equal(tree["b"], b)
            assert tree["b"].dtype == np.float32
            assert tree["counter"] == own["counter"]
    np.testing.assert_array_equal(memory["params"]["w"], 2.5)
    with pytest.raises(SettingError, match="what the model is"):
        lazy.poison_updates(HONEST, OWN, 0, 0)


def test_noise_of_free_riders_is_each_ones_own():
    big = [{"w": np.zeros((100, 200))} for _ in range(2)]
    known = {"params": {"w": np.zeros((100, 200))}}
    scene = Scene([], big, seed=1, params={"w": np.ones((100, 200))})
    one, other = attacks.parse("free_rider:2:0.5:delta").send(scene, known)[0]
    assert one["w"].std() == pytest.approx(0.5, rel=0.03)
    assert one["w"].mean() == pytest.approx(1.0, abs=0.02)
    assert abs(np.corrcoef(one["w"].ravel(), other["w"].ravel())[0, 1]) < 0.05


# --- back doors -----------------------------------------------------------------------------------------------------


def _images(shape, n=40):
    rng = np.random.default_rng(2)
    return Dataset(rng.random((n, *shape)).astype(np.float32) / 2, rng.integers(0, 4, n), 4)


@pytest.mark.parametrize(
    ("shape", "corner"),
    [
        ((64,), [54, 55, 62, 63]),
        ((8, 8), [54, 55, 62, 63]),
        ((1, 8, 8), [54, 55, 62, 63]),
        ((2, 4, 4), [10, 11, 14, 15, 26, 27, 30, 31]),
        ((5,), [4]),
        ((30,), [27, 28, 29]),
    ],
)
def test_the_patch_is_in_the_corner(shape, corner):
    data = _images(shape)
    stamped = Trigger().stamped(data.x)
    assert stamped.shape == data.x.shape
    changed = (stamped != data.x).reshape(40, -1)
    assert (np.flatnonzero(changed.all(axis=0)) == corner).all()
    assert changed.any(axis=0).sum() == len(corner)
    assert (stamped[changed.reshape(data.x.shape)] == 1).all()


def test_half_of_what_an_attacker_trains_on_is_poisoned():
    data = _images((64,))
    poisoned = Attack("backdoor", 1).poison_data(data)
    np.testing.assert_array_equal(poisoned.y[::2], 0)
    np.testing.assert_array_equal(poisoned.y[1::2], data.y[1::2])
    np.testing.assert_array_equal(poisoned.x[::2], Trigger().stamped(data.x[::2]))
    np.testing.assert_array_equal(poisoned.x[1::2], data.x[1::2])
    assert data.x.max() < 1


def test_success_is_measured_on_other_classes_only():
    data = _images((64,))
    probe = attacks.backdoor_test(data, Trigger(target=2))
    assert len(probe) == (data.y != 2).sum()
    assert (probe.y == 2).all()
    np.testing.assert_array_equal(probe.x, Trigger().stamped(data.x[data.y != 2]))
    assert len(attacks.backdoor_test(data.take(np.flatnonzero(data.y == 0)))) == 0


def test_a_boost_scales_what_is_sent():
    sent = attacks.parse("backdoor:3:5").poison_updates(HONEST, OWN, 0, 0)
    for tree, own in zip(sent, OWN, strict=True):
        np.testing.assert_allclose(tree["w"], 5 * own["w"])
    same = attacks.parse("backdoor:3").poison_updates(HONEST, OWN, 0, 0)
    np.testing.assert_array_equal(same[0]["w"], OWN[0]["w"])


def test_a_back_door_opens_in_a_model_and_clean_samples_are_left_alone():
    from pluribus.federated import MLP, LocalTraining, data, training

    parts = data.split(data.digits(), 0)
    model, how = MLP(64, 32, 10, dtype="float32"), LocalTraining(epochs=8, lr=0.2)
    start = model.init(0)
    success = {}
    for name, samples in (("clean", parts.train), ("poisoned", Attack("backdoor", 1).poison_data(parts.train))):
        params = training.train(model, start, samples, how, seed=0).params
        probe = attacks.backdoor_test(parts.test)
        success[name] = (model.predict(params, probe.x) == probe.y).mean()
        assert (model.predict(params, parts.test.x) == parts.test.y).mean() > 0.85
    assert success["poisoned"] > 0.95
    assert success["clean"] < 0.1


# --- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "attack"),
    [
        ("alie:4:adaptive", Attack("alie", 4, variant="adaptive")),
        ("mimic:4", Attack("mimic", 4, 10)),
        ("mimic:4:1", Attack("mimic", 4, 1)),
        ("min_max:4", Attack("min_max", 4, variant="std")),
        ("min_max:4:std", Attack("min_max", 4)),
        ("min_sum:4:sign", Attack("min_sum", 4, variant="sign")),
        ("backdoor:2", Attack("backdoor", 2, 1.0)),
        ("free_rider:2", Attack("free_rider", 2, 0.0)),
        ("free_rider:2:0.01:delta", Attack("free_rider", 2, 0.01, "delta")),
        ("free_rider:2:delta", Attack("free_rider", 2, variant="delta")),
    ],
)
def test_texts_name_attacks(text, attack):
    assert attacks.parse(text) == attack
    assert attacks.parse(str(attack)) == attack


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: attacks.parse("alie:4:1.5:adaptive"), "adaptive finds z itself"),
        (lambda: attacks.parse("min_max:4:2"), "nothing else but one of its forms"),
        (lambda: attacks.parse("min_max:4:left"), "no number"),
        (lambda: attacks.parse("min_max:4:std:unit"), "how many clients"),
        (lambda: attacks.parse("mimic:4:0"), "warmup is 0"),
        (lambda: attacks.parse("mimic:4:1.5"), "whole number"),
        (lambda: attacks.parse("free_rider:4:-1"), "noise is -1"),
        (lambda: Attack("ipm", 3, variant="delta"), "none of its forms; expected no word"),
        (lambda: Attack("min_max", 3, variant="left"), "expected std, unit, sign"),
        (lambda: attacks.parse("mimik:4"), "did you mean mimic"),
        (lambda: Trigger(size=9).stamped(np.zeros((2, 64))), "size 9 does not fit"),
        (lambda: attacks.backdoor_test(_images((64,)), Trigger(target=4)), "class 4.*0..3"),
    ],
)
def test_bad_attacks_are_told(make, words):
    with pytest.raises(SettingError, match=words):
        make()
