"""Attacks against their formulas, written with numpy on stacked rows."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import norm

from pluribus.federated import attacks
from pluribus.federated.data import Dataset
from pluribus.federated.errors import SettingError


def _trees(n, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {"w": rng.normal(size=(3, 2)), "b": rng.normal(size=4).astype(np.float32), "counter": np.array(i)}
        for i in range(n)
    ]


HONEST, OWN = _trees(6), _trees(3, seed=1)


def _stack(trees, name):
    return np.stack([tree[name].astype(np.float64) for tree in trees])


def _check_shape(sent):
    assert len(sent) == len(OWN)
    for tree, own in zip(sent, OWN, strict=True):
        assert {k: (v.shape, v.dtype) for k, v in tree.items()} == {k: (v.shape, v.dtype) for k, v in own.items()}
        assert tree["counter"] == own["counter"]


@pytest.mark.parametrize("kind", attacks.KINDS)
def test_attacks_keep_structure_and_leave_their_inputs(kind):
    kept = [[{k: v.copy() for k, v in tree.items()} for tree in trees] for trees in (HONEST, OWN)]
    sent = attacks.Attack(kind, 3).poison_updates(HONEST, OWN, seed=0, round=0)
    _check_shape(sent)
    for before, after in zip(kept, (HONEST, OWN), strict=True):
        for a, b in zip(before, after, strict=True):
            assert all(np.array_equal(a[k], b[k]) for k in a)
    again = attacks.Attack(kind, 3).poison_updates(HONEST, OWN, seed=0, round=0)
    assert all(np.array_equal(a["w"], b["w"], equal_nan=True) for a, b in zip(sent, again, strict=True))
    assert attacks.Attack(kind, 3).poison_updates(HONEST, [], seed=0, round=0) == []


def test_sign_flip():
    for scale in (1.0, 4.0):
        sent = attacks.Attack("sign_flip", 3, scale).poison_updates(HONEST, OWN, 0, 0)
        for tree, own in zip(sent, OWN, strict=True):
            np.testing.assert_allclose(tree["w"], -scale * own["w"])
            np.testing.assert_allclose(tree["b"], -scale * own["b"], rtol=1e-6)


@pytest.mark.parametrize("z", [None, 1.5, 0.0])
def test_alie_is_the_mean_less_z_deviations(z):
    sent = attacks.Attack("alie", 3, z).poison_updates(HONEST, OWN, 0, 0)
    used = norm.ppf((9 - 3 - (5 - 3)) / (9 - 3)) if z is None else z
    for name, atol in (("w", 1e-14), ("b", 1e-6)):
        rows = _stack(HONEST, name)
        want = rows.mean(axis=0) - used * rows.std(axis=0, ddof=1)
        for tree in sent:
            np.testing.assert_allclose(tree[name], want, rtol=0, atol=atol)


def test_alie_z_max_is_the_published_quantile():
    assert attacks.alie_z_max(50, 24) == pytest.approx(1.43, abs=0.005)
    for n in range(3, 60):
        for f in range(1, (n + 1) // 2):
            s = np.floor(n / 2 + 1) - f
            assert attacks.alie_z_max(n, f) == pytest.approx(norm.ppf((n - f - s) / (n - f)), abs=1e-12)
    # A majority by itself: finite, and rising with the attackers up to there.
    assert attacks.alie_z_max(10, 6) == pytest.approx(norm.ppf(3 / 4))
    assert attacks.alie_z_max(3, 3) == 0.0
    with pytest.raises(SettingError, match="0 < f <= n"):
        attacks.alie_z_max(5, 0)


def test_alie_with_one_honest_client_or_none():
    (sent,) = attacks.alie(HONEST[:1], OWN[:1])
    np.testing.assert_array_equal(sent["w"], HONEST[0]["w"])
    alone = attacks.alie([], OWN, z=1.0)
    rows = _stack(OWN, "w")
    np.testing.assert_allclose(alone[0]["w"], rows.mean(axis=0) - rows.std(axis=0, ddof=1))


def test_ipm_is_minus_eps_times_the_honest_mean():
    for eps in (0.5, 2.1):
        sent = attacks.Attack("ipm", 3, eps).poison_updates(HONEST, OWN, 0, 0)
        mean = _stack(HONEST, "w").mean(axis=0)
        for tree in sent:
            np.testing.assert_allclose(tree["w"], -eps * mean, rtol=0, atol=1e-15)
        everyone = (6 * mean + 3 * sent[0]["w"]) / 9
        assert (np.vdot(everyone, mean) < 0) == (eps > 6 / 3)
    np.testing.assert_allclose(attacks.ipm([], OWN)[0]["w"], -0.5 * _stack(OWN, "w").mean(axis=0))


def test_gaussian_has_its_deviation_and_differs_by_attacker_round_and_seed():
    big = [{"w": np.zeros((200, 100))}, {"w": np.zeros((200, 100))}]
    attack = attacks.Attack("gaussian", 2, 3.0)
    first, second = attack.poison_updates([], big, seed=0, round=0)
    assert first["w"].std() == pytest.approx(3.0, rel=0.03)
    assert abs(first["w"].mean()) < 0.1
    others = [second, *(attack.poison_updates([], big, s, r)[0] for s, r in ((0, 1), (1, 0)))]
    assert all(abs(np.corrcoef(first["w"].ravel(), o["w"].ravel())[0, 1]) < 0.05 for o in others)


def test_nan_is_everywhere_but_in_counters():
    for tree in attacks.Attack("nan", 3).poison_updates(HONEST, OWN, 0, 0):
        assert np.isnan(tree["w"]).all()
        assert np.isnan(tree["b"]).all()


def test_label_flip_changes_the_data_and_not_the_update():
    data = Dataset(np.zeros((4, 1)), np.array([0, 1, 8, 9]), 10)
    attack = attacks.Attack("label_flip", 1)
    np.testing.assert_array_equal(attack.poison_data(data).y, [9, 8, 1, 0])
    np.testing.assert_array_equal(data.y, [0, 1, 8, 9])
    assert attacks.Attack("ipm", 1).poison_data(data) is data
    for tree, own in zip(attack.poison_updates(HONEST, OWN, 0, 0), OWN, strict=True):
        np.testing.assert_array_equal(tree["w"], own["w"])


def test_attackers_are_fixed_by_the_seed_and_nested_in_their_number():
    chosen = [attacks.Attack("nan", count).attackers(20, seed=3) for count in range(21)]
    assert [len(who) for who in chosen] == list(range(21))
    for fewer, more in pairwise(chosen):
        assert set(fewer) < set(more)
        assert (np.diff(more) > 0).all()
    np.testing.assert_array_equal(chosen[4], attacks.Attack("alie", 4).attackers(20, seed=3))
    assert len({tuple(attacks.Attack("nan", 4).attackers(20, s)) for s in range(30)}) > 25


@pytest.mark.parametrize(
    ("text", "attack"),
    [
        ("none", None),
        ("sign_flip:4", attacks.Attack("sign_flip", 4, 1.0)),
        ("sign_flip:4:10", attacks.Attack("sign_flip", 4, 10.0)),
        ("alie:4", attacks.Attack("alie", 4)),
        ("ipm:4", attacks.Attack("ipm", 4, 0.5)),
        ("ipm:4:0.1", attacks.Attack("ipm", 4, 0.1)),
        ("gaussian:2:0.5", attacks.Attack("gaussian", 2, 0.5)),
        ("label_flip:3", attacks.Attack("label_flip", 3)),
        ("nan:1", attacks.Attack("nan", 1)),
    ],
)
def test_texts_name_attacks(text, attack):
    assert attacks.parse(text) == attack
    assert attack is None or attacks.parse(str(attack)) == attack


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: attacks.parse("signflip:4"), "no attack is called 'signflip'.*sign_flip"),
        (lambda: attacks.parse("sign_flip"), "how many clients"),
        (lambda: attacks.parse("ipm:4:0.5:1"), "how many clients"),
        (lambda: attacks.parse("ipm:four"), "no number"),
        (lambda: attacks.parse("ipm:4:x"), "no number"),
        (lambda: attacks.parse("ipm:4:nan"), "eps is nan"),
        (lambda: attacks.parse("nan:1:2"), "nothing else"),
        (lambda: attacks.parse("label_flip:-1"), "-1 attackers"),
        (lambda: attacks.Attack("nan", 5).attackers(4, 0), "5 attackers among 4"),
    ],
)
def test_bad_attacks_are_told(make, words):
    with pytest.raises(SettingError, match=words):
        make()
