"""The kernels on torch tensors: the bits of numpy's on the CPU, and nothing that a device could not do."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from pluribus.core.errors import ContributionError, WeightError
from pluribus.core.kernels import plain

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
from pluribus.core.kernels import tensors  # noqa: E402

FLOATS = [np.float32, np.float64]
SIZE = 3000


PLACES = ["cpu", "elsewhere", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=PLACES)
def device(request, monkeypatch):
    """The CPU; the CPU with the code of other devices; a CUDA device, where there is one."""
    if request.param == "cuda":
        return "cuda"
    if request.param == "elsewhere":
        monkeypatch.setattr(tensors, "_on_cpu", lambda tensor: False)
    return "cpu"


def on(device, views):
    return [torch.from_numpy(np.array(view)).to(device) for view in views]


def room(device, dtype, size=SIZE):
    return torch.full((size,), float("nan"), dtype=getattr(torch, np.dtype(dtype).name), device=device)


def same(device, found, expected, ulps=4):
    """Bit for bit on the CPU; elsewhere a sum may be fused."""
    found = found.cpu().numpy()
    if device == "cpu":
        assert found.tobytes() == expected.tobytes()
    else:
        np.testing.assert_array_almost_equal_nulp(found, expected, ulps)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 10, 33])
def test_order_statistics_are_those_of_numpy(tile, kind, n, dtype, device):
    views = tile(kind, n, SIZE, dtype)
    given = on(device, views)
    for (low, high), out in product({((n - 1) // 2, n // 2 + 1), (0, n), (n // 5, n - n // 5)}, FLOATS):
        expected, found = np.empty(SIZE, out), room(device, out)
        with np.errstate(over="ignore"):
            assert plain.middle(views, low, high, expected)
        assert tensors.middle(given, low, high, found)
        same(device, found, expected)
    wanted = [n - 1, 0, n // 2]
    expected, found = np.empty((3, SIZE), dtype), [room(device, dtype) for _ in wanted]
    assert plain.ranks(views, wanted, list(expected))
    assert tensors.ranks(given, wanted, found)
    for row, other in zip(found, expected, strict=True):
        same("cpu", row, other)
    for view, tensor in zip(views, given, strict=True):
        assert np.array_equal(tensor.cpu().numpy(), view), "views are never written"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_weighted_sums_are_those_of_numpy(tile, kind, n, dtype, device):
    rng, views = np.random.default_rng(n), tile(kind, n, SIZE, dtype)
    given = on(device, views)
    for weights, out in product((np.full(n, 1 / n), rng.normal(size=n), np.arange(n)), FLOATS):
        expected, found = np.empty(SIZE, out), room(device, out)
        with np.errstate(over="ignore"):
            assert plain.weighted_sum(views, weights, expected)
        assert tensors.weighted_sum(given, weights, found)
        if device == "cpu":
            same(device, found, expected)
        else:
            np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-6, atol=np.abs(views).max() * 1e-15 * n)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_weighted_order_statistics_are_those_of_numpy(tile, kind, n, dtype, device):
    views, rng = tile(kind, n, SIZE, dtype), np.random.default_rng(n)
    given = on(device, views)
    for weights in (rng.dirichlet(np.ones(n)), np.arange(1, n + 1) / np.arange(1, n + 1).sum()):
        for (low, high), out in product([(0.5, 0.5), (0.2, 0.8), (0.0, 0.1)], FLOATS):
            expected, found = np.empty(SIZE, out), room(device, out)
            with np.errstate(over="ignore"):
                assert plain.weighted_middle(views, weights, low, high, expected)
            assert tensors.weighted_middle(given, weights, low, high, found)
            slack = 1e-15 * n * np.float64(np.abs(views).max()) + np.finfo(out).smallest_subnormal
            np.testing.assert_allclose(found.cpu(), expected, rtol=1e-6, atol=slack)
            assert not np.signbit(expected[expected == 0]).any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 7, 30])
@pytest.mark.parametrize("size", [1, 1000, 1024, 5000, 70_000])
def test_inner_products(rng, n, size, dtype, device):
    views = list(rng.normal(size=(n, size)).astype(dtype))
    given = on(device, views)
    scale = np.sqrt(np.outer(plain.norms(views), plain.norms(views)))
    found = tensors.gram(given)
    assert np.array_equal(found, found.T)
    assert (np.abs(found - plain.gram(views)) <= 1e-12 * scale).all()
    assert (np.abs(tensors.cross(given, given[:2]) - found[:, :2]) <= 1e-12 * scale[:, :2]).all()
    np.testing.assert_allclose(tensors.norms(given), plain.norms(views), rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("place", [0, 1500, SIZE - 1])
def test_what_is_not_finite_is_told(rng, bad, dtype, place, device):
    views = list(rng.normal(size=(5, SIZE)).astype(dtype))
    views[2][place] = bad
    given, out = on(device, views), room(device, dtype)
    assert not tensors.finite(given[2])
    assert tensors.finite(given[1])
    for low, high in ((2, 3), (1, 4)):
        assert not tensors.middle(given, low, high, out)
    assert not tensors.ranks(given, [0], [out])
    assert not tensors.weighted_middle(given, np.arange(1, 6) / 15, 0.5, 0.5, out)
    assert not tensors.weighted_sum(given, np.full(5, 0.2), out)
    assert tensors.weighted_sum(given, [1, 1, 0, 1, 1], out), "a view of weight zero is not read"
    gram = tensors.gram(given)
    others = [0, 1, 3, 4]
    assert np.isfinite(gram[np.ix_(others, others)]).all()
    assert not np.isfinite(gram[2]).any()
    assert np.isfinite(tensors.norms(given)).tolist() == [True, True, False, True, True]


def test_nothing_to_read(device):
    empty = on(device, [np.empty(0, np.float32)] * 3)
    out = room(device, np.float32, 0)
    assert tensors.middle(empty, 1, 2, out)
    assert tensors.ranks(empty, [0], [out])
    assert tensors.weighted_sum(empty, [1, 2, 3], out)
    assert tensors.finite(empty[0])
    assert not tensors.gram(empty).any()
    full, zero = on(device, [np.ones(4)]), room(device, np.float64, 4)
    assert tensors.weighted_sum(full, [0.0], zero)
    assert not zero.any()


def test_arguments_that_do_not_fit():
    views = [torch.ones(4), torch.ones(4)]
    with pytest.raises(ContributionError, match="contributor 1"):
        tensors.gram([torch.ones(4), torch.ones(5)])
    with pytest.raises(ContributionError, match=r"contributor 1 gives torch\.float64"):
        tensors.middle([torch.ones(4), torch.ones(4).double()], 0, 1, torch.empty(4))
    with pytest.raises(ContributionError, match="one-dimensional float32 or float64"):
        tensors.norms([torch.ones(4).half()])
    with pytest.raises(ContributionError, match="output"):
        tensors.middle(views, 0, 1, torch.empty(3))
    with pytest.raises(ContributionError, match="at least one"):
        tensors.gram([])
    with pytest.raises(WeightError):
        tensors.weighted_sum(views, [1.0], torch.empty(4))
    with pytest.raises(ContributionError, match="as many outputs"):
        tensors.ranks(views, [0, 1], [torch.empty(4)])
    with pytest.raises(ContributionError, match="one length"):
        tensors.cross(views, [torch.ones(3)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_made_on_another_device(monkeypatch, dtype):
    """Tensors that pretend to be elsewhere refuse to meet others; only flags and sums leave a device, by two doors."""
    fakes = pytest.importorskip("torch._subclasses.fake_tensor", reason="this torch has no fake tensors")
    left = []
    for all_there in (True, False):  # the second way through `_mean`: a sum that overflowed
        monkeypatch.setattr(tensors, "_told", lambda *flags, all_there=all_there: [True, all_there][: len(flags)])
        monkeypatch.setattr(tensors, "_fetched", lambda t: left.append(t.device.type) or np.zeros(t.shape))
        with fakes.FakeTensorMode():
            views = [torch.empty(2500, dtype=dtype, device="lazy") for _ in range(5)]
            out = torch.empty(2500, dtype=dtype, device="lazy")
            for low, high in ((2, 3), (1, 3), (1, 4)):
                tensors.middle(views, low, high, out)
            tensors.ranks(views, [0, 3], [out, out.clone()])
            for weights in (np.full(5, 0.2), np.arange(5)):
                tensors.weighted_sum(views, weights, out)
            for low, high in ((0.5, 0.5), (0.1, 0.9)):
                tensors.weighted_middle(views, np.full(5, 0.2), low, high, out)
            tensors.gram(views)
            tensors.cross(views, views[:2])
            tensors.norms(views)
            tensors.finite(views[0])
    assert left == ["lazy"] * 6


def test_tiles_of_a_device_are_large_and_bounded():
    for n in (1, 10, 50, 1000, 100_000):
        size = tensors.tile_size(n)
        assert size & (size - 1) == 0
        assert 1 << 15 <= size <= 1 << 21
        assert size * 8 * n <= 1 << 28 or size == 1 << 15
