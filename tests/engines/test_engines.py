"""Wherever passes run, the bits are the same; what is larger than memory is read and written by ranges."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pluribus
from pluribus import engines, rules
from pluribus.core.errors import ContributionError, FileError, NonFiniteError, PluribusError, RuleError

RULES = [
    rules.Mean(),
    rules.Median(),
    rules.MultiKrum(f=1),
    rules.chain(rules.Clip(3.0), rules.NNM(f=1), rules.TrimmedMean(f=1)),
    rules.GeometricMedian(),
]


@pytest.fixture(scope="module")
def trees():
    rng = np.random.default_rng(0)
    base = rng.normal(size=150_000)
    return [
        {
            "w": (base + rng.normal(size=150_000)).reshape(300, 500).astype(np.float32),
            "b": rng.normal(size=70_000),
            "h": rng.normal(size=(9, 7)).astype(np.float16),
            "n": np.array(10 + i),
            "e": np.empty((0, 2), np.float32),
        }
        for i in range(5)
    ]


@pytest.fixture(scope="module")
def paths(trees, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for i, tree in enumerate(trees):
        save_file(tree, folder / f"{i}.safetensors")
    return [folder / f"{i}.safetensors" for i in range(len(trees))]


def bits(tree):
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in tree.items()}


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_file_holds_the_same_bits(rule, trees, paths, tmp_path):
    expected = rule(trees)
    found = rule(paths, out=tmp_path / "out.safetensors")
    assert found.value == tmp_path / "out.safetensors"
    assert bits(load_file(found.value)) == bits(expected.value)
    np.testing.assert_array_equal(found.weights, expected.weights)
    np.testing.assert_allclose(found.distances, expected.distances)
    np.testing.assert_allclose(found.influence(), expected.influence())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.safetensors"], "nothing is left behind"


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(2) as pool:
        yield pool


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_any_executor_gives_the_same_bits(rule, trees, paths, tmp_path, processes):
    expected = rule(trees)
    for name, engine in (("processes", processes), ("threads", engines.Threads(7))):
        found = rule(paths, engine=engine, out=tmp_path / f"{name}.safetensors")
        assert bits(load_file(found.value)) == bits(expected.value)
        np.testing.assert_array_equal(found.weights, expected.weights)
    with ThreadPoolExecutor(3) as pool:
        found = rule(paths, engine=pool, out=tmp_path / "pool.safetensors")
    assert bits(load_file(found.value)) == bits(expected.value)


def test_threads_do_not_change_bits(trees):
    for rule in RULES:
        found = [bits(rule(trees, engine=engines.Threads(k)).value) for k in (1, 2, 7)]
        assert found[0] == found[1] == found[2]


def test_what_other_processes_cannot_do_is_told(trees, paths, tmp_path, processes):
    with pytest.raises(RuleError, match="give out="):
        rules.Mean()(paths, engine=processes)
    with pytest.raises(ContributionError, match="contributor 0 lies in this process's memory"):
        rules.Mean()(trees, engine=processes, out=tmp_path / "x.safetensors")
    with pytest.raises(RuleError, match="engine must be"):
        rules.Mean()(paths, engine="spark")
    for out, told in (
        (tmp_path, "must be the path"),
        (tmp_path / "x.npz", "must be the path"),
        (tmp_path / "no" / "x.safetensors", "cannot be written"),
    ):
        with pytest.raises(FileError, match=told):
            rules.Mean()(paths, out=out)
    with pytest.raises(FileError, match="2 results"):
        rules.Mean()(paths, np.ones((2, 5)), out=tmp_path / "x.safetensors")
    with pytest.raises(FileError, match="named tensors"):
        rules.Mean()([np.ones(2)], out=tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_nan_in_a_file_is_named_and_nothing_is_left(trees, paths, tmp_path, processes):
    bad = {**trees[1], "b": trees[1]["b"].copy()}
    bad["b"][60_000] = np.nan
    save_file(bad, tmp_path / "bad.safetensors")
    mixed = [paths[0], tmp_path / "bad.safetensors", *paths[2:]]
    for engine in (None, processes):
        for rule in (rules.Mean(), rules.MultiKrum(f=1)):
            with pytest.raises(NonFiniteError, match="contributor 1: NaN or Inf in tensor 'b'"):
                rule(mixed, engine=engine, out=tmp_path / "out.safetensors")
        found = rules.Median()(mixed, engine=engine, out=tmp_path / "out.safetensors", nonfinite="drop")
        expected = rules.Median()([t for i, t in enumerate(trees) if i != 1])
        assert bits(load_file(found.value)) == bits(expected.value)
        found.value.unlink()
    assert [p.name for p in tmp_path.iterdir()] == ["bad.safetensors"]


def die_once(job, span):
    """As a task, but the first that finds no mark leaves one and dies."""
    active, mark = job
    if span[0] == 2 and not mark.exists():
        mark.touch()
        os._exit(1)
    return active, span


def die_always(job, span):
    os._exit(1)


def test_the_span_of_a_dead_process_is_given_out_again(tmp_path):
    spans = [(k, k + 1) for k in range(6)]
    engine = engines.Processes(2)
    assert list(engine.run(die_once, ("x", tmp_path / "mark"), spans)) == [("x", span) for span in spans]
    assert (tmp_path / "mark").exists()
    engine.retries = 1
    with pytest.raises(PluribusError, match="died 2 times"):
        list(engine.run(die_always, None, spans))


def test_processes_by_name(trees, paths, tmp_path):
    found = rules.MultiKrum(f=1)(paths, engine="processes", out=tmp_path / "out.safetensors")
    assert bits(load_file(found.value)) == bits(rules.MultiKrum(f=1)(trees).value)


UNGUARDED = """
import sys
import pluribus
print(pluribus.aggregate(sys.argv[2:], engine="processes", out=sys.argv[1]).value)
"""


@pytest.mark.parametrize("how", ["script", "stdin", "text"])
def test_a_script_without_a_guard_is_told_in_a_sentence(paths, tmp_path, how):
    script, out = tmp_path / "unguarded.py", tmp_path / "out.safetensors"
    script.write_text(UNGUARDED)
    start = {"script": [script], "stdin": ["-"], "text": ["-c", UNGUARDED]}[how]
    command = [sys.executable, *start, out, *paths[:2]]
    ran = subprocess.run(command, input=UNGUARDED, capture_output=True, text=True, check=False)
    if how == "text":  # which workers do not import
        assert ran.returncode == 0
        return
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert "EngineError: worker processes" in last
    assert {"script": "`if __name__ == '__main__':`", "stdin": "save the script as a file"}[how] in last
    assert ran.stderr.count("Traceback") == 1, "workers are silent"
    assert [p.name for p in tmp_path.iterdir()] == ["unguarded.py"]


OUT_OF_CORE = """
import resource, sys
import pluribus
from pluribus import rules
rule, out, *paths = sys.argv[1:]
limit = int(float(rule.split("@")[1]) * 2**20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
pluribus.aggregate(paths, rule.split("@")[0], out=out, **({"f": 1} if "krum" in rule else {}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address-space limits and sparse files are Linux's")
@pytest.mark.parametrize("rule", ["mean", "median", "multi_krum"])
def test_files_larger_than_memory(rule, tmp_path):
    """Six files of 400 MB, nearly all holes, in an address space of 700 MB, of which Python and numpy take half."""
    size, marks = 100_000_000, np.arange(6.0, dtype=np.float32)
    paths = []
    for i in range(6):
        path = tmp_path / f"{i}.safetensors"
        save_file({"w": np.empty(0, np.float32)}, path)
        header = f'{{"w":{{"dtype":"F32","shape":[{size}],"data_offsets":[0,{4 * size}]}}}}'.encode()
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + 4 * size)
            file.seek(8 + len(header) + 4 * (size - 3))
            file.write((marks[i] * np.array([1, 10, -1], np.float32)).tobytes())
        paths.append(path)
    out = tmp_path / "out.safetensors"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PLURIBUS_KERNELS": "plain"}
    subprocess.run([sys.executable, "-c", OUT_OF_CORE, f"{rule}@700", out, *paths], check=True, env=environment)
    assert out.stat().st_size > 4 * size
    (tail,) = pluribus.core.checkpoints.read(out).values()
    chosen = {"mean": 2.5, "median": 2.5, "multi_krum": np.mean([0, 1, 2, 3, 4])}[rule]
    if rule == "multi_krum":  # the five closest to each other: both ends are as good, the first wins
        chosen = float(tail.items(size - 3, size - 2)[0])
        assert chosen in (2.0, 3.0)
    np.testing.assert_allclose(tail.items(size - 4, size), np.float32([0, chosen, 10 * chosen, -chosen]))


def test_the_order_of_names_does_not_change_bits(trees):
    turned = [dict(reversed(tree.items())) for tree in trees]
    expected, found = rules.GeometricMedian()(trees), rules.GeometricMedian()(turned)
    np.testing.assert_array_equal(found.weights, expected.weights)


def test_a_fold_takes_files(paths):
    fold = rules.Mean().fold()
    for path in paths:
        fold.add(path)
    np.testing.assert_allclose(fold.result().value["b"], rules.Mean()(paths).value["b"], rtol=1e-9)


def test_paths_may_be_relative_and_the_folder_may_change(paths, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(paths[0]).parent)
    found = rules.Mean()([p.name for p in paths], out=tmp_path / "o.safetensors")
    monkeypatch.chdir(tmp_path)
    assert found.distances.shape == (5,)
