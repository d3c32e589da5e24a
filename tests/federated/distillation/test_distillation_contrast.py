"""CreamFL's cross-modal ensemble: written out, equal scores, a client of noise, and retrieval on half digits."""

import numpy as np
import pytest

from pluribus.core.errors import ContributionError, RuleError
from pluribus.federated.data import digits
from pluribus.federated.distillation import CreamFL, contrast, contrast_scores, contrast_weights, recall_at_one


def drawn(seed=0, k=3, n=7, d=4):
    rng = np.random.default_rng(seed)
    return list(rng.normal(size=(k, n, d))), rng.normal(size=(n, d))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_written_out(temperature, monkeypatch):
    monkeypatch.setattr(contrast, "ROWS", 3)  # blocks do not matter
    clients, other = drawn()
    scores = np.zeros((3, 7))
    for c, local in enumerate(clients):
        for i in range(7):
            powers = [np.exp(local[i] @ other[j] / temperature) for j in range(7)]
            scores[c, i] = np.log(powers[i] / sum(powers))
    np.testing.assert_allclose(contrast_scores(clients[0], other, temperature), scores[0], rtol=1e-12)
    weights = np.exp(scores) / np.exp(scores).sum(axis=0)
    found = CreamFL(temperature)(clients, other)
    np.testing.assert_allclose(found.weights, weights, rtol=1e-12)
    np.testing.assert_allclose(found.weights.sum(axis=0), 1, rtol=1e-14)
    np.testing.assert_allclose(found.value, np.einsum("ki,kid->id", weights, np.array(clients)), rtol=1e-12)


def test_equal_scores_give_the_plain_mean():
    clients, other = drawn()
    same = [clients[0]] * 3
    np.testing.assert_allclose(CreamFL()(same, other).value, clients[0], rtol=1e-12)
    nothing = np.zeros_like(other)
    np.testing.assert_allclose(CreamFL()(clients, nothing).value, np.mean(clients, axis=0), rtol=1e-12)


def test_large_products_do_not_overflow():
    clients, other = drawn()
    found = CreamFL()([1e4 * local for local in clients], other)
    assert np.isfinite(found.value).all()


def halves(seed, clients=4, noisy=1):
    """Digits as two modalities, left and right half, in a common space by CCA; clients see it through noise."""
    rng = np.random.default_rng(seed)
    x = digits().x[rng.permutation(1797)[:400]].reshape(-1, 8, 8)
    views = [x[:, :, :4].reshape(-1, 32), x[:, :, 4:].reshape(-1, 32)]
    whitened = []
    for view in views:
        u, _, _ = np.linalg.svd(view - view.mean(axis=0), full_matrices=False)
        whitened.append(u[:, :20])
    a, _, b = np.linalg.svd(whitened[0].T @ whitened[1])
    left, right = whitened[0] @ a[:, :12], whitened[1] @ b.T[:, :12]
    left, right = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (left, right))
    sent = [left + rng.normal(size=left.shape) * 0.1 for _ in range(clients - noisy)]
    random = rng.normal(size=(noisy, *left.shape))
    sent += list(random / np.linalg.norm(random, axis=2, keepdims=True))
    return sent, right


def test_a_client_of_random_vectors_counts_little_and_retrieval_gains():
    for seed in range(3):
        sent, right = halves(seed)
        found = CreamFL(0.1)(sent, right)
        assert (found.weights[-1] < 1 / 4).mean() > 0.9
        assert recall_at_one(found.value, right) > recall_at_one(np.mean(sent, axis=0), right) + 0.01


def test_bad_input():
    clients, other = drawn()
    with pytest.raises(ContributionError, match="client 1"):
        contrast_weights([clients[0], clients[1][:3]], other)
    with pytest.raises(RuleError, match="client 2: NaN"):
        contrast_weights([*clients[:2], clients[2] * np.nan], other)
    with pytest.raises(ContributionError, match="no client"):
        contrast_weights([], other)
    with pytest.raises(RuleError, match="temperature"):
        contrast_scores(clients[0], other, 0.0)
    with pytest.raises(RuleError, match="temperature"):
        CreamFL(-1)


def test_methods_are_known_by_their_numbers():
    from pluribus.federated import methods

    found = {name: methods.registered()[name] for name in ("co_boosting", "creamfl", "modest", "semi_decentralised")}
    assert [cls.numbers for cls in found.values()] == [(151,), (371,), (206,), (66,)]
    assert all(cls.source and cls.explanation.endswith(".") for cls in found.values())
