"""Contributions that are files: read by ranges, and never trusted."""

from __future__ import annotations

import json
import os
import socket

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
        ('{"weight_map": {"x": 3}}', "weight_map"),
        ('{"weight_map": {"x": "m-1.safetensors", "x": "m-2.safetensors"}}', "'x' comes twice"),
        ('{"weight_map": ' + "[" * 100_000, "nested too deep|not JSON"),
        ('{"weight_map": {"x": "a\\u0000"}}', "NUL"),
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


def test_axes_up_to_numpys_limit(tmp_path):
    for axes, data in (([1] * 32, bytes(4)), ([0, 2**31], b"")):
        write(tmp_path / "w.safetensors", {"w": {"dtype": "F32", "shape": axes, "data_offsets": [0, len(data)]}}, data)
        assert aggregate([tmp_path / "w.safetensors"]).value["w"].shape == tuple(axes)


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
        (
            {n: {"dtype": "F32", "shape": [1], "data_offsets": [k, k + 4]} for n, k in (("v", 0), ("w", 8))},
            "4 bytes between 'v' and 'w' are no tensor's",
        ),
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "12 bytes between 'w' and 'the end'"),
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}}, "12 bytes between 'the header' and 'w'"),
        (b'{"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "w": {}}', "'w' comes twice"),
        (b'{"w": {"dtype": "F32", "dtype": "F64", "shape": [4], "data_offsets": [0, 16]}}', "'dtype' comes twice"),
        *[
            (f'{{"w": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'.encode(), told)
            for shape, offsets, told in (
                ("[4.0]", "[0, 16]", "entry that cannot be used"),
                ('["4"]', "[0, 16]", "entry that cannot be used"),
                ("[true, 4]", "[0, 16]", "entry that cannot be used"),
                ('"4"', "[0, 16]", "entry that cannot be used"),
                ("[4]", "[0, 16.0]", "entry that cannot be used"),
                ("[4]", "[0, Infinity]", "entry that cannot be used"),
                ("[Infinity]", "[0, 16]", "entry that cannot be used"),
                ("[NaN]", "[0, 16]", "entry that cannot be used"),
                ("[4]", "[0, 16, 16]", "entry that cannot be used"),
                ("[0, 9223372036854775808]", "[0, 0]", "no array can have"),
                ("[0, 4611686018427387904]", "[0, 0]", "no array can have"),
                (f"[{'1, ' * 99}4]", "[0, 16]", "no array can have"),
                (f"[{'9' * 5000}]", "[0, 16]", "not JSON"),
            )
        ],
        (b'{"w": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]}}', "entry that cannot be used"),
        (b'{"w": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep|cannot be used"),
        ('{"w": {}}'.encode("utf-16"), "not JSON"),
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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and sockets with names are POSIX's")
def test_only_regular_files_are_opened(paths, tmp_path):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "m.safetensors.index.json").write_text('{"weight_map": {"x": "s.safetensors"}}')
    os.mkfifo(tmp_path / "shards" / "s.safetensors")
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped" / "m.safetensors.index.json")
    os.mkfifo(tmp_path / "f.safetensors")
    (tmp_path / "d.safetensors").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.relpath(tmp_path / "s.safetensors"))  # a socket's path is short
        for name in ("f.safetensors", "d.safetensors", "s.safetensors", "shards", "piped"):
            with pytest.raises(FileError, match=r"cannot be read: it is a folder, a pipe, a socket or a device"):
                aggregate([paths[0], tmp_path / name])


def test_an_empty_path_is_no_folder(paths, monkeypatch):
    for path in paths[1:]:
        path.unlink()
    monkeypatch.chdir(paths[0].parent)
    assert aggregate(["."]).value["n"] == 7
    with pytest.raises(FileError, match="path is empty"):
        aggregate([""])


def test_what_may_not_be_read_is_told(paths, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    for call in ("stat", "open"):
        with monkeypatch.context() as patched:
            patched.setattr(checkpoints.os, call, refuse)
            with pytest.raises(FileError, match=r"0\.safetensors cannot be read: permission denied; check"):
                aggregate(paths)
