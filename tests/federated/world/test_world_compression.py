"""Compressors: what arrives and what is kept add up, messages can be written in their bytes, and bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pluribus.federated.errors import SettingError
from pluribus.federated.world import channel, compression
from pluribus.federated.world.compression import QSGD, Sign, TopK, Whole


def _update(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        "w": (scale * rng.normal(size=(30, 20))).astype(np.float32),
        "b": scale * rng.normal(size=17),
        "h": (scale * rng.normal(size=(5, 3))).astype(np.float16),
        "zero": np.zeros(9, dtype=np.float32),
        "empty": np.zeros((0, 4)),
        "counter": np.array(7),
        "mask": np.array([True, False]),
    }


def _rng(seed=0):
    return np.random.default_rng(seed)


ALL = ["none", "topk:0.1", "topk:1", "topk:0.1:plain", "qsgd:1", "qsgd:16", "sign", "sign:plain"]
WHOLE_OF_OTHERS = 8 + 2


@pytest.mark.parametrize("text", ALL)
def test_structure_inputs_and_texts(text):
    made = compression.parse(text)
    assert str(made) == text
    update, memory = _update(), {"w": np.ones((30, 20), dtype=np.float32)}
    before = {name: value.copy() for name, value in update.items()}
    sent = made.send(update, memory, _rng())
    assert {n: (v.shape, v.dtype) for n, v in sent.update.items()} == {n: (v.shape, v.dtype) for n, v in update.items()}
    assert list(sent.update) == list(update)
    for name in update:
        np.testing.assert_array_equal(update[name], before[name])
    np.testing.assert_array_equal(memory["w"], 1)
    np.testing.assert_array_equal(sent.update["counter"], 7)
    np.testing.assert_array_equal(sent.update["mask"], [True, False])
    again = made.send(update, memory, _rng())
    assert all(np.array_equal(sent.update[name], again.update[name]) for name in update)
    assert bool(sent.memory) == (text in ("topk:0.1", "topk:1", "sign"))


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_diverged_arrives_as_it_is_and_spoils_no_memory(text, bad):
    update, memory = _update(), {"w": np.ones((30, 20), dtype=np.float32)}
    update["b"][3] = bad
    sent = compression.parse(text).send(update, memory, _rng())
    for name in update:
        np.testing.assert_array_equal(sent.update[name], update[name])
    assert sent.bytes == compression.size_of(update)
    if text != "none":
        np.testing.assert_array_equal(sent.memory["w"], 1)


def test_the_largest_of_all_tensors_are_sent_and_the_rest_is_kept_exactly():
    update = _update()
    memory: dict = {}
    for turn in range(4):
        sent = TopK(0.05).send(update, memory, _rng())
        for name, value in update.items():
            if value.dtype.kind == "f":
                target = value + memory.get(name, np.zeros_like(value))
                np.testing.assert_array_equal(sent.update[name] + sent.memory[name], target)
                assert not (sent.update[name] * sent.memory[name]).any()
        chosen = np.concatenate([sent.update[n].ravel().astype(float) for n in ("w", "b", "h", "zero")])
        kept = np.concatenate([sent.memory[n].ravel().astype(float) for n in ("w", "b", "h", "zero")])
        assert np.count_nonzero(chosen) == int(np.ceil(0.05 * len(chosen))) == 33
        assert np.abs(chosen[chosen != 0]).min() >= np.abs(kept).max()
        memory = sent.memory
        update = _update(seed=turn + 1)


def test_of_equals_the_first_are_kept():
    update = {"a": np.array([1.0, -1.0, 1.0, 3.0]), "b": np.array([1.0, 2.0])}
    sent = TopK(0.5).send(update, {}, _rng())
    np.testing.assert_array_equal(sent.update["a"], [1, 0, 0, 3])
    np.testing.assert_array_equal(sent.update["b"], [0, 2])
    assert np.count_nonzero(TopK(0.07).send({"a": np.arange(1.0, 101.0)}, {}, _rng()).update["a"]) == 7


@pytest.mark.parametrize("made", [TopK(0.1), Sign()])
def test_with_feedback_all_of_it_arrives_in_the_end(made):
    """The sum of what arrived is the sum of the updates less one memory, which stays small."""
    constant = {"v": np.linspace(-1, 1, 40)}
    memory: dict = {}
    total = np.zeros(40)
    for _ in range(400):
        sent = made.send(constant, memory, _rng())
        total += sent.update["v"]
        memory = sent.memory
    np.testing.assert_allclose(total + memory["v"], 400 * constant["v"], atol=1e-9)
    np.testing.assert_allclose(total / 400, constant["v"], atol=0.1)
    plain = type(made)(*([made.fraction] if isinstance(made, TopK) else []), feedback=False)
    stuck = 400 * plain.send(constant, {}, _rng()).update["v"]
    assert np.abs(stuck / 400 - constant["v"]).max() > 0.4


def test_signs_have_the_mean_size_of_their_tensor():
    update = {"a": np.array([-3.0, 0.0, 1.0]), "b": np.array([[0.5, -0.25]], dtype=np.float32)}
    sent = Sign().send(update, {}, _rng())
    np.testing.assert_allclose(sent.update["a"], np.array([-1, 1, 1]) * 4 / 3)
    np.testing.assert_allclose(sent.update["b"], [[0.375, -0.375]])
    for name, value in update.items():
        np.testing.assert_allclose(sent.update[name] + sent.memory[name], value, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("levels", "dtype"), [(1, np.float64), (4, np.float32), (255, np.float64)])
def test_qsgd_is_unbiased_and_lies_on_its_levels(levels, dtype):
    value = np.random.default_rng(3).normal(size=50).astype(dtype)
    norm = np.linalg.norm(value.astype(float))
    draws = np.stack([QSGD(levels).send({"v": value}, {}, _rng(k)).update["v"].astype(float) for k in range(3000)])
    step = norm / levels
    np.testing.assert_allclose(draws / step, np.round(draws / step), atol=1e-4)
    assert np.abs(draws - value).max() <= step * (1 + 1e-6)
    spread = draws.std(axis=0)
    assert (np.abs(draws.mean(axis=0) - value) <= 4.8 * spread / np.sqrt(3000) + 1e-6).all()
    variance = np.square(draws - value).sum(axis=1).mean()
    assert variance <= min(50 / levels**2, np.sqrt(50) / levels) * norm**2 * 1.05
    assert variance > 0


def test_qsgd_of_one_number_is_that_number():
    for x in (0.1, -3.7, 1e-40, 1e38):
        update = {"v": np.array([x], dtype=np.float32)}
        sent = QSGD(3).send(update, {}, _rng()).update["v"]
        np.testing.assert_allclose(sent, update["v"], rtol=1e-6)
    for x in (1e-310, 1e308):
        np.testing.assert_allclose(QSGD(3).send({"v": np.array([x])}, {}, _rng()).update["v"], [x], rtol=1e-6)


def _message_of_topk(sent):
    """A message as the docstring tells, written and read back."""
    parts, back = [], {}
    for name, value in sent.items():
        if value.dtype.kind != "f":
            parts.append(value.tobytes())
            continue
        places = np.flatnonzero(value.ravel())
        width = np.uint16 if value.size <= 2**16 else np.uint32
        listed = places.astype(width).tobytes()
        bits = np.packbits(value.ravel() != 0).tobytes()
        short = listed if len(listed) <= len(bits) else bits
        parts += [np.uint32(len(places)).tobytes(), short, value.ravel()[places].tobytes()]
        found = (
            np.frombuffer(short, width)
            if short is listed
            else np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8)))
        )
        flat = np.zeros(value.size, value.dtype)
        flat[found] = np.frombuffer(parts[-1], value.dtype)
        back[name] = flat.reshape(value.shape)
    return b"".join(parts), back


@pytest.mark.parametrize("fraction", [0.001, 0.02, 0.3])
def test_bytes_of_topk_are_those_of_a_message(fraction):
    update = _update() | {"wide": np.random.default_rng(9).normal(size=70_000).astype(np.float32)}
    sent = TopK(fraction).send(update, {}, _rng())
    message, back = _message_of_topk(sent.update)
    assert len(message) == sent.bytes
    for name, value in back.items():
        np.testing.assert_array_equal(value, sent.update[name])


def test_bytes_of_qsgd_and_sign_are_those_of_a_message():
    update = _update()
    sent = QSGD(5).send(update, {}, _rng())
    # 5 levels and 0 are 3 bits, and a sign; the norm is 4 bytes, 8 for the tensors of float64.
    packed = {"w": 4 + 300, "b": 8 + 9, "h": 4 + 8, "zero": 4 + 5, "empty": 8}
    assert sent.bytes == sum(packed.values()) + WHOLE_OF_OTHERS
    levels = np.round(np.abs(sent.update["w"]) / (np.linalg.norm(update["w"].astype(float)) / 5))
    bits = np.concatenate([np.unpackbits(np.uint8(x))[4:] for x in levels.ravel() + 8 * (sent.update["w"].ravel() < 0)])
    assert len(np.packbits(bits)) == 300
    sent = Sign().send(update, {}, _rng())
    assert sent.bytes == (4 + 75) + (8 + 3) + (4 + 2) + (4 + 2) + 8 + WHOLE_OF_OTHERS
    assert Whole().send(update, {}, _rng()).bytes == 2400 + 136 + 30 + 36 + 8 + 2
    assert compression.size_of({"a": {"b": np.zeros(3)}, "c": np.zeros(2, np.float32)}) == 32


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30),
    st.sampled_from(["topk:0.3", "sign", "qsgd:3"]),
    st.sampled_from([np.float32, np.float64]),
)
def test_whatever_the_numbers(numbers, text, dtype):
    update = {"v": np.array(numbers, dtype=dtype)}
    sent = compression.parse(text).send(update, {}, _rng())
    assert np.isfinite(sent.update["v"]).all()
    if sent.memory:
        size = np.abs(update["v"]).max()
        error = np.abs(sent.update["v"] + sent.memory["v"] - update["v"])
        assert (error <= 2 * np.finfo(dtype).eps * size).all()
        # A contraction: less is left than there was.
        assert np.linalg.norm(sent.memory["v"].astype(float)) <= np.linalg.norm(update["v"].astype(float)) * (1 + 1e-6)
    else:
        norm = np.linalg.norm(update["v"].astype(float))
        assert (np.abs(sent.update["v"] - update["v"].astype(float)) <= norm / 3 * (1 + 1e-5)).all()


def test_where_a_norm_does_not_fit_the_tensor_travels_whole():
    update = {"v": np.full(100, 3e38, dtype=np.float32)}
    sent = QSGD(4).send(update, {}, _rng())
    np.testing.assert_array_equal(sent.update["v"], update["v"])
    assert sent.bytes == 4 + 400


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topk", "topk:0.01"),
        ("topk:0", "topk's fraction is '0'"),
        ("topk:1.5", "expected a number in"),
        ("qsgd:0", "qsgd's levels is 0"),
        ("qsgd:2.5", "whole number"),
        ("qsgd:4:plain", "no compression is called"),
        ("sign:3", "no compression is called"),
        ("none:3", "no compression is called"),
        ("sing", "did you mean sign"),
        ("topk:0.1+dp:1:1", "protection stands before"),
    ],
)
def test_bad_texts_are_told(text, words):
    with pytest.raises(SettingError, match=words):
        channel.parse(text)


def test_bad_parameters_and_memories_are_told():
    for make in (lambda: TopK(0), lambda: TopK(float("nan")), lambda: QSGD(0), lambda: QSGD(1.5)):
        with pytest.raises(SettingError):
            make()
    for memory in ({"w": np.zeros(3)}, {"other": np.zeros(3)}):
        with pytest.raises(SettingError, match="memory has shape"):
            Sign().send(_update(), memory, _rng())
