"""Faults that were seen in other packages, each reproduced there, are not ours.

Those of one rule alone are beside that rule: Bulyan's scores and distances (`robust/test_robust_bulyan.py`), UPGrad's
two epsilons, Frank-Wolfe and Nash-MTL's coefficients (`gradients/`), SCAFFOLD's controls
(`../federated/server/control/test_control_scaffold.py`).
"""

from __future__ import annotations

import copy
import importlib.util

import numpy as np
import pytest

from pluribus import aggregate, laws, rules
from pluribus.core.errors import ContributionError, NonFiniteError, PluribusError, RuleError, UndefinedError
from pluribus.core.rule import PointRule

RULES = {
    name: rule
    for name, rule in laws.example_rules().items()
    if rule.any_vectors and not isinstance(rule, PointRule) and name != "coordinate_weights"  # whose masks are of all
}
every_rule = pytest.mark.parametrize("name", sorted(RULES))
with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch")


def run(name, contributions, **options):
    rule = RULES[name]
    if rule.uses_reference:
        like = contributions[0]
        options["reference"] = {k: v * 0 + 1 for k, v in like.items()} if isinstance(like, dict) else like * 0 + 1
    return rule(contributions, **options)


@every_rule
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nobody_is_poisoned_by_one_who_is_not_finite(name, bad, rng):
    """flwr's and byzfl's Krum return the client of NaN; most of byzfl's and torchjd's rules return NaN."""
    x = list(rng.normal(size=(10, 6)))
    with pytest.raises(NonFiniteError, match="contributor 9"):
        run(name, [*x[:9], np.full(6, bad)])
    found = run(name, [*x[:9], np.full(6, bad)], nonfinite="drop")
    np.testing.assert_allclose(found.value, run(name, x[:9]).value, rtol=1e-9, atol=1e-12)
    assert found.weights[9] == 0


@every_rule
def test_contributions_stay_as_they_are(name, rng):
    """byzfl's Clipping and ARC overwrite them, and so does FedML's FedAvg the first client's."""
    x = [100 * row for row in rng.normal(size=(10, 6))]
    before = copy.deepcopy(x)
    value = run(name, x).value
    assert not any(np.shares_memory(value, row) for row in x)
    value += 1
    np.testing.assert_array_equal(x, before)


@every_rule
def test_nothing_is_written(name, rng, tmp_path, monkeypatch):
    """FlagAggregator's rule appends to a file of a path of its author's on every call."""
    monkeypatch.chdir(tmp_path)
    x = list(rng.normal(size=(10, 6)))
    run(name, x)  # what is compiled may be kept

    def refuse(*arguments, **options):
        raise AssertionError(f"opens {arguments[0]}")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("os.open", refuse)
    run(name, x)
    assert not list(tmp_path.iterdir())


@every_rule
def test_nothing_is_remembered(name, rng):
    """byzfl's and epfml's centered clipping start where the last call, of whatever, ended."""
    x, other = list(rng.normal(size=(10, 6))), list(100 + rng.normal(size=(10, 6)))
    before = run(name, x).value
    run(name, other)
    np.testing.assert_array_equal(run(name, x).value, before)


@with_torch
@every_rule
def test_float64_tensors_stay_float64(name, rng):
    """byzfl's centered clipping casts them to float32 without a word."""
    import torch

    x = rng.normal(size=(10, 6))
    value = run(name, [torch.from_numpy(row) for row in x]).value
    assert value.dtype == torch.float64
    np.testing.assert_allclose(value.numpy(), run(name, list(x)).value, rtol=1e-9, atol=1e-12)


@every_rule
def test_counters_do_not_decide(name, rng):
    """flwr's Krum: 99.998 % of the distance was a counter of batches; its FedAvg makes 415.0 of it."""
    x = [{"w": row} for row in rng.normal(size=(10, 6))]
    counted = [tree | {"n": np.array(400_000 + 50_000 * i)} for i, tree in enumerate(x)]
    expected, found = run(name, x), run(name, counted)
    np.testing.assert_array_equal(found.value["w"], expected.value["w"])
    assert found.value["n"].dtype == np.int64


def test_attackers_are_not_let_in_by_cancellation():
    """flwr 1.42's Multi-Krum: updates of 0.06 % of the weights' deviation, attackers admitted in 12 of 12 trials."""
    fooled = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        steps = 6e-4 * rng.normal(size=(10, 50_000))
        steps[7:] *= 1.5  # squared, 1.6 times as far from all as the honest are from each other
        x = (rng.normal(size=50_000) + steps).astype(np.float32)
        found = rules.MultiKrum(f=3)(list(x))
        assert not found.weights[7:].any()
        squares = np.einsum("ij,ij->i", x, x)
        coarse = squares[:, None] + squares - 2 * (x @ x.T)
        coarse[np.diag_indices(10)] = np.inf
        scores = np.sort(coarse, axis=1)[:, :5].sum(axis=1)
        fooled += (np.argsort(scores)[:7] >= 7).any()
    assert fooled > 6, "the trap is not there"


def test_krum_is_none_of_the_others_scores(rng):
    """torchjd: plain distances. byzfl: n-f-1 others. epfml: fourth powers, and a sum where a mean is due."""
    differ = np.zeros(3)
    for _ in range(300):
        x = rng.normal(size=(10, 3)) * rng.uniform(0.3, 1.5, size=(10, 1))
        d = np.sqrt(((x[:, None] - x) ** 2).sum(-1))
        d[np.diag_indices(10)] = np.inf
        near = np.sort(d, axis=1)
        winner = (near[:, :6] ** 2).sum(axis=1).argmin()
        np.testing.assert_array_equal(rules.Krum(f=2)(list(x)).value, x[winner])
        others = [near[:, :6], near[:, :7] ** 2, near[:, :6] ** 4]
        differ += [score.sum(axis=1).argmin() != winner for score in others]
    assert (differ > 0).all()
    np.testing.assert_allclose(rules.MultiKrum(f=2, m=4)([np.ones(3)] * 10).value, np.ones(3))


@pytest.mark.parametrize(("n", "f"), [(3, 1), (4, 1), (5, 2), (6, 2)])
@pytest.mark.parametrize("rule", [rules.Krum, rules.MultiKrum])
def test_krum_where_it_withstands_nothing_is_refused(rule, n, f):
    """byzfl takes 3 with f = 1 and 5 with f = 2; torchjd 4 with f = 1."""
    with pytest.raises(RuleError, match=f"at least {2 * f + 3} contributors, and got {n}"):
        rule(f=f)([np.ones(2)] * n)


def test_half_precision_is_not_summed_in_half_precision():
    """flwr: 200 times 0.1 has the mean 0.0986."""
    assert aggregate([np.array([0.1], np.float16)] * 200).value == np.float16(0.1)


def test_shapes_are_not_broadcast():
    with pytest.raises(ContributionError, match=r"contributor 1"):
        aggregate([np.ones(2), np.ones(1)])


def test_weights_are_not_negative():
    """flwr: the mean of 1 and 0 is 1.5 under weights of 3 and -1."""
    with pytest.raises(PluribusError, match="contributor 1"):
        aggregate([np.ones(1), np.zeros(1)], weights=[3, -1])


def test_who_trims_says_how_many():
    """flwr: beta = 0.2 of four trims int(0.8) = 0, and 1e6 goes into the mean."""
    with pytest.raises(RuleError, match="whole number"):
        rules.TrimmedMean(f=0.2)
    with pytest.raises(RuleError, match="would trim nothing"):
        rules.TrimmedMean(f=0)
    assert aggregate([np.ones(1)] * 3 + [np.array([1e6])], "trimmed_mean", f=1).value == 1


@pytest.mark.parametrize("start", [np.zeros(3), np.array([1.0, -2.0, 3.0])])
def test_centered_clipping_starts_anywhere(start, rng):
    """byzfl: ``m=`` is a TypeError whatever it is."""
    x = 10 * rng.normal(size=(6, 3))
    gaps = x - start
    expected = start + (gaps * np.minimum(1, 2 / np.linalg.norm(gaps, axis=1))[:, None]).mean(axis=0)
    np.testing.assert_allclose(rules.CenteredClipping(radius=2.0)(list(x), reference=start).value, expected)


def test_long_float32_vectors_have_exact_norms(rng):
    """torch's norm of a long float32 row is 4e-4 off, and so are byzfl's clipped vectors."""
    x = rng.normal(size=3_000_000).astype(np.float32)
    norm = np.linalg.norm(x.astype(np.float64))
    expected = x[:1000].astype(np.float64) / norm
    np.testing.assert_allclose(rules.Clip(1.0)([x, x]).value[:1000], expected, rtol=2e-7)


@every_rule
def test_a_zero_among_them_is_no_division(name, rng):
    """Zero vectors, and nothing but zero vectors, give numbers: 0 / 0 is 0 for whoever reads cosines."""
    zero = np.zeros(6)
    if name == "karcher":  # a mean of directions, which zero has none of
        with pytest.raises(UndefinedError, match="contributor 9 is a zero vector"):
            run(name, [*rng.normal(size=(9, 6)), zero])
        return
    assert np.isfinite(run(name, [*rng.normal(size=(9, 6)), zero]).value).all()
    assert np.isfinite(run(name, [zero] * 10).value).all()


@pytest.mark.parametrize("rule", [rules.UPGrad(), rules.DualProj(), rules.MGDA()], ids=str)
@pytest.mark.parametrize("ratio", [1e-2, 1e-3, 1e-6])
def test_a_short_gradient_is_heard(rule, ratio, rng):
    """torchjd's UPGrad: a cosine of -0.55 where one is 100 times shorter, -0.77 where 1000; the mean, of small ones."""
    for _ in range(20):
        x = rng.normal(size=(2, 20))
        x[1] = ratio * (x[1] - 1.5 * x[0] * (x[0] @ x[1] > 0))
        found = rule(list(x)).value
        assert (x @ found >= -1e-9 * np.linalg.norm(x, axis=1) * np.linalg.norm(found)).all()
        np.testing.assert_allclose(rule(list(1e-3 * x)).value, 1e-3 * found, rtol=1e-6, atol=1e-9 * abs(x[1]).max())
