"""The laws of a partition by search, the statistics of each kind, and requests that cannot be met."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pluribus.federated import partition
from pluribus.federated.errors import SettingError

DIGITS = np.repeat(np.arange(10), 140)


@st.composite
def requests(draw):
    n = draw(st.integers(1, 120))
    y = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    clients = draw(st.integers(1, n))
    alpha = draw(st.sampled_from([1e-300, 1e-6, 0.05, 0.5, 3.0, 1e6, 1e300]))
    kind = draw(
        st.sampled_from(
            [
                "iid",
                f"dirichlet:{alpha}",
                f"quantity:{alpha}",
                f"shards:{draw(st.integers(1, max(1, n // clients)))}",
            ]
        )
    )
    return np.array(y), clients, kind, draw(st.integers(0, 5))


@settings(deadline=None, max_examples=150, derandomize=True)
@given(requests())
def test_every_sample_once_and_no_client_empty(request):
    y, clients, kind, seed = request
    make = partition.parse(kind)
    parts = make(y, clients, seed, n_classes=8)
    assert len(parts) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts.indices)), np.arange(len(y)))
    assert min(map(len, parts.indices)) >= 1
    for own, counts in zip(parts.indices, parts.counts, strict=True):
        assert (np.diff(own) > 0).all()
        np.testing.assert_array_equal(counts, np.bincount(y[own], minlength=8))
    np.testing.assert_array_equal(parts.sizes, [len(own) for own in parts.indices])
    np.testing.assert_allclose(parts.distributions.sum(axis=1), 1)
    again = make(y, clients, seed, n_classes=8)
    assert all(np.array_equal(a, b) for a, b in zip(parts.indices, again.indices, strict=True))


def _skew(parts):
    """Mean total variation between a client's labels and everybody's."""
    everyone = parts.counts.sum(axis=0) / parts.counts.sum()
    return np.abs(parts.distributions - everyone).sum(axis=1).mean() / 2


def test_smaller_alpha_is_more_skew_and_large_alpha_is_even():
    skews = [
        np.mean([_skew(partition.dirichlet(DIGITS, 20, alpha, seed)) for seed in range(5)])
        for alpha in (0.05, 0.3, 1.0, 10.0, 1e4)
    ]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.7
    assert skews[-1] < 0.1


def test_shares_of_a_class_follow_the_dirichlet():
    """With one class the gate is idle and a client's share is Beta(a, (k-1) a): mean 1/k, known variance."""
    alpha, clients, n = 0.7, 5, 4000
    shares = np.array([partition.dirichlet(np.zeros(n, int), clients, alpha, s).sizes / n for s in range(400)])
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / clients, atol=4 * np.sqrt(variance / 400))
    np.testing.assert_allclose(shares.var(axis=0).mean(), variance, rtol=0.1)


def test_a_full_client_gets_no_further_class():
    for seed in range(10):
        parts = partition.dirichlet(DIGITS, 10, 0.1, seed)
        ahead = np.cumsum(parts.counts, axis=1) - parts.counts
        late = (ahead >= 140) & (parts.counts > 0)
        assert not late.any()


def test_min_size_is_kept_even_where_redrawing_cannot_reach_it():
    parts = partition.dirichlet(DIGITS, 100, 0.01, seed=0, min_size=14)
    np.testing.assert_array_equal(parts.sizes, 14)
    assert partition.dirichlet(DIGITS, 100, 0.1, seed=0, min_size=5).sizes.min() >= 5
    assert partition.quantity(DIGITS, 100, 0.1, seed=0, min_size=3).sizes.min() == 3


def test_two_shards_are_two_classes_for_most():
    parts = partition.shards(DIGITS, 70, 2, seed=0)
    np.testing.assert_array_equal(parts.sizes, 20)
    classes = (parts.counts > 0).sum(axis=1)
    assert classes.max() == 2
    assert (classes == 2).mean() > 0.7


def test_quantity_skews_sizes_and_not_labels():
    sizes = [partition.quantity(DIGITS, 10, alpha, seed=1).sizes for alpha in (0.2, 100.0)]
    assert sizes[0].max() / sizes[0].min() > 20
    assert sizes[1].max() / sizes[1].min() < 2
    big = partition.quantity(DIGITS, 4, 1.0, seed=1)
    assert _skew(big) < 0.15
    assert np.ptp(partition.iid(DIGITS, 13, seed=0).sizes) == 1


def test_seeds_differ():
    for kind in ("iid", "dirichlet:0.5", "shards:2", "quantity:1"):
        one, other = (partition.parse(kind)(DIGITS, 10, seed) for seed in (0, 1))
        assert any(not np.array_equal(a, b) for a, b in zip(one.indices, other.indices, strict=True))


def test_the_table_shows_the_counts():
    parts = partition.parse("dirichlet:0.1")(DIGITS, 3, seed=0)
    lines = parts.table([f"c{i}" for i in range(10)]).splitlines()
    assert lines[0].split() == ["client", "samples", *(f"c{i}" for i in range(10))]
    for i, line in enumerate(lines[1:4]):
        shown = [0 if cell == "." else int(cell) for cell in line.split()]
        assert shown == [i, parts.sizes[i], *parts.counts[i]]
    assert lines[4].split() == ["all", "1400", *["140"] * 10]
    assert len({len(line) for line in lines}) == 1


def test_texts_and_partitions_name_each_other():
    for text in ("iid", "dirichlet:0.1", "dirichlet:0.123456789", "shards:2", "quantity:0.5", "quantity:1234567.5"):
        assert str(partition.parse(text)) == text
        assert partition.parse(text)(DIGITS, 5, 0).name == text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: partition.iid(DIGITS, 1401, 0), "1401 clients.*need 1401.*1400"),
        (lambda: partition.iid(DIGITS, 0, 0), "clients is 0"),
        (lambda: partition.iid(DIGITS, 2.5, 0), "clients is 2.5"),
        (lambda: partition.iid([], 1, 0), "there are 0|float64"),
        (lambda: partition.dirichlet(DIGITS, 5, 0.0, 0), "alpha is 0.0"),
        (lambda: partition.dirichlet(DIGITS, 5, -1, 0), "alpha is -1"),
        (lambda: partition.dirichlet(DIGITS, 5, float("nan"), 0), "alpha is nan"),
        (lambda: partition.dirichlet(DIGITS, 5, float("inf"), 0), "alpha is inf"),
        (lambda: partition.quantity(DIGITS, 5, float("nan"), 0), "alpha is nan"),
        (lambda: partition.dirichlet(DIGITS, 100, 1, 0, min_size=15), "need 1500"),
        (lambda: partition.dirichlet(DIGITS, 5, 1, 0, n_classes=9), "labels go up to 9"),
        (lambda: partition.dirichlet(DIGITS / 2, 5, 1, 0), "whole numbers"),
        (lambda: partition.dirichlet(-DIGITS, 5, 1, 0), "whole numbers"),
        (lambda: partition.dirichlet(DIGITS, 5, 1, -3), "seed"),
        (lambda: partition.shards(DIGITS, 800, 2, 0), "800 clients x 2 shards"),
        (lambda: partition.shards(DIGITS, 5, 0, 0), "shards_per_client"),
        (lambda: partition.parse("shards:1.5"), "shards_per_client"),
        (lambda: partition.parse("dirichlet"), "takes one number"),
        (lambda: partition.parse("iid:3"), "takes no number"),
        (lambda: partition.parse("dirichlet:abc"), "'abc' is no number"),
        (lambda: partition.parse("dirichlet:nan"), "alpha is nan"),
        (lambda: partition.parse("diriclet:0.1"), "no partition is called 'diriclet'"),
    ],
)
def test_requests_that_cannot_be_met_are_told(make, words):
    with pytest.raises(SettingError, match=words):
        make()
