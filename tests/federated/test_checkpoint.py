"""A run on disk: it comes back as it was, or not at all; and goes on as if it had never stopped."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from pluribus.core.errors import FileError, RuleError
from pluribus.federated import checkpoint, server, simulate
from pluribus.federated.checkpoint import Clock
from pluribus.federated.history import History
from pluribus.federated.setup import build, load
from pluribus.federated.simulation import Run


def run_of(state) -> Run:
    history = History.empty(3, 2)
    history.accuracy[:2] = [0.25, 0.5]
    history.present[0] = [True, False]
    return Run(2, state, history)


STATE = {
    "params": {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "n/1": np.array(7)},
    "deep": {"er": {"still": np.array([True, False])}},
    "scalar": np.float64(0.5),
    "none": np.zeros((0, 2)),
    "strided": np.arange(10.0)[::3],
}


def test_a_run_comes_back_as_it_was(tmp_path):
    run = run_of(STATE)
    checkpoint.save(tmp_path / "a", run, "me", Clock(1.5, 2.5))
    back, clock = checkpoint.load(tmp_path / "a", "me")
    assert clock == Clock(1.5, 2.5)
    assert back.round == 2
    assert list(back.state) == list(STATE)
    assert back.state["params"]["a.weight"].dtype == np.float32
    for path in (
        ("params", "a.weight"),
        ("params", "n/1"),
        ("deep", "er", "still"),
        ("scalar",),
        ("none",),
        ("strided",),
    ):
        one, other = STATE, back.state
        for key in path:
            one, other = one[key], other[key]
        assert (np.asarray(one) == other).all()
        assert np.shape(one) == other.shape
        assert other.flags.writeable
    for f in dataclasses.fields(History):
        one, other = getattr(run.history, f.name), getattr(back.history, f.name)
        assert one.tobytes() == other.tobytes()
        assert one.dtype == other.dtype
        assert other.flags.writeable


def test_the_same_run_gives_the_same_bytes(tmp_path):
    for name in "ab":
        checkpoint.save(tmp_path / name, run_of(STATE), "me", Clock())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_every_damage_is_found(tmp_path):
    path = tmp_path / "a"
    checkpoint.save(path, run_of(STATE), "me", Clock())
    whole = path.read_bytes()
    for cut in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(FileError):
            checkpoint.load(path, "me")
    for place in range(8, len(whole), 37):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(FileError):
            checkpoint.load(path, "me")
    path.write_bytes(whole)
    checkpoint.load(path, "me")


def test_what_belongs_to_others_is_refused(tmp_path):
    checkpoint.save(tmp_path / "a", run_of(STATE), "me", Clock())
    with pytest.raises(FileError, match="another run"):
        checkpoint.load(tmp_path / "a", "you")
    with pytest.raises(FileError, match="no checkpoint"):
        checkpoint.load(tmp_path / "none", "me")
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(2)}, tmp_path / "b")
    with pytest.raises(FileError, match="no checkpoint"):
        checkpoint.load(tmp_path / "b", "me")


def test_a_state_is_a_tree_of_arrays(tmp_path):
    with pytest.raises(TypeError, match="deep/x' is a list"):
        checkpoint.save(tmp_path / "a", run_of({"deep": {"x": [1]}}), "me", Clock())
    with pytest.raises(TypeError, match="'deep' is empty"):
        checkpoint.save(tmp_path / "a", run_of({"deep": {}}), "me", Clock())
    assert not list(tmp_path.iterdir())


# Every server rule, and each kind of stateless one: without state, with a reference, a chain, by coordinate.
RULES = [
    *(f"{name}:cutoff=2" if name == "fedau" else name for name in server.registered()),
    *("median", "krum", "centered_clipping:radius=1", "nnm+geometric_median", "fedlaw:gamma=1"),
]


class StopError(Exception):
    pass


@pytest.mark.parametrize("text", RULES)
def test_a_run_goes_on_as_if_it_had_never_stopped(settings_of, tmp_path, text):
    momentum = 0.0 if text == "diloco" else 0.5  # its clients have AdamW's
    settings = settings_of(attack="gaussian:1", participation="bernoulli:0.9", momentum=momentum)
    setup, rule = build(settings, load(settings), 0), server.parse(text, attackers=1)
    try:
        rule.init(setup.model.init(0), len(setup.clients))
    except RuleError as error:
        pytest.skip(f"not for this model: {error}")
    whole = simulate(setup, rule, 0, rounds=4)
    counter = itertools.count(1)

    def stop(run):
        checkpoint.save(tmp_path / "run", run, "me", Clock())
        if next(counter) in (1, 3):
            raise StopError

    start = None
    for _ in range(2):
        with pytest.raises(StopError):
            simulate(setup, rule, 0, rounds=4, start=start, after_round=stop)
        start = checkpoint.load(tmp_path / "run", "me")[0]
    assert start is not None
    assert start.round == 3
    again = simulate(setup, rule, 0, rounds=4, start=start)
    for name, run in (("a", whole), ("b", again)):
        checkpoint.save(tmp_path / name, run, "me", Clock())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
