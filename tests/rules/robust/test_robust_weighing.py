"""Robust rules that weigh everybody, against slow computations in R^d, the authors' code and the catalogue."""

from __future__ import annotations

import numpy as np
import pytest
from robust_cases import SMALL, cloud

from pluribus import aggregate, rules
from pluribus.core.errors import NonFiniteError, RuleError
from pluribus.federated.data import digits, split
from pluribus.federated.models import Batch, Softmax
from pluribus.rules.robust.flag import flag_median
from pluribus.rules.robust.foolsgold import foolsgold_weights

WEIGHING = [
    rules.AFA(),
    rules.InverseDistance(),
    rules.CosineSoftmax(tau=3.0),
    rules.FLTrust(),
    rules.FoolsGold(),
    rules.PrincipalDirections(),
    rules.Flag(m=2),
]


def cosine(a, b):
    scale = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / scale) if scale > 0 else 0.0


def call(rule, x, w=None):
    return rule(list(x), w, reference=np.ones(x.shape[1]) if rule.needs_reference else None)


# --- AFA ------------------------------------------------------------------------------------------------------------


def afa_directly(x, w, xi, step, removed_count=False):
    left = list(range(len(x)))
    while True:
        mean = w[left] @ x[left] / w[left].sum()
        s = np.array([cosine(x[i], mean) for i in left])
        told = np.concatenate([s, np.zeros(len(x) - len(left))]) if removed_count else s
        middle, margin = np.median(told), xi * told.std() + 1e-12
        low = told.mean() < middle
        out = [i for i, c in zip(left, s, strict=True) if (c < middle - margin if low else c > middle + margin)]
        if not out:
            return mean
        left = [i for i in left if i not in out]
        xi += step


def test_afa_filters_until_nobody_is_unusual():
    differs = 0
    for seed in range(30):
        x, w = cloud(seed, attackers=3, honest=9, d=10, shift=-2.0)
        for xi, step in ((2.0, 0.5), (1.0, 0.25), (0.7, 0.0)):
            expected = afa_directly(x, w, xi, step)
            np.testing.assert_allclose(aggregate(x, "afa", w, xi=xi, step=step).value, expected, atol=1e-12)
            differs += not np.allclose(expected, afa_directly(x, w, xi, step, removed_count=True))
    assert differs > 0, "counting those who left as zeros, as an implementation does, would change something"


def test_afa_leaves_out_sign_flippers():
    x, _ = cloud(0, attackers=2, honest=9, d=50, shift=0.0)
    x[:2] = -x[2:4]
    assert np.flatnonzero(aggregate(x, "afa", xi=1.5).weights == 0).tolist() == [0, 1]


# --- IDA (catalogue 64) ---------------------------------------------------------------------------------------------


class TestInverseDistance:
    def test_is_the_formula(self):
        x, w = cloud(1)
        mean = w @ x / w.sum()
        a = w / np.linalg.norm(x - mean, axis=1)
        np.testing.assert_allclose(aggregate(x, "inverse_distance", w).value, a @ x / a.sum(), rtol=1e-12)

    def test_equal_distances_give_the_mean(self):
        x = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]]) + 3
        np.testing.assert_allclose(aggregate(x, "inverse_distance").weights, 0.25)

    @pytest.mark.parametrize("n", [3, 5, 10])
    @pytest.mark.parametrize("far", [1.0, 1e6])
    def test_one_outlier_keeps_what_the_docstring_says(self, n, far):
        x = np.zeros((n, 2))
        x[-1, 0] = far
        weights = aggregate(x, "inverse_distance").weights
        assert weights[-1] == pytest.approx(1 / ((n - 1) ** 2 + 1))

    def test_order_and_translation(self):
        x, _ = cloud(2)
        value = aggregate(x, "inverse_distance").value
        np.testing.assert_allclose(aggregate(x[::-1], "inverse_distance").value, value)
        np.testing.assert_allclose(aggregate(x + 1e4, "inverse_distance").value, value + 1e4)

    def test_at_the_mean(self):
        x = np.array([[0.0], [-1.0], [1.0]])
        found = aggregate(x, "inverse_distance")
        assert np.isfinite(found.weights).all()
        assert found.weights[0] > 0.99


# --- cosine softmax -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_reference", [False, True])
@pytest.mark.parametrize("tau", [0.0, 1.0, 30.0])
def test_cosine_softmax_is_the_formula(with_reference, tau):
    x, w = cloud(3)
    reference = np.linspace(-1, 2, 20) if with_reference else None
    centre = reference if with_reference else w @ x
    a = w * np.exp(tau * np.array([cosine(row, centre) for row in x]))
    found = rules.CosineSoftmax(tau=tau)(list(x), w, reference=reference)
    np.testing.assert_allclose(found.value, a @ x / a.sum(), rtol=1e-11)
    assert tau or np.allclose(found.value, w @ x / w.sum())


# --- FLTrust --------------------------------------------------------------------------------------------------------


class TestFLTrust:
    def test_is_the_formula(self):
        x, w = cloud(4, shift=-2.0)
        server = np.ones(20) + 0.3 * np.random.default_rng(0).normal(size=20)
        trust = w * np.maximum([cosine(row, server) for row in x], 0)
        scaled = x / np.linalg.norm(x, axis=1, keepdims=True) * np.linalg.norm(server)
        found = rules.FLTrust()(list(x), w, reference=server)
        np.testing.assert_allclose(found.value, trust @ scaled / trust.sum(), rtol=1e-12)
        assert np.linalg.norm(found.value) <= np.linalg.norm(server)
        assert ((found.weights == 0) == (trust == 0)).all()

    def test_a_majority_of_attackers_is_no_harm(self):
        rng = np.random.default_rng(1)
        server = rng.normal(size=50)
        honest = server + 0.5 * rng.normal(size=(3, 50))
        for attack in (-1e9 * server, np.zeros(50), -server):
            value = rules.FLTrust()([*honest, *[attack] * 8], reference=server).value
            np.testing.assert_allclose(value, rules.FLTrust()(list(honest), reference=server).value, rtol=1e-9)

    def test_length_counts_for_nothing(self):
        x, _ = cloud(5)
        server = np.ones(20)
        stretched = x * np.geomspace(1e-6, 1e6, 11)[:, None]
        value = rules.FLTrust()(list(x), reference=server).value
        np.testing.assert_allclose(rules.FLTrust()(list(stretched), reference=server).value, value, rtol=1e-9)

    def test_nobody_trusted_is_no_step(self):
        """Published formula and implementations: 0 / 0."""
        x = [-np.ones(3), np.array([1.0, -1.0, 0.0]), np.zeros(3)]
        for server in (np.ones(3), np.zeros(3)):
            assert rules.FLTrust()(x, reference=server).value.tolist() == [0, 0, 0]

    def test_needs_its_reference(self):
        with pytest.raises(RuleError, match=r"FLTrust\(\) needs reference=.*the update that the server computed"):
            aggregate([np.ones(2)] * 3, "fltrust")
        with pytest.raises(RuleError, match="needs reference="):
            (rules.NNM(f=1) >> rules.FLTrust())([np.ones(2)] * 3)

    def test_pre_rules_keep_the_reference(self):
        x, _ = cloud(6)
        chained = (rules.NNM(f=2) >> rules.FLTrust())(list(x), reference=np.ones(20)).value
        distance = ((x[:, None] - x) ** 2).sum(-1)
        mixed = np.stack([x[np.argsort(row, kind="stable")[:9]].mean(axis=0) for row in distance])
        np.testing.assert_allclose(chained, rules.FLTrust()(list(mixed), reference=np.ones(20)).value, rtol=1e-9)

    def test_a_reference_with_nan_is_an_error(self):
        with pytest.raises(NonFiniteError, match="the reference must be finite"):
            rules.FLTrust()([np.ones(2)] * 3, reference=np.array([1, np.nan]), nonfinite="drop")


# --- FoolsGold ------------------------------------------------------------------------------------------------------


def sybils():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(7, 12)) + 0.3
    x[4:] = x[4] + 0.15 * rng.normal(size=(3, 12))  # three who push together
    return np.round(x, 1)


class TestFoolsGold:
    def directly(self, x):
        """The authors' loops (DistributedML/FoolsGold, deep-fg), without their division by zero."""
        n = len(x)
        cs = np.array([[cosine(a, b) for b in x] for a in x]) - np.eye(n)
        top = cs.max(axis=1)
        for i in range(n):
            for j in range(n):
                if i != j and top[i] < top[j]:
                    cs[i, j] *= top[i] / top[j]
        wv = np.clip(1 - cs.max(axis=1), 0, 1)
        wv = wv / wv.max()
        wv[wv == 1] = 0.99
        with np.errstate(divide="ignore"):
            return np.clip(np.log(wv / (1 - wv)) + 0.5, 0, 1)

    def test_is_the_authors_formula(self):
        for seed in range(20):
            x, w = cloud(seed, attackers=3, honest=5, d=6, shift=0.0)
            x[:3] = x[0] + 0.2 * np.random.default_rng(seed).normal(size=(3, 6))
            a = w * self.directly(x)
            np.testing.assert_allclose(aggregate(x, "foolsgold", w).value, a @ x / a.sum(), atol=1e-12)

    def test_sybils_lose_their_weight(self):
        x = sybils()
        found = aggregate(x, "foolsgold").weights
        assert found[4:].sum() < 0.05
        np.testing.assert_allclose(found, self.directly(x) / self.directly(x).sum(), atol=1e-12)

    def test_everybody_alike_is_not_nan(self):
        """The authors' code divides zero by zero."""
        x = np.tile([1.0, 2.0, -3.0], (4, 1)) * np.array([1, 2, 3, 4])[:, None]
        np.testing.assert_allclose(aggregate(x, "foolsgold", [1, 2, 3, 4]).weights, [0.1, 0.2, 0.3, 0.4])
        assert np.isfinite(aggregate(np.zeros((3, 2)), "foolsgold").value).all()
        np.testing.assert_allclose(aggregate(x[:1], "foolsgold").value, x[0])

    def test_confidence(self):
        cosines = np.array([[1, 0.5, 0.1], [0.5, 1, 0.1], [0.1, 0.1, 1]])
        raw = np.array([0.5, 0.5, 0.9 + 0.1 * (1 - 0.1 / 0.5)])
        raw = np.minimum(raw / raw.max(), 0.99)
        for confidence in (0.5, 1.0, 2.0):
            expected = np.clip(confidence * (np.log(raw / (1 - raw)) + 0.5), 0, 1)
            np.testing.assert_allclose(foolsgold_weights(cosines, confidence), expected)

    def test_histories_give_weights_for_updates(self):
        rng = np.random.default_rng(3)
        directions = rng.normal(size=(5, 30))
        directions[3:] = directions[3]
        noise = [rng.normal(size=(5, 30)) for _ in range(40)]
        updates = directions + noise[-1]
        histories = sum(directions + part for part in noise)
        by_history = rules.FoolsGold()(list(histories)).weights
        by_round = rules.FoolsGold()(list(updates)).weights
        assert by_history[3:].sum() < 1e-9
        assert by_round[3:].sum() > 0.05
        rules.Mean()(list(updates), by_history)


# --- principal directions (catalogue 2) -----------------------------------------------------------------------------


class TestPrincipalDirections:
    def directly(self, x, w, keep, signs):
        p = w / w.sum()
        values, vectors = np.linalg.eigh((x.T * p) @ x)
        values, vectors = values[::-1], vectors[:, ::-1]
        result = np.zeros(x.shape[1])
        for j in range(max(1, int(keep * len(x) + 1e-9))):
            v = vectors[:, j]
            own = np.sign(x @ v)
            majority = np.sign(p @ own)
            for i in range(len(x)):
                side = majority if signs == "majority" else own[i]
                result += p[i] * values[j] / values.sum() * np.linalg.norm(x[i]) * side * v
        return result

    @pytest.mark.parametrize("signs", ["majority", "own"])
    @pytest.mark.parametrize("keep", [0.2, 0.8, 1.0])
    def test_is_the_formula(self, signs, keep):
        x, w = cloud(7, d=30)
        found = rules.PrincipalDirections(keep=keep, signs=signs)(list(x), w)
        np.testing.assert_allclose(found.value, self.directly(x, w, keep, signs), atol=1e-10)

    def test_own_signs_are_the_authors_code(self):
        """Zeng-Shuang/FedLD, svd_tools.pcgrad_svd on SMALL, keep 0.8; its flips change nothing."""
        expected = [
            *(-0.4242846743950272, 1.320658342955431, 0.41639414944509756, -0.8315944458586122),
            *(0.008997857970199745, 0.40659941139970246, -0.1651008479473918, 0.4852795717258492),
        ]
        found = rules.PrincipalDirections(signs="own")(list(SMALL)).value
        np.testing.assert_allclose(found, expected, atol=1e-12)
        assert not np.allclose(rules.PrincipalDirections()(list(SMALL)).value, expected, atol=0.1)

    @pytest.mark.parametrize("signs", ["majority", "own"])
    def test_agreement_comes_back_unchanged(self, signs):
        delta = np.array([1.0, -2, 3])
        np.testing.assert_allclose(rules.PrincipalDirections(signs=signs)([delta] * 5).value, delta, atol=1e-12)

    def test_lies_in_the_span_of_what_is_kept(self):
        x, _ = cloud(8, d=30)
        kept = np.linalg.svd(x, full_matrices=False)[2][:3]
        value = rules.PrincipalDirections(keep=3 / 11)(list(x)).value
        np.testing.assert_allclose(kept.T @ (kept @ value), value, atol=1e-10)

    def test_flipping_one_moves_it_less_than_the_mean(self):
        for seed in range(10):
            x, _ = cloud(seed, shift=0.0)
            rule = rules.PrincipalDirections(signs="own")
            flipped = x.copy()
            flipped[4] *= -1
            moved = np.linalg.norm(rule(list(flipped)).value - rule(list(x)).value)
            assert moved < np.linalg.norm(flipped.mean(axis=0) - x.mean(axis=0))

    def test_a_clear_majority_is_not_moved_by_one(self):
        x, _ = cloud(0, shift=0.0)
        rule = rules.PrincipalDirections(keep=1 / 11)
        flipped = x.copy()
        flipped[4] *= -1
        np.testing.assert_allclose(rule(list(flipped)).value, rule(list(x)).value, atol=1e-12)

    def test_signs_of_eigenvectors_do_not_matter(self, monkeypatch):
        x, _ = cloud(9)
        plain = [rules.PrincipalDirections(signs=signs)(list(x)).value for signs in ("majority", "own")]
        solve = np.linalg.eigh

        def turned(matrix):
            values, vectors = solve(matrix)
            return values, vectors * np.where(np.arange(len(values)) % 2, 1, -1)

        monkeypatch.setattr(np.linalg, "eigh", turned)
        for signs, value in zip(("majority", "own"), plain, strict=True):
            np.testing.assert_allclose(rules.PrincipalDirections(signs=signs)(list(x)).value, value, atol=1e-12)

    def test_an_even_vote_and_a_right_angle(self):
        """Two against two: the longer side decides. At a right angle to all directions: the authors' code gives NaN."""
        x = [np.array([3.0, 0.0]), np.array([-1.0, 0.0])]
        np.testing.assert_allclose(rules.PrincipalDirections()(x).value, [2, 0], atol=1e-12)
        x = [np.array([2.0, 0, 0]), np.array([1.0, 0, 0]), np.array([0, 0.5, 0]), np.array([0, 0, 0.1])]
        assert np.isfinite(rules.PrincipalDirections(keep=0.5, signs="own")(x).value).all()
        assert rules.PrincipalDirections()([np.zeros(2)] * 3).value.tolist() == [0, 0]


# --- flag aggregator (catalogue 21) ---------------------------------------------------------------------------------


class TestFlag:
    def directly(self, x, w, m, *, pairs, iterations, eps=1e-7):
        """Singular value decompositions of explicitly weighted columns in R^d."""
        p = w / w.sum()
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        i, j = np.triu_indices(len(x), 1)
        gaps = unit[i] - unit[j]
        rows = np.vstack([unit, gaps / np.linalg.norm(gaps, axis=1, keepdims=True)]) if pairs else unit
        base = np.concatenate([len(x) * p, np.full(len(gaps), pairs / len(gaps))]) if pairs else len(x) * p
        importance = base
        for _ in range(iterations + 1):
            y = np.linalg.svd((np.sqrt(importance)[:, None] * rows).T, full_matrices=False)[0][:, :m]
            missed = 1 - ((rows @ y) ** 2).sum(axis=1)
            importance = base / np.sqrt(np.abs(missed) + eps)
        return y @ (y.T @ (p @ x))

    @pytest.mark.parametrize("m", [1, 3, 5])
    @pytest.mark.parametrize("pairs", [0.0, 2.0])
    def test_is_the_iteration_in_the_space_of_contributions(self, m, pairs):
        x, w = cloud(10, d=40)
        for iterations in (1, 4):
            found = rules.Flag(m=m, pairs=pairs, iterations=iterations)(list(x), w).value
            np.testing.assert_allclose(found, self.directly(x, w, m, pairs=pairs, iterations=iterations), atol=1e-9)

    def test_converges_to_the_authors_subspace(self):
        """hamidralmasi/FlagAggregator: 200 flag_mean_iterations on SMALL from its principal subspace; Y Y' mean."""
        expected = {
            1: [0.0012629, -0.0149447, 0.1235867, 0.1072261, 0.0760933, -0.0536324, 0.0586804, 0.1496769],
            2: [0.2742333, 0.5104296, -0.1986688, -0.3673949, -0.1120336, -0.2233766, 0.1732719, 0.9592199],
            3: [-0.2237306, 1.2916628, 0.3489295, -0.7877304, 0.0051376, 0.2056933, -0.0164506, 0.7659698],
        }
        for m, value in expected.items():
            np.testing.assert_allclose(rules.Flag(m=m, iterations=300)(list(SMALL)).value, value, atol=2e-6)

    def test_the_whole_span_is_the_mean(self):
        x, w = cloud(11)
        for m in (11, 20):
            np.testing.assert_allclose(aggregate(x, "flag", w, m=m).value, w @ x / w.sum())
        plane = x[:, :2] @ np.random.default_rng(0).normal(size=(2, 20))
        np.testing.assert_allclose(aggregate(plane, "flag", m=2).value, plane.mean(axis=0), atol=1e-12)
        assert np.isfinite(aggregate(np.vstack([x, np.zeros(20)]), "flag", m=2).value).all()

    @pytest.mark.parametrize("pairs", [0.0, 1.0])
    def test_the_objective_never_rises(self, pairs):
        for seed in range(10):
            x, w = cloud(seed)
            unit = x / np.linalg.norm(x, axis=1, keepdims=True)
            for m in (1, 2, 5):
                _, objectives = flag_median(unit, w / w.sum(), m, pairs=pairs, iterations=40, smoothing=1e-7)
                assert len(objectives) > 2
                assert (np.diff(objectives) <= 1e-10).all()

    def test_the_order_does_not_matter(self):
        x, _ = cloud(12)
        order = np.random.default_rng(0).permutation(11)
        np.testing.assert_allclose(aggregate(x[order], "flag", m=3).value, aggregate(x, "flag", m=3).value, atol=1e-6)

    def test_nearer_to_the_truth_than_the_mean(self):
        angles = {"flag": [], "mean": []}
        for seed in range(20):
            rng = np.random.default_rng(seed)
            truth = rng.normal(size=300)
            x = truth + 0.5 * rng.normal(size=(15, 300))
            x[:3] = 5 * rng.normal(size=(3, 300))
            for name, found in angles.items():
                found.append(cosine(aggregate(x, name, **({"m": 1} if name == "flag" else {})).value, truth))
        assert (np.array(angles["flag"]) > np.array(angles["mean"])).all()

    def test_training_on_digits_converges_among_liars(self):
        data = split(digits(), seed=0, test=0.25, proxy=10).standardized()
        model, rng = Softmax(64, 10), np.random.default_rng(0)

        def accuracy(name, **parameters):
            params = model.init(0)
            for _ in range(15):
                grads = []
                for k in range(12):
                    part = data.train.take(np.arange(k, len(data.train), 12))
                    grads.append(model.loss_and_grad(params, Batch(part.x, part.y))[1])
                for _ in range(3):  # three of fifteen, in random directions, longer than any gradient
                    grads.append({key: np.float32(0.2 * rng.normal(size=g.shape)) for key, g in grads[0].items()})
                step = aggregate(grads, name, **parameters).value
                params = {key: value - 0.6 * step[key] for key, value in params.items()}
            return float((model.predict(params, data.test.x) == data.test.y).mean())

        assert accuracy("flag", m=2) > 0.9


# --- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", WEIGHING, ids=str)
def test_nan_is_named_or_dropped(rule):
    x, _ = cloud(13)
    x[3, 4] = np.nan
    with pytest.raises(NonFiniteError, match="contributor 3"):
        call(rule, x)
    found = rule(list(x), nonfinite="drop", reference=np.ones(20) if rule.needs_reference else None)
    np.testing.assert_allclose(found.value, call(rule, np.delete(x, 3, axis=0)).value, atol=1e-12)


@pytest.mark.parametrize("rule", WEIGHING, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_duplicates_and_one_alone(rule, dtype):
    x, w = cloud(14)
    x[:4], x[5] = x[0], 0
    before = x.astype(dtype)
    kept = before.copy()
    assert np.isfinite(call(rule, before, w).value).all()
    np.testing.assert_array_equal(before, kept)
    assert call(rule, np.zeros((3, 2))).value.tolist() == [0, 0]
    alone = call(rule, x[:1]).value
    if not rule.needs_reference:
        np.testing.assert_allclose(alone, x[0], atol=1e-9)


@pytest.mark.parametrize("rule", WEIGHING, ids=str)
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_no_unit(rule, scale):
    x, w = cloud(15)
    reference = np.ones(20) if rule.needs_reference else None
    expected = rule(list(x), w, reference=reference).value * scale
    scaled = rule(list(x * scale), w, reference=None if reference is None else reference * scale).value
    np.testing.assert_allclose(scaled, expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("rule", [*WEIGHING, rules.FABA(f=2), rules.MDA(f=2), rules.RFA()], ids=str)
def test_influence_is_leaving_one_out(rule):
    x, _ = cloud(16)
    found = call(rule, x)
    directly = [np.linalg.norm(found.value - call(rule, np.delete(x, i, axis=0)).value) for i in range(11)]
    np.testing.assert_allclose(found.influence(), directly, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: rules.RFA(nu=0), "nu must be a positive number"),
        (lambda: rules.RFA(iterations=0), "at least 1"),
        (lambda: rules.AFA(xi=-1), "xi must be a positive"),
        (lambda: rules.DnC(f=1, filter=0), "filter must be a positive"),
        (lambda: rules.CosineSoftmax(tau=-1), "tau must be a non-negative"),
        (lambda: rules.FoolsGold(confidence=0), "confidence must be a positive"),
        (lambda: rules.PrincipalDirections(keep=0), r"keep is a share of the directions, in \(0, 1\], not 0"),
        (lambda: rules.PrincipalDirections(signs="mine"), "signs must be 'majority' or 'own'"),
        (lambda: rules.Flag(m=0), "m must be a whole number of at least 1"),
        (lambda: rules.Flag(pairs=-1), "pairs must be a non-negative"),
        (lambda: rules.Bucketing(s=0), "s must be a whole number of at least 1"),
        (lambda: rules.SMEA(f=-1), "at least 0, not -1"),
        (lambda: rules.get("faba"), "FABA needs f"),
    ],
)
def test_errors_teach(make, told):
    with pytest.raises(RuleError, match=told):
        make()


@pytest.mark.parametrize("exponent", [-400, -280, 280, 400])
@pytest.mark.parametrize("rule", [rules.FLTrust(), rules.CosineSoftmax(tau=3.0), rules.AFA(xi=0.5)], ids=str)
def test_cosines_do_not_multiply_squares(rule, exponent):
    """The product of two squared norms leaves float64 long before one of them does."""
    (x, _), size = cloud(3, d=4), 2.0**exponent
    server = x[-1] + 0.5
    there, here = ({"reference": server * size}, {"reference": server}) if rule.uses_reference else ({}, {})
    found, expected = rule(list(x * size), **there), rule(list(x), **here)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-12)
    np.testing.assert_allclose(found.value / size, expected.value, rtol=1e-12)
