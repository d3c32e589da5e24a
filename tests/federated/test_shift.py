"""Feature and concept skew: what each client sees, who is of one kind, and that no order of calls matters."""

import numpy as np
import pytest

from pluribus.federated import shift
from pluribus.federated.data import Dataset, images
from pluribus.federated.errors import SettingError

RNG = np.random.default_rng(0)
DIGITS = Dataset(RNG.random((30, 64)).astype(np.float32), RNG.integers(0, 10, 30), 10)
TABLE = Dataset(RNG.normal(size=(40, 5)), RNG.integers(0, 3, 40), 3)
TEXTS = ["none", "rotate:90", "rotate:7.5", "tilt:15", "scale:0.5", "noise:0.3", "labels:2"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dataset", [DIGITS, TABLE], ids=["digits", "table"])
def test_shifts_keep_shapes_and_inputs_and_need_no_order(text, dataset):
    made = shift.parse(text)
    assert str(made) == text
    before = dataset.x.copy()
    forward = [made.apply(dataset, i, seed=3) for i in range(8)]
    backward = [made.apply(dataset, i, seed=3) for i in reversed(range(8))][::-1]
    for one, other in zip(forward, backward, strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
        assert one.x.shape == dataset.x.shape
        assert one.x.dtype == dataset.x.dtype
        assert (one.n_classes, one.class_names) == (dataset.n_classes, dataset.class_names)
    np.testing.assert_array_equal(dataset.x, before)


@pytest.mark.parametrize("text", TEXTS)
def test_groups_are_those_who_see_the_same(text):
    made = shift.parse(text)
    groups = made.groups(12)
    assert groups.shape == (12,)
    assert groups.dtype == np.int64
    if text == "noise:0.3":  # the same draws at levels of their own
        np.testing.assert_array_equal(groups, np.arange(12))
        return
    seen = [made.apply(DIGITS, i, seed=1) for i in range(12)]
    for i in range(12):
        for j in range(12):
            same = np.allclose(seen[i].x, seen[j].x, atol=1e-6) and np.array_equal(seen[i].y, seen[j].y)
            assert same == (groups[i] == groups[j])


def test_numbers_of_groups():
    assert shift.parse("none").groups(5).tolist() == [0] * 5
    assert shift.parse("rotate:90").groups(9).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert len(set(shift.parse("rotate:0.1").groups(4000))) == 3600
    assert shift.parse("rotate:0").groups(3).tolist() == [0, 0, 0]
    assert shift.parse("labels:3").groups(5).tolist() == [0, 1, 2, 0, 1]
    assert shift.parse("tilt:0").groups(3).tolist() == [0, 0, 0]


def test_a_quarter_turn_moves_pixels():
    image = np.arange(16.0).reshape(1, 16)
    data = Dataset(image, np.zeros(1, dtype=int), 2)
    turned = shift.parse("rotate:90").apply(data, 1, 0).x.reshape(4, 4)
    np.testing.assert_array_equal(turned, np.rot90(image.reshape(4, 4)))
    np.testing.assert_array_equal(shift.parse("rotate:90").apply(data, 4, 0).x, image)
    for shape in ((1, 4, 4), (1, 1, 4, 4)):
        other = Dataset(image.reshape(shape), np.zeros(1, dtype=int), 2)
        np.testing.assert_array_equal(shift.parse("rotate:90").apply(other, 1, 0).x.reshape(4, 4), turned)


@pytest.mark.parametrize("degrees", [-90.0, 30.0, 45.0, 90.0, 200.0])
def test_turns_agree_with_scipy(degrees):
    from scipy.ndimage import rotate

    picture = np.random.default_rng(1).random((2, 9, 9))
    mine = images.rotated(picture, degrees)
    want = rotate(picture, degrees, axes=(2, 1), reshape=False, order=1, mode="grid-constant")
    np.testing.assert_allclose(mine, want, atol=1e-9)


def test_pictures_that_are_not_square():
    tall = np.random.default_rng(1).random((2, 3, 6, 4))
    np.testing.assert_array_equal(images.rotated(tall, 180), tall[:, :, ::-1, ::-1])
    assert images.rotated(tall, 90).shape == tall.shape
    with pytest.raises(ValueError, match="no images"):
        images.rotated(np.zeros((2, 5)), 90)


def test_samples_that_are_no_images_turn_in_planes_of_features():
    turned = shift.parse("rotate:90").apply(TABLE, 1, 0).x
    np.testing.assert_allclose(turned[:, 0], -TABLE.x[:, 1], atol=1e-15)
    np.testing.assert_allclose(turned[:, 1], TABLE.x[:, 0], atol=1e-15)
    np.testing.assert_array_equal(turned[:, 4], TABLE.x[:, 4])
    odd = shift.parse("rotate:33").apply(TABLE, 1, 0).x
    np.testing.assert_allclose(np.linalg.norm(odd, axis=1), np.linalg.norm(TABLE.x, axis=1))


def test_tilts_scales_and_noise_have_their_spread():
    one = Dataset(np.array([[1.0, 0.0]]), np.zeros(1, dtype=int), 2)
    points = np.array([shift.parse("tilt:20").apply(one, i, 0).x[0] for i in range(500)])
    angles = np.rad2deg(np.arctan2(points[:, 1], points[:, 0]))
    assert np.abs(angles).max() <= 20
    assert angles.std() == pytest.approx(20 / np.sqrt(3), rel=0.1)
    factors = np.log([shift.parse("scale:0.5").apply(one, i, 0).x[0, 0] for i in range(500)])
    assert factors.std() == pytest.approx(0.5, rel=0.12)
    assert abs(factors.mean()) < 4.5 * 0.5 / np.sqrt(500)
    still = Dataset(np.zeros((2000, 3)), np.zeros(2000, dtype=int), 2)
    levels = np.array([shift.parse("noise:2").apply(still, i, 0).x.std() for i in range(200)])
    assert levels.max() <= 2.1
    assert levels.mean() == pytest.approx(1.0, abs=4.5 * 2 / np.sqrt(12 * 200))


def test_parts_of_a_client_have_noise_of_their_own_at_one_level():
    still = Dataset(np.zeros((2000, 3)), np.zeros(2000, dtype=int), 2)
    own, test = (shift.parse("noise:2").apply(still, 5, 0, part=part).x for part in (0, 1))
    assert own.std() == pytest.approx(test.std(), rel=0.1)
    assert abs(np.corrcoef(own.ravel(), test.ravel())[0, 1]) < 0.06
    for text in ("tilt:20", "scale:1", "labels:3"):
        one, other = (shift.parse(text).apply(TABLE, 5, 0, part=part) for part in (0, 1))
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)


def test_groups_disagree_about_every_class():
    everything = Dataset(np.zeros((10, 2)), np.arange(10), 10)
    for groups in (2, 5, 10):
        made = shift.parse(f"labels:{groups}")
        called = np.array([made.apply(everything, i, seed=4).y for i in range(groups)])
        np.testing.assert_array_equal(called[0], np.arange(10))
        for row in called:
            np.testing.assert_array_equal(np.sort(row), np.arange(10))
        for column in called.T:
            assert len(set(column.tolist())) == groups
        np.testing.assert_array_equal(made.apply(everything, groups + 1, 4).y, called[1 % groups])
    ones = [shift.parse("labels:2").apply(everything, 1, seed).y.tolist() for seed in range(5)]
    assert len(set(map(tuple, ones))) == 5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: shift.parse("turn:3"), "no shift is called 'turn'"),
        (lambda: shift.parse("rotat:3"), "did you mean rotate"),
        (lambda: shift.parse("rotate"), "takes one number"),
        (lambda: shift.parse("none:3"), "takes no number"),
        (lambda: shift.parse("rotate:x"), "shift rotate is 'x'"),
        (lambda: shift.parse("rotate:360"), "below 360"),
        (lambda: shift.parse("scale:-1"), "from 0 to 10"),
        (lambda: shift.parse("noise:nan"), "expected a number"),
        (lambda: shift.parse("labels:1.5"), "whole number"),
        (lambda: shift.parse("labels:0"), "whole number"),
        (lambda: shift.parse("labels:4").apply(TABLE, 0, 0), "4 groups.*3 classes"),
        (lambda: shift.Shift("noise", float("inf")), "expected a number"),
    ],
)
def test_bad_shifts_are_told(make, words):
    with pytest.raises(SettingError, match=words):
        make()
