"""Every rule on hostile contributions, weights and parameters: a finite answer, or an error of ours that teaches."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from pluribus import rules
from pluribus.core.errors import ContributionError, FileError, PluribusError, RuleError, UndefinedError

RULES = rules.registered()
LARGE = float(np.finfo(np.float64).max)
LEAST = float(np.finfo(np.float64).smallest_subnormal)


def make(name: str) -> rules.Rule:
    return RULES[name](**dict(RULES[name].example))


def clouds(rule: rules.Rule) -> dict[str, list[Any]]:
    """Contributions by the name of what is wrong with them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 6))
    x /= np.abs(x).max()
    own = rule.draw(x)
    simplex = np.abs(x) / np.abs(x).sum(axis=1, keepdims=True)
    sphere = x / np.linalg.norm(x, axis=1, keepdims=True)
    matrices = rng.normal(size=(7, 3, 3))
    found: dict[str, Any] = {
        "plain": own, "one": own[:1], "two": own[:2], "three": own[:3], "alike": [own[0]] * 7,
        "two kinds": [own[0]] * 4 + [own[1]] * 3, "none": [], "zeros": np.zeros((7, 6)),
        "minus zeros": -np.zeros((7, 6)),
        "numbers": np.arange(7.0), "no items": np.zeros((7, 3, 0)), "opposite": [x[0], -x[0]] * 4,
        "line": np.outer(x[0], x[1]),
        "units": np.eye(7), "greatest": np.sign(x) * LARGE,
        "all greatest": np.full((7, 6), LARGE), "least": np.sign(x) * LEAST,
        "half": x.astype(np.float16), "greatest half": np.sign(x).astype(np.float16) * np.float16(65504),
        "greatest single": np.sign(x).astype(np.float32) * np.finfo(np.float32).max, "complex": x + 1j * x[::-1],
        "whole": np.arange(42).reshape(7, 6), "bytes": np.arange(42, dtype=np.uint8).reshape(7, 6), "booleans": x > 0,
        "ranks": np.argsort(x, axis=1), "extreme integers": [np.array([2**63 - 1, -(2**63), 0])] * 7,
        "simplex": simplex, "corners": np.eye(6), "sphere": sphere, "antipodes": [sphere[0], -sphere[0]],
        "border": sphere * (1 - 1e-12), "matrices": matrices @ matrices.transpose(0, 2, 1) + np.eye(3),
        "singular": [np.outer(row, row) for row in x[:, :3]],
        "ill": [np.diag([1e300, 1, 1e-300]) * (k + 1) for k in range(7)],
        "nan": np.where(np.arange(42).reshape(7, 6) == 20, np.nan, x), "infinite": np.where(x > 0.9, np.inf, x),
        "texts": [np.array(["a"])] * 3, "objects": [np.array([None])] * 3, "shapes": [x[0], x[1, :5], x[2]],
        "tree": [{"ü": row, "a": [row, {"..": np.int8(3)}]} for row in x],
    }  # fmt: skip
    for size in (1e300, 1e155, 1e-160, 1e-300):
        found[f"{size:g}"] = x * size
        found[f"one of {size:g}"] = np.concatenate([x[:1] * size, x[1:]])
        found[f"all but one of {size:g}"] = np.concatenate([x[:1], x[1:] * size])
        found[f"coordinate of {size:g}"] = np.concatenate([x[:, :1] * size, x[:, 1:]], axis=1)
    return {name: list(rows) for name, rows in found.items()}


WEIGHTS: dict[str, Any] = {
    "zero": [0, 1, 1, 1, 1, 1, 1], "one alone": [0, 0, 0, 0, 0, 0, 1], "least": [LEAST] * 7, "greatest": [LARGE] * 7,
    "far apart": np.geomspace(1e-300, 1e300, 7), "one far": [1] * 6 + [1e-310],
    "all but one far": [1e-310] * 6 + [1],
    "nearly nothing": [1] * 6 + [1e-30], "nearly one": [1e-30] * 6 + [1], "nan": [np.nan] * 7, "negative": [-1] * 7,
    "zeros": [0] * 7, "short": [1] * 6, "texts": ["1"] * 7, "nested": [[1]] * 7, "booleans": [True] * 7,
}  # fmt: skip


def attempt(rule: rules.Rule, rows: list[Any], given: Any = None) -> None:
    """A finite result, or an error of ours. Warnings are errors, as in all tests."""
    kwargs = {"reference": rows[0]} if rule.needs_reference and rows else {}
    try:
        result = rule(rows, given, **kwargs)
    except PluribusError:
        return
    for leaf in leaves(result.value):
        if leaf.dtype.kind in "fc":
            assert np.isfinite(leaf).all()
    if given is None:
        result.weights  # noqa: B018 - measured now


def leaves(value: Any) -> list[np.ndarray]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [np.asarray(value)]


@pytest.mark.parametrize("name", sorted(RULES))
def test_contributions(name):
    rule = make(name)
    for told, rows in clouds(rule).items():
        try:
            attempt(rule, rows)
        except Exception as error:
            raise AssertionError(f"{rule} on {told}: {error!r}") from error


@pytest.mark.parametrize("name", sorted(RULES))
def test_weights(name):
    rule = make(name)
    rows = clouds(rule)["plain"]
    for told, given in WEIGHTS.items():
        try:
            attempt(rule, rows, given)
        except Exception as error:
            raise AssertionError(f"{rule} under weights {told}: {error!r}") from error


BAD = [
    None, -1, 0, 1.5, float("nan"), float("inf"), -float("inf"), True, np.True_, "x", "", b"x", [], [1], {}, (1, 2),
    1e300, LEAST, 2**63, 10**400, -(10**400), 1 + 1j, object, len, np.array(1), np.array([1, 2]), np.array([]),
    rules.Mean,
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(RULES))
def test_parameters(name):
    cls, example = RULES[name], dict(RULES[name].example)
    for field in fields(cls):
        for value in BAD:
            try:
                rule = cls(**{**example, field.name: value})
            except RuleError as error:
                if field.name not in str(error):
                    raise AssertionError(f"an error names the parameter {field.name}: {error}") from error
                continue
            except Exception as error:
                raise AssertionError(f"{name} made with {field.name}={value!r}: {error!r}") from error
            try:
                attempt(rule, list(make(name).draw(np.random.default_rng(1).normal(size=(9, 6)))))
            except Exception as error:
                raise AssertionError(f"{rule} with {field.name}={value!r}: {error!r}") from error


@pytest.mark.parametrize("huge", [10**400, 10**5000, np.longdouble("1e4000")], ids=["400", "5000", "longdouble"])
def test_numbers_beyond_float64_are_told(huge):
    if huge == np.inf and not isinstance(huge, int):
        pytest.skip("a longdouble is a float64 here")
    with pytest.raises(RuleError, match=r"Clip: max_norm must be a positive number"):
        rules.Clip(huge)
    if isinstance(huge, int):
        with pytest.raises(RuleError, match=r"radius .* that float64 holds .*, or float\('inf'\); it has \d+ bits"):
            rules.CenteredClipping(huge)
        with pytest.raises(RuleError, match="positive number"):
            rules.Clip(-huge)


@pytest.mark.parametrize("out", [3, True, [], b"result.safetensors", 1.5, {}], ids=repr)
def test_what_is_no_path_is_told(out):
    with pytest.raises(RuleError, match=r"out must be the path of a \.safetensors file, such as .* not "):
        rules.Mean()([{"w": np.ones(2)}] * 2, out=out)


def test_dispersion_at_the_end_of_float64():
    """The distances are no numbers of float64, and it says so, without a warning."""
    most = np.full(2, 1.7e308)
    result = rules.Mean()([most, -most])
    assert result.dispersion == np.inf
    assert rules.Mean()([most, most]).dispersion == 0
    assert rules.Mean()([most / 2, -most / 2]).dispersion == pytest.approx(1.7e308 / np.sqrt(2))


def test_too_few_who_have_a_tensor_are_told_which():
    rows = [{"a": np.ones(2), **({"b": np.ones(2)} if k == 1 else {})} for k in range(3)]
    with pytest.raises(
        RuleError, match=r"tensor 'b', which 1 of 3 contributors have: TrimmedMean\(f=1\) needs at least"
    ):
        rules.TrimmedMean(1)(rows, missing="absent")


@pytest.mark.parametrize("name", sorted(RULES))
def test_flags_are_true_or_false(name):
    for field in fields(RULES[name]):
        if field.type == "bool":
            for value in ("no", 0, None, []):
                with pytest.raises(RuleError, match=rf"{field.name} must be True or False"):
                    RULES[name](**{**dict(RULES[name].example), field.name: value})


@pytest.mark.parametrize("name", sorted(RULES))
def test_round_trips(name):
    rule = make(name)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert eval(repr(rule), vars(rules).copy()) == rule
    hash(rule)


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_])
@pytest.mark.parametrize("rule", [rules.Majority(), rules.Plurality(ties=-1)], ids=str)
def test_a_number_that_says_unclear_does_not_wrap_round(rule, dtype):
    labels = [np.array([1, 0], dtype), np.array([1, 1], dtype)]
    with pytest.raises(UndefinedError, match="-1"):
        rule(labels)
    assert rule([labels[1], labels[1]]).value.tolist() == [1, 1]


@pytest.mark.parametrize("size", [1e300, 1e200])
def test_influence_of_the_farthest_is_a_number(size):
    moved = rules.Maximum()([np.array([size, 0.0]), np.array([1.0, 0.0])]).influence()
    np.testing.assert_allclose(moved, [size, 0.0])


def test_bucketing_in_buckets_of_any_size():
    rows = list(np.eye(3))
    assert (rules.Bucketing(s=10**400) >> rules.Median())(rows).value.tolist() == pytest.approx([1 / 3] * 3)


def test_weighted_copies_stay_few():
    rows, given = list(np.random.default_rng(0).normal(size=(6, 4))), np.sqrt([1, 2, 3, 5, 7, 11])
    with pytest.raises(RuleError, match="lower resolution"):
        rules.Weighted(rules.Krum(f=1), resolution=10**12)(rows, given)
    with pytest.raises(RuleError, match="resolution="):
        rules.Weighted(rules.Krum(f=1))(rows, given)


def test_model_stock_where_one_has_all_the_weight():
    x = np.array([[1.0, 0.0], [1.0, 1.0]])
    nearly = rules.ModelStock()(list(x), weights=[1, 1e-20], reference=np.zeros(2)).value
    np.testing.assert_allclose(nearly, x[0] / np.sqrt(2), atol=1e-15)  # t = cos(x_1, x_2), as in the limit


def test_cagrad_beside_a_row_of_nothing():
    rows = [np.array([1e-160, 0.0]), np.array([1.0, 1.0]), np.array([-0.5, 1.0])]
    assert (rules.CAGrad()(rows).value @ np.stack(rows[1:]).T > 0).all()


def test_sign_election_at_the_end_of_float64():
    rows = [np.full(2, LARGE)] * 3 + [np.full(2, -LARGE)]
    result = rules.SignElection()(rows)
    assert (result.value == LARGE).all()
    assert result.weights.tolist() == pytest.approx([1 / 3] * 3 + [0])


def test_the_order_of_tensors_decides_nothing():
    rng = np.random.default_rng(0)
    rows = [{"w": rng.normal(size=50), "b": rng.normal(size=9)} for _ in range(5)]
    turned = [dict(reversed(row.items())) for row in rows]
    for name in ("graddrop", "gas", "median", "krum"):
        one, other = make(name)(rows).value, make(name)(turned).value
        assert all((one[key] == other[key]).all() for key in one), name


def test_an_executor_that_is_shut_down_is_told(tmp_path):
    path = tmp_path / "a.safetensors"
    rules.Mean()([{"w": np.ones(3)}], out=path)
    with ThreadPoolExecutor(1) as pool:
        pass
    with pytest.raises(PluribusError, match="not shut down"):
        rules.Median()([path], engine=pool, out=tmp_path / "b.safetensors")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a.safetensors"]


def test_what_the_format_cannot_hold_is_not_written(tmp_path):
    with pytest.raises(FileError, match="convert it to complex64"):
        rules.Mean()([{"w": np.ones(3) * 1j}], out=tmp_path / "a.safetensors")


def absent(*have: int) -> list[dict[str, np.ndarray]]:
    return [{"a": np.full(2, float(k)), **({"b": np.full(2, float(k))} if k in have else {})} for k in range(7)]


def test_tensors_that_pre_rules_would_need_are_told():
    with pytest.raises(ContributionError, match="absent in contributor 0"):
        (rules.Bucketing() >> rules.Median())(absent(1, 2), missing="absent")


def test_influence_where_one_alone_has_a_tensor():
    moved = rules.Median()(absent(1), missing="absent").influence()
    assert np.isnan(moved[1])
    assert np.isfinite(np.delete(moved, 1)).all()


def test_a_reference_that_lacks_a_tensor_is_not_told_what_does_not_help():
    with pytest.raises(ContributionError, match=r"^((?!missing=).)*$"):
        rules.CenteredClipping(1.0)(absent(*range(7)), reference={"a": np.ones(2)})
