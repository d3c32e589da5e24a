"""Contributions that are files: read by ranges, and never trusted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from pluribus import aggregate
from pluribus.core import checkpoints
from pluribus.core.errors import ContributionError, FileError, PluribusError


@pytest.fixture
def trees(rng):
    return [
        {"a.weight": rng.normal(size=(3, 4)).astype(np.float32), "a.bias": rng.normal(size=4), "n": np.array(7 + i),
         "half": rng.normal(size=5).astype(np.float16), "empty": np.empty((0, 2), np.float32)}
        for i in range(4)
    ]  # fmt: skip


@pytest.fixture
def paths(trees, tmp_path):
    found = []
    for i, tree in enumerate(trees):
        found.append(tmp_path / f"modèle {i}.safetensors")
        save_file(tree, found[-1], metadata={"format": "np"})
    return found


@pytest.mark.parametrize("rule", ["mean", "median", "geometric_median"])
def test_files_give_what_arrays_give(trees, paths, rule):
    expected, found = aggregate(trees, rule).value, aggregate(paths, rule).value
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    mixed = aggregate([trees[0], str(paths[1]), *paths[2:]], rule).value
    np.testing.assert_array_equal(mixed["a.bias"], expected["a.bias"])


def test_bfloat16_is_read_and_rounded_to_nearest(tmp_path):
    values = np.array([1.0, 1.0078125, -3.0, 256.0], np.float32)  # all are bfloat16 numbers
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    header = json.dumps({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "b.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bits.tobytes())
    read = checkpoints.read(path)["w"]
    assert read.dtype.name == "bfloat16"
    np.testing.assert_array_equal(np.asarray(aggregate([path, path]).value["w"], np.float32), values)


def test_a_sharded_checkpoint_is_one_contribution(trees, tmp_path):
    names = list(trees[0])
    folders = []
    for k, tree in enumerate(trees[:2]):
        folder = tmp_path / str(k)
        folder.mkdir()
        save_file({n: tree[n] for n in names[:2]}, folder / "m-1.safetensors")
        save_file({n: tree[n] for n in names[2:]}, folder / "m-2.safetensors")
        where = {n: f"m-{1 + (i >= 2)}.safetensors" for i, n in enumerate(names)}
        (folder / "m.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        folders.append(folder)
    found = aggregate(folders).value
    np.testing.assert_array_equal(found["a.bias"], aggregate(trees[:2]).value["a.bias"])
    index = folders[0] / "m.safetensors.index.json"
    for content, told in (
        ('{"weight_map": {"x": "../1/m-1.safetensors"}}', "same folder"),
        ('{"weight_map": {"x": "m-1.safetensors"}}', "holds 'x', and it does not"),
        ("{}", "weight_map"),
        ("[", "no index"),
    ):
        index.write_text(content)
        with pytest.raises(FileError, match=told):
            checkpoints.read(folders[0])


def test_every_truncation_is_noticed(paths, tmp_path):
    whole = paths[0].read_bytes()
    cut = tmp_path / "cut.safetensors"
    for size in [*range(0, len(whole) - 1, 7), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(FileError, match="cut"):
            checkpoints.read(cut)


def write(path, header, data=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b"\xff\xfe", "not JSON"),
        ([], "no mapping"),
        ({"w": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, "entry that cannot be used"),
        ({"w": {"dtype": "F32", "shape": [1]}}, "entry that cannot be used"),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "needs 8 bytes, has 4"),
        ({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}, "needs"),
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, "needs"),
        ({"w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}, "truncated"),
        (
            {n: {"dtype": "F32", "shape": [2], "data_offsets": [k, k + 8]} for n, k in (("v", 0), ("w", 4))},
            "'v' and 'w' overlap",
        ),
    ],
)
def test_headers_are_not_trusted(tmp_path, header, told):
    write(tmp_path / "bad.safetensors", header, bytes(16))
    with pytest.raises(FileError, match=told):
        checkpoints.read(tmp_path / "bad.safetensors")


def test_paths_that_are_no_checkpoints(tmp_path, paths):
    (tmp_path / "model.bin").write_bytes(b"x")
    for path, told in (
        (tmp_path / "none.safetensors", "cannot be read"),
        (tmp_path / "model.bin", "expected a .safetensors file"),
        (tmp_path, "holds 4 checkpoints"),
    ):
        with pytest.raises(FileError, match=told):
            checkpoints.read(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="holds no"):
        checkpoints.read(tmp_path / "empty")
    with pytest.raises(PluribusError):
        aggregate([paths[0], tmp_path / "none.safetensors"])


def test_a_file_unlike_the_others_is_named(paths, tmp_path):
    save_file({"other": np.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(ContributionError, match="contributor 1 lacks"):
        aggregate([paths[0], tmp_path / "x.safetensors"])
