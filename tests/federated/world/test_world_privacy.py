"""Clipping and noise on the client's side, and the channel that puts them before compression."""

import numpy as np
import pytest

from pluribus.federated.errors import SettingError
from pluribus.federated.world import channel, privacy
from pluribus.federated.world.compression import TopK
from pluribus.federated.world.privacy import Privacy


def _rng(seed=0):
    return np.random.default_rng(seed)


def _update():
    return {"w": np.full((3, 4), 2.0, dtype=np.float32), "b": np.array([4.0]), "counter": np.array(5)}


def test_clipping_is_over_all_tensors_together_and_keeps_the_direction():
    norm = np.sqrt(12 * 4 + 16)
    for clip in (1.0, 7.9):
        sent = Privacy(clip, 0).protect(_update(), _rng())
        assert sent.norm == pytest.approx(norm)
        assert sent.clipped
        np.testing.assert_allclose(sent.update["w"], 2 * clip / norm, rtol=1e-6)
        np.testing.assert_allclose(sent.update["b"], 4 * clip / norm)
    loose = Privacy(8.1, 0).protect(_update(), _rng())
    assert not loose.clipped
    np.testing.assert_array_equal(loose.update["w"], 2)
    assert loose.update["w"].dtype == np.float32
    assert loose.update["counter"] == 5


def test_noise_has_its_deviation_and_its_seed():
    big = {"w": np.zeros((200, 300)), "b": np.zeros(50, dtype=np.float32)}
    made = Privacy(2.0, 1.5)
    one, same, other = (made.protect(big, _rng(seed)).update for seed in (0, 0, 1))
    assert one["w"].std() == pytest.approx(3.0, rel=0.01)
    assert abs(one["w"].mean()) < 4.5 * 3 / np.sqrt(60_000)
    np.testing.assert_array_equal(one["w"], same["w"])
    assert abs(np.corrcoef(one["w"].ravel(), other["w"].ravel())[0, 1]) < 0.02
    assert (big["w"] == 0).all()


def test_only_what_is_named_is_protected():
    sent = Privacy(1.0, 1.0).protect(_update(), _rng(), trained=["b"])
    np.testing.assert_array_equal(sent.update["w"], 2)
    assert sent.norm == 4
    assert sent.update["b"] != 4
    with pytest.raises(SettingError, match="'a', which the update does not hold"):
        Privacy(1.0, 1.0).protect(_update(), _rng(), trained=["b", "a"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_diverged_counts_as_zero(bad):
    update = _update()
    update["w"][1, 1] = bad
    sent = Privacy(1.0, 0.0).protect(update, _rng())
    assert sent.norm == np.inf
    assert sent.clipped
    assert not sent.update["w"].any()
    assert not sent.update["b"].any()
    assert np.isfinite(Privacy(1.0, 1.0).protect(update, _rng()).update["w"]).all()


def test_huge_and_no_updates():
    huge = {"w": np.full(4, 1e300)}
    sent = Privacy(2.0, 0.0).protect(huge, _rng())
    np.testing.assert_allclose(sent.update["w"], 1.0)
    nothing = Privacy(2.0, 0.0).protect({"w": np.zeros(4), "e": np.zeros(0)}, _rng())
    assert (nothing.norm, nothing.clipped) == (0.0, False)


def test_a_channel_protects_and_then_compresses():
    made = channel.parse("dp:1:0.5+topk:0.2")
    update = {"w": np.arange(10.0)}
    sent = made.send(update, {}, _rng(3))
    blurred = Privacy(1, 0.5).protect(update, _rng(3)).update
    want = TopK(0.2).send(blurred, {}, _rng())
    np.testing.assert_array_equal(sent.update["w"], want.update["w"])
    np.testing.assert_array_equal(sent.memory["w"], want.memory["w"])
    assert sent.bytes == want.bytes


@pytest.mark.parametrize("text", ["none", "dp:1:0.5", "sign", "dp:1:0.5+topk:0.01", "dp:0.25:0+qsgd:16"])
def test_channels_and_texts_name_each_other(text):
    made = channel.parse(text)
    assert str(made) == text
    assert channel.parse(str(made)) == made
    assert made.plain == (text == "none")


def test_protections_and_texts_name_each_other():
    assert privacy.parse("none") is None
    assert privacy.parse("dp:1:0.5") == Privacy(1, 0.5)
    assert str(Privacy(0.1, 2)) == "dp:0.1:2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dp", "dp:CLIP:NOISE"),
        ("dp:1", "dp:CLIP:NOISE"),
        ("dp:0:1", "dp's clip is '0'"),
        ("dp:1:-1", "dp's noise is '-1'"),
        ("dp:1:inf", "noise"),
        ("sign+dp:1:1", "protection stands before"),
    ],
)
def test_bad_texts_are_told(text, words):
    with pytest.raises(SettingError, match=words):
        channel.parse(text)


def test_bad_parameters_are_told():
    for pair in ((0, 1), (1, -1), (float("inf"), 1), (1, float("nan"))):
        with pytest.raises(SettingError, match="dp: "):
            Privacy(*pair)
