import numpy as np
import pytest
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated.server import FedAvg, FedDisco, disco_weights, label_distances

SIZES = np.array([10.0, 30.0, 40.0, 20.0])
COUNTS = np.array([[5, 5, 0], [10, 10, 10], [40, 0, 0], [1, 4, 15]])


def by_hand(a, b, distance, target):
    """The published rule, one number at a time."""
    histograms = [[c / sum(row) for c in row] for row in COUNTS.tolist()]
    total = COUNTS.sum()
    goal = [1 / 3] * 3 if target == "uniform" else [COUNTS[:, c].sum() / total for c in range(3)]
    d = []
    for h in histograms:
        if distance == "kl":
            d.append(sum(p * np.log(p / q) for p, q in zip(h, goal, strict=True) if p > 0))
        elif distance == "l1":
            d.append(sum(abs(p - q) for p, q in zip(h, goal, strict=True)))
        elif distance == "l2":
            d.append(sum((p - q) ** 2 for p, q in zip(h, goal, strict=True)) ** 0.5)
        else:
            dot = sum(p * q for p, q in zip(h, goal, strict=True))
            d.append(1 - dot / (sum(p * p for p in h) * sum(q * q for q in goal)) ** 0.5)
    if distance == "kl":
        d = [x / sum(d) for x in d]
    raised = [max(0, n / SIZES.sum() - a * x + b) for n, x in zip(SIZES, d, strict=True)]
    return d, [r / sum(raised) for r in raised]


@pytest.mark.parametrize("distance", ["kl", "l2", "l1", "cosine"])
@pytest.mark.parametrize("target", ["uniform", "global"])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.1), (0.2, 0.0), (0.3, 0.5)])
def test_against_the_formula(distance, target, a, b):
    d, weights = by_hand(a, b, distance, target)
    np.testing.assert_allclose(label_distances(COUNTS, distance, target), d, atol=1e-12)
    found = disco_weights(SIZES, COUNTS, a, b, distance=distance, target=target)
    np.testing.assert_allclose(found, weights, atol=1e-12)
    assert abs(found.sum() - 1) < 1e-12


def test_without_a_and_b_it_is_fedavg():
    np.testing.assert_allclose(disco_weights(SIZES, COUNTS, 0, 0), SIZES / SIZES.sum(), rtol=1e-15)
    deltas = np.random.default_rng(0).normal(size=(4, 5))
    one = plain(deltas, sizes=SIZES, label_counts=COUNTS)
    start = {"w": np.ones(5)}
    disco, average = FedDisco(a=0, b=0), FedAvg()
    found = disco.step(disco.init(start, 4), one)
    expected = average.step(average.init(start, 4), one)
    np.testing.assert_array_equal(found["params"]["w"], expected["params"]["w"])
    np.testing.assert_array_equal(found["weights"], expected["weights"])


@pytest.mark.parametrize("distance", ["kl", "l2", "l1", "cosine"])
def test_with_equal_sizes_weights_fall_with_the_distance(distance):
    rng = np.random.default_rng(3)
    for _ in range(20):
        counts = rng.integers(0, 40, size=(9, 4)) + np.eye(9, 4, dtype=int)
        counts[4:, 0] += 1
        d = label_distances(counts, distance)
        weights = disco_weights(np.ones(9), counts, 0.1, 0.1, distance=distance)
        ordered = weights[np.argsort(d, kind="stable")]
        assert (np.diff(ordered) <= 1e-15).all()
        assert weights.max() > weights.min()


def test_the_order_of_clients_is_irrelevant():
    order = [2, 0, 3, 1]
    for distance in ("kl", "l2", "l1", "cosine"):
        for target in ("uniform", "global"):
            whole = disco_weights(SIZES, COUNTS, distance=distance, target=target)
            turned = disco_weights(SIZES[order], COUNTS[order], distance=distance, target=target)
            np.testing.assert_allclose(turned, whole[order], atol=1e-15)


def test_limits():
    # All alike and even: no distance, so nothing to weigh by but size.
    even = np.full((3, 4), 5)
    np.testing.assert_array_equal(label_distances(even), np.zeros(3))
    np.testing.assert_allclose(disco_weights([1, 1, 2], even, b=0.0), [0.25, 0.25, 0.5])
    # Nobody is left with a positive number: sizes.
    one_class = np.diag([5, 5, 5])
    np.testing.assert_allclose(disco_weights([1, 1, 2], one_class, a=100, b=0), [0.25, 0.25, 0.5])
    # One client.
    np.testing.assert_array_equal(disco_weights([7], [[1, 9]]), [1.0])


def test_bad_input_says_why():
    with pytest.raises(RuleError, match="row 1 has no samples"):
        label_distances([[1, 2], [0, 0]])
    with pytest.raises(RuleError, match="k clients x C classes"):
        label_distances([1, 2, 3])
    rule = FedDisco()
    with pytest.raises(RuleError, match="no label_counts"):
        rule.step(rule.init({"w": np.zeros(1)}, 1), plain([[1.0]]))
    with pytest.raises(RuleError, match="distance must be one of 'kl', 'l2', 'l1', 'cosine'"):
        FedDisco(distance="js")
    with pytest.raises(RuleError, match="a must be a non-negative number"):
        FedDisco(a=-1)
