"""Inner products by the compiled loop: those of the plain kernel, whatever the rows are."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus.core import kernels, passes
from pluribus.core.contributions import gather
from pluribus.core.kernels import plain
from pluribus.core.passes import Active, deciding

pytest.importorskip("numba", reason="numba is not installed: pip install 'pluribus[fast]'")

from pluribus.core.kernels.products import inner_products, squared_norms


@pytest.mark.parametrize("n", [1, 2, 4, 5, 10, 33])
@pytest.mark.parametrize("size", [0, 1, 7, 1024, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_the_plain_kernel(rng, n, size, dtype):
    views = list(rng.standard_normal((n, size)).astype(dtype))
    found, expected = inner_products(views), plain.gram(views)
    assert found.dtype == np.float64
    assert np.array_equal(found, found.T)
    norms = np.sqrt(np.diag(expected))
    assert (np.abs(found - expected) <= 1e-14 * np.outer(norms, norms)).all()


def test_strided_and_readonly_views(rng):
    wide = rng.standard_normal((6, 3000)).astype(np.float32)
    wide.flags.writeable = False
    strided = [row[::3] for row in wide]
    assert np.array_equal(inner_products(strided), inner_products([np.ascontiguousarray(v) for v in strided]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row_and_column(rng, bad):
    views = list(rng.standard_normal((7, 2000)))
    good = inner_products(views)
    views[3][1500] = bad
    found, others = inner_products(views), [0, 1, 2, 4, 5, 6]
    assert np.array_equal(found[np.ix_(others, others)], good[np.ix_(others, others)])
    assert not np.isfinite(found[3]).any()


def test_huge_rows_leave_the_others_alone(rng):
    views = list(rng.standard_normal((5, 2000)))
    good = inner_products(views)
    views[0] = views[0] * 1e120
    assert np.array_equal(inner_products(views)[1:, 1:], good[1:, 1:])


@pytest.mark.parametrize("size", [0, 1, 7, 40_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_norms_equal_the_plain_kernel(rng, size, dtype):
    views = [row[::2] for row in rng.standard_normal((5, 2 * size)).astype(dtype)]
    found = squared_norms(views)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, plain.norms(views), rtol=1e-13)
    if size > 1:
        views[1] = views[1].copy()
        views[1][1] = np.nan
        spoilt = squared_norms(views)
        assert np.isnan(spoilt[1])
        assert np.array_equal(np.delete(spoilt, 1), np.delete(found, 1))


def test_a_rule_of_norms_takes_them(rng, monkeypatch):
    from pluribus import rules
    from pluribus.core.kernels import products

    monkeypatch.setenv("PLURIBUS_KERNELS", "compiled")
    seen = []

    def noted(views):
        seen.append(len(views))
        return squared_norms(views)

    monkeypatch.setattr(products, "squared_norms", noted)
    xs = list(rng.standard_normal((5, 70_000)).astype(np.float32))
    result = rules.CGE(f=1)(xs)
    assert set(seen) == {5}
    assert result.weights.argmin() == np.argmax([np.dot(x, x) for x in xs])


def test_the_pass_takes_it_for_few_rows_and_the_kernel_for_many(rng, monkeypatch):
    monkeypatch.setenv("PLURIBUS_KERNELS", "compiled")
    calls = []
    monkeypatch.setattr(kernels.select(0), "gram", lambda views: calls.append(len(views)) or plain.gram(views))
    for n, expected in ((deciding.FEW, []), (deciding.FEW + 1, [deciding.FEW + 1])):
        xs = rng.standard_normal((n, 300))
        data = gather(xs)
        found = passes.gram(Active(data, tuple(range(n))))
        assert calls == expected
        np.testing.assert_allclose(found.gram, xs @ xs.T, rtol=1e-12, atol=1e-10)
