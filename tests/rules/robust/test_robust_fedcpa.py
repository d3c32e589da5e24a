"""FedCPA against a direct computation with index sets, the authors' code, and its catalogue check (364)."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core import execution
from pluribus.core.contributions import gather
from pluribus.core.errors import NonFiniteError, RuleError
from pluribus.core.passes import Active
from pluribus.federated.data import digits, split
from pluribus.federated.models import MLP
from pluribus.federated.partition import dirichlet
from pluribus.federated.server import Round, Stateless
from pluribus.federated.training import LocalTraining, train
from pluribus.rules.robust import fedcpa
from pluribus.rules.robust.fedcpa import PREVIOUS, agreements, thresholds, trust


def models(seed, n=6, d=300, bad=1):
    """A global model, the one before, and models trained from it; the last ones go the other way."""
    rng = np.random.default_rng(seed)
    before = rng.normal(size=d)
    current = before + 0.1 * rng.normal(size=d)
    step = 0.2 * rng.normal(size=d)
    x = current + step + 0.05 * rng.normal(size=(n, d))
    x[n - bad :] = 2 * current - x[n - bad :]
    return x, current, before


def active(x, current, before=None):
    extras = {"reference": current} | ({PREVIOUS: before} if before is not None else {})
    return Active(gather(list(x)).with_extras(extras), tuple(range(len(x))))


def similarity(a, b, count):
    """Of two vectors of importances, with sets of indices."""
    total = 0.0
    for sign in (-1, 1):
        sets = [set(np.argsort(sign * v, kind="stable")[:count].tolist()) for v in (a, b)]
        shared = sorted(sets[0] & sets[1])
        jaccard = len(shared) / len(sets[0] | sets[1])
        r = np.corrcoef(a[shared], b[shared])[0, 1] if len(shared) > 1 else 0.0
        total += (jaccard + (r + 1) / 2) / 2
    return total


def rule_directly(x, current, before, fraction):
    n, count = len(x), max(1, int(fraction * x.shape[1]))
    s = np.abs((x - current) * x)
    pairs = np.array([[1.0 if i == j else similarity(s[i], s[j], count) for j in range(n)] for i in range(n)])
    score = pairs.mean(axis=1)
    if before is not None:
        last = np.abs((current - before) * current)
        score += [similarity(row, last, count) for row in s]
    scaled = np.clip((score - score.min()) / np.ptp(score), 0.01, 0.99)
    a = np.clip(np.log(scaled / (1 - scaled)) + 0.5, 0, 1)
    return current + a @ (x - current) / (a > 0).sum(), a


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("with_previous", [False, True])
def test_is_the_published_procedure(fraction, with_previous):
    for seed in range(5):
        x, current, before = models(seed)
        before = before if with_previous else None
        value, a = rule_directly(x, current, before, fraction)
        rule = rules.FedCPA(fraction=fraction)
        found = rule.compose(active(x, current, before), np.full(6, 1 / 6), execution.execute)
        np.testing.assert_allclose(found.results[0][0], value, atol=1e-10)
        front = aggregate(list(x), "fedcpa", fraction=fraction, reference=current, previous=before)
        for called in (rule(list(x), reference=current, previous=before), front):
            np.testing.assert_allclose(called.value, value, atol=1e-10)
            np.testing.assert_allclose(called.weights, a / (a > 0).sum(), atol=1e-10)


def test_is_the_authors_code():
    """Sungwon-Han/FEDCPA, global_aggregation with 'cpa' (sets of 20 % for 1 %), on these models: its five weights."""
    rng = np.random.default_rng(7)
    rng.normal(size=(6, 8)), rng.normal(size=8)
    before = np.round(rng.normal(size=60), 3)
    current = np.round(before + 0.1 * rng.normal(size=60), 3)
    step = 0.2 * rng.normal(size=60)
    x = np.stack([np.round(current + step + 0.05 * rng.normal(size=60), 4) for _ in range(5)])
    x[4] = np.round(current - (x[4] - current), 4)
    similar = agreements(active(x, current, before), 0.2)
    among = similar[:5, :5].copy()
    np.fill_diagonal(among, 1)
    np.testing.assert_allclose(trust(among.mean(axis=1) + similar[:5, 5]), [1, 0.02532604711, 1, 1, 0], atol=1e-6)


@pytest.mark.parametrize("count", [1, 7, 100, 499, 500])
def test_thresholds_are_exact(count):
    rng = np.random.default_rng(count)
    x = rng.normal(size=(3, 1000)) * np.exp(3 * rng.normal(size=(3, 1000)))
    current = rng.normal(size=1000)
    x[1, 300:] = current[300:]  # importances of zero: most of one model stayed as it was
    importance = np.sort(np.abs((x - current) * x), axis=1)
    largest, smallest = thresholds(active(x, current), count)
    np.testing.assert_array_equal(largest, importance[:, -count])
    np.testing.assert_array_equal(smallest, importance[:, count - 1])


def test_many_blocks(monkeypatch):
    x, current, _ = models(1, d=5000)
    tree = [{"a": row[:1234], "b": row[1234:].reshape(7, -1)} for row in x]
    reference = {"a": current[:1234], "b": current[1234:].reshape(7, -1)}
    whole = rules.FedCPA()(list(x), reference=current)
    monkeypatch.setattr(fedcpa, "_TABLE", 7 * 333)
    parts = rules.FedCPA()(tree, reference=reference)
    np.testing.assert_allclose(parts.weights, whole.weights, atol=1e-12)
    np.testing.assert_allclose(parts.value["a"], whole.value[:1234], atol=1e-12)


class TestCatalogue:
    def test_agreement_is_the_mean(self):
        current = np.linspace(-1, 1, 50)
        for x in (np.tile(current + 0.1, (4, 1)), np.tile(current, (4, 1))):
            found = rules.FedCPA()(list(x), [1, 2, 3, 4], reference=current)
            np.testing.assert_allclose(found.weights, [0.1, 0.2, 0.3, 0.4])
            np.testing.assert_allclose(found.value, x[0])

    def test_the_order_does_not_matter(self):
        x, current, _ = models(2)
        order = np.random.default_rng(0).permutation(6)
        weights = rules.FedCPA(0.1)(list(x), reference=current).weights
        np.testing.assert_allclose(rules.FedCPA(0.1)(list(x[order]), reference=current).weights, weights[order])

    def test_label_flippers_on_uneven_digits(self):
        """Two of ten clients train on shifted labels and send three times their step.

        The catalogue also names sign flips: with so small a model (softmax or one hidden layer) their weight was
        below their share in some seeds and above it in others, so that is not claimed here.
        """
        data = split(digits(), seed=0, test=0.25, proxy=10).standardized()
        parts = dirichlet(data.train.y, 10, 0.5, seed=0).indices
        model, how = MLP(64, 32, 10), LocalTraining(epochs=2, batch_size=16, lr=0.05)

        def run(rule):
            params, shares = model.init(0), []
            for turn in range(8):
                sent = []
                for k, part in enumerate(parts):
                    own = data.train.take(part)
                    own = own.with_labels((own.y + 1) % 10) if k < 2 else own
                    trained = train(model, params, own, how, seed=100 * turn + k).params
                    boost = 3.0 if k < 2 else 1.0
                    sent.append({key: params[key] + boost * (trained[key] - params[key]) for key in params})
                found = rule(sent, reference=params) if rule.uses_reference else rule(sent)
                shares.append(found.weights[:2].sum() / found.weights.sum())
                params = found.value
            return float((model.predict(params, data.test.x) == data.test.y).mean()), float(np.mean(shares))

        accuracy, share = run(rules.FedCPA(fraction=0.05))
        assert share < 0.5 * 0.2
        assert accuracy > run(rules.Mean())[0] + 0.05
        assert accuracy > run(rules.Krum(f=2))[0]


def test_the_last_step_counts():
    x, current, before = models(5)
    without, given = (aggregate(list(x), "fedcpa", reference=current, previous=p).weights for p in (None, before))
    assert np.abs(given - without).max() > 1e-3
    with pytest.raises(RuleError, match="has no use for previous=, what the reference was"):
        rules.CenteredClipping(1.0)(list(x), reference=current, previous=before)
    with pytest.raises(RuleError, match="needs reference="):
        rules.FedCPA()(list(x), previous=before)
    before[3] = np.inf
    with pytest.raises(NonFiniteError, match=r"previous.*must be finite"):
        rules.FedCPA()(list(x), reference=current, previous=before, nonfinite="drop")


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_a_server_gives_models_and_the_last_step(server_lr):
    """Round by round as by hand: its clients' models, the global one, and from the second round on the one before."""
    x, start, _ = models(6)
    server = Stateless(rules.FedCPA(0.1), server_lr=server_lr)
    state, now, before = server.init({"w": start}, 6), start, None
    for turn in range(3):
        sent = now + (x - start) * (1 + turn)
        expected = rules.FedCPA(0.1)(list(sent), reference=now, previous=before)
        one = Round(turn, tuple(range(6)), [{"w": row - now} for row in sent], np.ones(6), 6, 6)
        state = server.step(state, one)
        now, before = now + server_lr * (expected.value - now), now
        np.testing.assert_allclose(state["params"]["w"], now, atol=1e-10)
        np.testing.assert_allclose(state["weights"], expected.weights, atol=1e-10)
        np.testing.assert_array_equal(state["previous"]["w"], before)


def test_memory_is_bounded_and_equal_numbers_cost_no_more(rng):
    """All rows of many coordinates are never held; half of the importances are zero, a bin that is the whole model."""
    x = rng.normal(size=(20, 100_000)).astype(np.float32)
    x[:, ::2] = 0.0
    rules.FedCPA()(list(x[:, :50]), reference=x[0, :50])
    peaks = []
    for size in (50_000, 100_000):
        tracemalloc.start()
        rules.FedCPA()(list(x[:, :size]), reference=x[0, :size])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 16e6
    assert peaks[1] - peaks[0] < 2 * 4 * 50_000


def test_trust():
    np.testing.assert_allclose(trust(np.array([2.0, 2.0 + 1e-12])), 1)
    np.testing.assert_allclose(trust(np.array([1.0, 1.5, 2.0])), [0, 0.5, 1])


def test_given_weights_multiply():
    x, current, _ = models(3)
    plain = rules.FedCPA(0.1)(list(x), reference=current).weights
    w = np.arange(1.0, 7.0)
    kept = plain > 0
    expected = w * plain * kept.sum() / w[kept].sum()
    np.testing.assert_allclose(rules.FedCPA(0.1)(list(x), w, reference=current).weights, expected)


def test_errors_teach():
    x, current, _ = models(4)
    with pytest.raises(RuleError, match=r"needs reference=.*the global model"):
        rules.FedCPA()(list(x))
    for fraction in (0, 0.6, True, "all"):
        with pytest.raises(RuleError, match=r"a share of the parameters, in \(0, 0\.5\]"):
            rules.FedCPA(fraction=fraction)
    x[2, 5] = np.nan
    with pytest.raises(NonFiniteError, match="contributor 2"):
        rules.FedCPA()(list(x), reference=current)
    found = rules.FedCPA()(list(x), reference=current, nonfinite="drop")
    np.testing.assert_allclose(found.value, rules.FedCPA()(list(np.delete(x, 2, 0)), reference=current).value)
    assert np.isfinite(found.influence()[[0, 1, 3, 4, 5]]).all()
