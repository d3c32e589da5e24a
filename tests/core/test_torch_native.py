"""Tensors that stay where they lie: every rule as on numpy arrays, with the same bits on the CPU."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import pluribus
from pluribus import engines, rules
from pluribus.core import contributions, dtypes, medium, rule
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
from pluribus.core import tensors  # noqa: E402
from pluribus.core.kernels import tensors as kernels  # noqa: E402
from pluribus.core.tensors import TensorLeaf, Tensors  # noqa: E402

N = 7
NAMES = sorted(rule.registered())
SOME = [
    rules.Mean(),
    rules.Median(),
    rules.TrimmedMean(f=1),
    rules.Krum(f=1),
    rules.GeometricMedian(),
    rules.chain(rules.Clip(2.0), rules.NNM(f=1), rules.TrimmedMean(f=1)),
    rules.SignMajority(),
    rules.Meamed(f=1),
    rules.SoftMedian(),
    rules.per_group(rules.Krum(f=1)),
]


class Place:
    """A device, and how a rule is asked to run there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.device = "cuda" if name == "cuda" else "cpu"
        self.engine = None if name == "cuda" else "torch"

    def put(self, tree):
        return (
            {key: value.to(self.device) for key, value in tree.items()}
            if isinstance(tree, dict)
            else tree.to(self.device)
        )

    def same(self, found, expected, coarse=1e-6):
        """Bit for bit on the CPU; elsewhere up to how sums are added."""
        if isinstance(expected, dict):
            assert list(found) == list(expected)
            for key, value in expected.items():
                self.same(found[key], value)
            return
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.device.type == self.device
        one, other = tensors.stored(found), tensors.stored(expected)
        if self.name == "cpu":
            assert one.tobytes() == other.tobytes()
        elif expected.dtype == torch.bfloat16:
            self.same(found.float(), expected.float(), 1e-2)
        else:
            coarse = 2e-3 if expected.dtype == torch.float16 else coarse
            np.testing.assert_allclose(one, other, rtol=coarse, atol=coarse * max(1e-30, np.abs(other).max(initial=0)))

    def near(self, found, expected):
        if self.name == "cpu":
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


PLACES = ["cpu", "elsewhere", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device; with one all of this runs there")
def test_there_is_a_device():
    assert "cuda" in PLACES


@pytest.fixture(params=PLACES)
def place(request, monkeypatch):
    """The CPU; the CPU by the code of other devices (large tiles, torch's products); a CUDA device."""
    if request.param == "elsewhere":
        monkeypatch.setattr(kernels, "_on_cpu", lambda tensor: False)
        monkeypatch.setattr(Tensors, "_on_cpu", False)
    return Place(request.param)


def trees(n=N, seed=0):
    """n contributions of every dtype."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    base = normal(8, 9)
    return [
        {
            "w": (base + normal(8, 9)).float(),
            "b": normal(11),
            "half": normal(3, 5).half(),
            "brain": normal(17).bfloat16(),
            "complex": torch.complex(normal(6), normal(6)).to(torch.complex64),
            "count": torch.tensor(100 + 3 * i),
            "mask": normal(9) > 0,
            "small": (normal(5) * 50).to(torch.int8),
            "none": torch.empty(0, 2),
        }
        for i in range(n)
    ]


def example(name):
    """A rule as its laws are checked, contributions that it takes and a reference where it wants one."""
    cls = rule.registered()[name]
    made = cls(**dict(cls.example))
    if made.any_vectors:
        return made, trees(), trees(1, 1)[0]
    drawn = made.draw(np.random.default_rng(0).normal(size=(N + 1, 6)))
    xs = [torch.from_numpy(np.array(x)) for x in drawn]
    return made, xs[:N], xs[N]


@pytest.mark.parametrize("weights", [None, np.arange(1, N + 1)], ids=["equal", "unequal"])
@pytest.mark.parametrize("name", NAMES)
def test_every_rule(name, weights, place):
    made, xs, reference = example(name)
    given = {"reference": reference} if made.uses_reference else {}
    expected = made(xs, weights, engine="threads", **given)
    placed = {key: place.put(value) for key, value in given.items()}
    found = made([place.put(x) for x in xs], weights, engine=place.engine, **placed)
    place.same(found.value, expected.value)
    place.near(found.weights, expected.weights)
    place.near(found.distances, expected.distances)
    assert found.dispersion == pytest.approx(expected.dispersion, rel=1e-6, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("made", SOME, ids=str)
def test_influence_and_the_gram_matrix(made, place):
    xs = trees()
    expected, found = made(xs), made([place.put(x) for x in xs], engine=place.engine)
    np.testing.assert_allclose(found.influence(), expected.influence(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.gram.gram, expected.gram.gram, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found.gram.squared_distances, expected.gram.squared_distances, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("made", [*SOME, rules.GradDrop(seed=3), rules.Maximum(), rules.PowerMean(3)], ids=str)
def test_long_tensors(made, place):
    """Longer than numpy's tiles, and no multiple of anything."""
    g = torch.Generator().manual_seed(0)
    xs = [torch.randn(70_001, generator=g) for _ in range(N)]
    place.same(made([place.put(x) for x in xs], engine=place.engine).value, made(xs).value)


def test_distances_under_an_offset(place):
    g = torch.Generator().manual_seed(0)
    xs = [1e6 + 1e-3 * torch.randn(500, generator=g, dtype=torch.float64) for _ in range(4)]
    found = rules.Krum(f=0)([place.put(x) for x in xs], engine=place.engine).relation.squared_distances
    x = torch.stack(xs)
    expected = ((x[:, None] - x[None]) ** 2).sum(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_several_results(place):
    xs, weights = trees(), np.random.default_rng(0).random((3, N))
    expected, found = (
        rules.Mean()(given, weights, engine=engine).value
        for given, engine in ((xs, None), ([place.put(x) for x in xs], place.engine))
    )
    for one, other in zip(found, expected, strict=True):
        place.same(one, other)


@pytest.mark.parametrize("made", [rules.Mean(), rules.Median(), rules.Krum(f=1), rules.SignMajority()], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("tensor", ["w", "half", "complex"])
def test_what_is_not_finite(made, bad, tensor, place):
    xs = trees()
    xs[2][tensor].view(-1)[1] = bad
    given = [place.put(x) for x in xs]
    with pytest.raises(NonFiniteError, match=rf"contributor 2: NaN or Inf in tensor '{tensor}'"):
        made(given, engine=place.engine)
    for policy in ("drop", "zero"):
        expected, found = made(xs, nonfinite=policy), made(given, nonfinite=policy, engine=place.engine)
        assert found.left_out == expected.left_out
        place.same(found.value, expected.value)
        place.near(found.weights, expected.weights)


@pytest.mark.parametrize("policy", ["round", "max", "first"])
def test_counters_and_masks(policy, place):
    kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
    g = torch.Generator().manual_seed(0)
    xs = [{str(k): torch.randint(0, 2**31, (40,), generator=g).to(k) for k in kinds} for _ in range(N)]
    for x in xs:
        x["agreed"] = torch.tensor([2**62 + 1, 3])
    for weights in (None, np.arange(1, N + 1)):
        expected = rules.Mean()(xs, weights, integers=policy)
        found = rules.Mean()([place.put(x) for x in xs], weights, integers=policy, engine=place.engine)
        Place.same(SimpleNamespace(name="cpu", device=place.device, same=exactly), found.value, expected.value)
    assert found.value["agreed"].tolist() == [2**62 + 1, 3]
    with pytest.raises(ContributionError, match="counters or masks"):
        rules.Mean()([place.put(x) for x in xs], integers="error", engine=place.engine)


def exactly(found, expected):
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize(
    "made", [rules.Mean(), rules.Median(), rules.SignMajority(), rules.per_group(rules.Krum(f=1))], ids=str
)
def test_absent_tensors(made, place):
    xs = trees()
    for i, name in enumerate(("w", "half", "count", "mask")):
        del xs[i][name]
    expected = made(xs, np.arange(1, N + 1), missing="absent")
    found = made([place.put(x) for x in xs], np.arange(1, N + 1), missing="absent", engine=place.engine)
    place.same(found.value, expected.value)
    place.near(found.weights, expected.weights)


def test_different_dtypes_give_the_widest(place):
    for kinds, widest in (
        ((torch.bfloat16, torch.float16), torch.float32),
        ((torch.float16, torch.float64), torch.float64),
        ((torch.complex64, torch.complex128), torch.complex128),
        ((torch.int8, torch.int32), torch.int32),
    ):
        xs = [torch.arange(6).to(kinds[i % 2]) * i for i in range(N)]
        expected = rules.Median()(xs).value
        assert expected.dtype == widest
        place.same(rules.Median()([place.put(x) for x in xs], engine=place.engine).value, expected)


def test_any_layout_and_no_gradients(place):
    g = torch.Generator().manual_seed(0)
    images = [torch.randn(3, 4, 5, 6, generator=g) for _ in range(N)]
    kinds = [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        lambda x: torch.cat([x, x])[: len(x)].requires_grad_() * 1,
        torch.nn.Parameter,
    ]
    expected = rules.Median()(images).value
    given = [kinds[i % len(kinds)](place.put(x)) for i, x in enumerate(images)]
    before = [x.detach().clone() for x in given]
    with torch.inference_mode():
        place.same(rules.Median()(given, engine=place.engine).value, expected)
    found = rules.Median()(given, engine=place.engine).value
    place.same(found, expected)
    assert not found.requires_grad
    assert all(map(torch.equal, given, before)), "contributions are never written"
    turned = [place.put(x).to(torch.complex64).conj() for x in images]
    place.same(rules.Median()(turned, engine=place.engine).value.real.contiguous(), expected)


def test_a_range_of_a_tensor_that_is_not_contiguous():
    wide = torch.arange(3 * 50_000.0).reshape(50_000, 3).t()
    boxed = torch.arange(5 * 6 * 700.0).reshape(700, 6, 5).permute(2, 1, 0)
    for tensor in (wide, boxed, boxed[::2], wide[:, 1::2]):
        leaf, flat = TensorLeaf.of(tensor), tensor.reshape(-1)
        size = len(flat)
        for start, stop in (
            (0, size),
            (0, 1),
            (5, 5),
            (size - 3, size),
            (size // 3 - 2, size // 3 + 2),
            (7, size // 2),
        ):
            assert torch.equal(leaf.slice(start, stop), flat[start:stop])
            assert np.array_equal(leaf.items(start, stop), flat[start:stop].numpy())
            whole = leaf.slice(start, stop).untyped_storage().nbytes()
            assert whole <= 4 * 2 * (stop - start) or whole == tensor.untyped_storage().nbytes(), "a part, or a view"


def test_a_state_dict_comes_out_as_one(place):
    def net():
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to(place.device)

    found = (rules.NNM(f=1) >> rules.Median())([net().state_dict() for _ in range(5)], engine=place.engine)
    net().load_state_dict(found.value)


def test_a_file_comes_out_with_the_same_bytes(place, tmp_path):
    xs = [{k: v for k, v in x.items() if k != "complex"} for x in trees()]
    for made in (
        rules.Mean(),
        rules.Median(),
        rules.SignMajority(),
        rules.SoftMedian(),
        rules.per_group(rules.Median()),
    ):
        expected = made(xs, out=tmp_path / "numpy.safetensors").value.read_bytes()
        found = made([place.put(x) for x in xs], engine=place.engine, out=tmp_path / "torch.safetensors")
        if place.name == "cpu" or made in (rules.Median(), rules.SignMajority()):
            assert found.value.read_bytes() == expected
        assert np.isfinite(found.distances).all()


def test_rounding_to_stored_items(place):
    """Once and to nearest, even where torch's own way through float32 rounds twice."""
    g = torch.Generator().manual_seed(0)
    ties = [
        1 + 2.0**-11 + 2.0**-40,
        1 + 3 * 2.0**-11 - 2.0**-40,
        65519.999,
        65520.0,
        2.0**-25,
        1e-30,
        1e-50,
        1e300,
        0.0,
    ]
    values = torch.cat(
        [torch.tensor(ties, dtype=torch.float64), torch.randn(2000, generator=g, dtype=torch.float64) * 300]
    )
    values = torch.cat([values, -values])
    assert values.half()[0] == 1, "torch rounds twice, or this tests nothing"
    made = Tensors(torch.device(place.device))
    for name in ("float16", "bfloat16", "float32", "complex64", "int8", "uint8", "int64", "bool"):
        kind = dtypes.of(name)
        with np.errstate(over="ignore"):
            expected = medium.NUMPY.rounded(values.numpy(), kind)
        assert made.stored(made.rounded(values.to(place.device), kind)).tobytes() == expected.tobytes(), name
    odd = torch.tensor([float("nan"), float("inf"), -float("inf")], dtype=torch.float64, device=place.device)
    for name in ("float16", "bfloat16", "float32"):
        torch.testing.assert_close(made.rounded(odd, dtypes.of(name)).double(), odd, equal_nan=True)


def test_what_engine_torch_asks_for(tmp_path):
    xs = [torch.ones(3), torch.zeros(3)]
    with pytest.raises(
        ContributionError, match=r"contributor 1: the array is no torch tensor; convert all with torch\.as_tensor"
    ):
        pluribus.aggregate([xs[0], np.zeros(3)], engine="torch")
    with pytest.raises(ContributionError, match="contributor 0: the array is no torch tensor"):
        pluribus.aggregate(np.zeros((2, 3)), engine="torch")
    with pytest.raises(ContributionError, match="reference: the array is no torch tensor"):
        rules.CenteredClipping(1.0)(xs, reference=np.zeros(3), engine="torch")
    with pytest.raises(ContributionError, match="uint16, which torch hardly computes with; convert it to int64"):
        pluribus.aggregate([torch.ones(3).to(torch.uint16)], engine="torch")
    with pytest.raises(ContributionError, match="meta device holds no data"):
        pluribus.aggregate([torch.ones(3, device="meta")])
    with pytest.raises(ContributionError, match=r"contributor 0: tensor 'w': .*call \.to_dense\(\)"):
        pluribus.aggregate([{"w": torch.eye(2).to_sparse()}], engine="torch")
    with pytest.raises(ContributionError, match="lies in this process's memory"):
        rules.Mean()([{"w": x} for x in xs], engine="processes", out=tmp_path / "x.safetensors")
    with pytest.raises(RuleError, match="'torch'"):
        pluribus.aggregate(xs, engine="tensorflow")
    assert isinstance(engines.make("torch"), engines.Torch)


def placed(*devices):
    """Contributions of one tensor, as far as the choice of a medium sees them."""
    spec = contributions.TensorSpec("w", (1,), dtypes.of("float32"))
    rows = tuple((SimpleNamespace(device=torch.device(d) if d else None),) for d in devices)
    return SimpleNamespace(rows=rows, labels=tuple(f"contributor {i}" for i in range(len(rows))), specs=(spec,))


def test_where_contributions_go_by_themselves():
    assert medium.choose(placed("cuda:0", "cuda:0"), False) == Tensors(torch.device("cuda:0"))
    for devices in (
        ("cpu", "cpu"),
        ("cuda:0", "cuda:1"),
        ("cuda:0", "cpu"),
        ("cuda:0", None),
        (None, "cuda"),
        ("mps",),
    ):
        assert medium.choose(placed(*devices), False) == medium.NUMPY
    assert medium.choose(placed("cpu", "cpu"), True) == Tensors(torch.device("cpu"))
    told = r"contributor 1: tensor 'w' lies on cuda:1, contributor 0: tensor 'w' on cuda:0; move all to one device"
    with pytest.raises(ContributionError, match=told):
        medium.choose(placed("cuda:0", "cuda:1"), True)
    with pytest.raises(ContributionError, match=r"mps.* has no float64; call \.cpu\(\) first"):
        medium.choose(placed("mps"), True)


def test_the_engine_says_where(monkeypatch):
    monkeypatch.setattr(medium, "AUTOMATIC", ("cpu",))
    xs = trees()
    assert rules.Mean()(xs)._outcome.active.data.device == torch.device("cpu")
    assert rules.Mean()(xs, engine="threads")._outcome.active.data.device is None
    arrays = [{k: v.numpy() for k, v in x.items() if k != "brain"} for x in xs]
    assert rules.Mean()(arrays)._outcome.active.data.device is None


def test_tensors_do_not_leave_their_device(monkeypatch):
    """What is linear, or a rank, reads no tensor through numpy, whoever asks."""

    def forbidden(*_):
        raise AssertionError("a tensor left its device")

    xs, reference = trees(), trees(1, 1)[0]
    monkeypatch.setattr(TensorLeaf, "items", forbidden)
    monkeypatch.setattr(Tensors, "host", forbidden)
    for made in [*SOME[:6], *SOME[8:], rules.Quantile(0.3), rules.Maximum(), rules.PowerMean(1)]:
        for weights in (None, np.arange(1, N + 1)):
            found = made(xs, weights, engine="torch")
            assert np.isfinite(found.distances).all()
            assert np.isfinite(found.influence()).all()
    with pytest.raises(AssertionError, match="left its device"):
        rules.SignMajority()(xs, engine="torch")
    rules.FLTrust()(xs, reference=reference, engine="torch")
    xs[1]["w"][0] = float("nan")
    for policy in ("drop", "zero"):
        rules.Median()(xs, nonfinite=policy, engine="torch")


@pytest.mark.parametrize("made", [*SOME[:6], rules.per_group(rules.Median())], ids=str)
@pytest.mark.parametrize("weights", [None, np.arange(1, N + 1)], ids=["equal", "unequal"])
def test_passes_make_nothing_on_another_device(monkeypatch, made, weights):
    """Tensors that pretend to be elsewhere refuse to meet others; only flags and sums leave it."""
    fakes = pytest.importorskip("torch._subclasses.fake_tensor", reason="this torch has no fake tensors")
    relation = rules.Krum(f=1)(trees()).relation.gram
    monkeypatch.setattr(kernels, "_told", lambda *flags: [True] * len(flags))
    monkeypatch.setattr(kernels, "_fetched", lambda total: relation[: total.shape[0], : total.shape[-1]])
    monkeypatch.setattr(medium, "AUTOMATIC", ("lazy",))
    with fakes.FakeTensorMode():
        xs = [{k: torch.empty(v.shape, dtype=v.dtype, device="lazy") for k, v in x.items()} for x in trees()]
        found = made(xs, weights)
        assert found._outcome.active.data.device.type == "lazy"
        for key, value in found.value.items():
            assert value.device.type == "lazy"
            assert value.dtype == xs[0][key].dtype
            assert value.shape == xs[0][key].shape


def test_leaves_travel_and_fold(place):
    """A leaf is pickled with its tensor alone; a fold of tensors gives a tensor on their device."""
    leaf = TensorLeaf.of(place.put(torch.arange(12.0).reshape(3, 4).t()))
    leaf.items(0, 12)
    copy = pickle.loads(pickle.dumps(leaf))
    assert np.array_equal(copy.items(1, 11), leaf.items(1, 11))
    assert torch.equal(copy.slice(1, 11), leaf.slice(1, 11))
    fold = rules.Mean().fold()
    for x in trees(3):
        fold.add(place.put(x))
    expected = rules.Mean()(trees(3)).value
    for key, value in fold.result().value.items():
        assert value.device.type == place.device
        assert torch.allclose(value.cpu().to(torch.complex128), expected[key].to(torch.complex128), rtol=1e-2)
