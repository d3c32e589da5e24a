"""Chains against their transition probabilities, traces against their lines, samples, and jobs that are lost."""

import pickle
import time

import numpy as np
import pytest

from pluribus.federated import participation
from pluribus.federated.errors import SettingError
from pluribus.federated.world import availability, dropouts

COUNTS = np.ones((20, 3), dtype=int)


def _table(who, rounds, seed=0):
    there = np.zeros((rounds, who.clients), dtype=bool)
    for r in range(rounds):
        there[r, who.participants(r, seed)] = True
    return there


def test_a_sample_has_its_size_and_every_client_comes_as_often():
    who = participation.parse("sample:5", COUNTS, 0)
    there = _table(who, 2000)
    assert (there.sum(axis=1) == 5).all()
    assert np.abs(there.mean(axis=0) - 0.25).max() < 4.5 * np.sqrt(0.25 * 0.75 / 2000)
    # Pairs come together with k (k - 1) / n (n - 1), not with the square of the rate.
    together = there[:, 0] & there[:, 1]
    assert together.mean() == pytest.approx(5 * 4 / (20 * 19), abs=4.5 * np.sqrt(0.053 / 2000))
    np.testing.assert_array_equal(who.rates, 0.25)
    assert who.participants(7, 1).tolist() != who.participants(8, 1).tolist()
    np.testing.assert_array_equal(participation.parse("sample:20", COUNTS, 0).participants(3, 0), np.arange(20))


@pytest.mark.parametrize(("rate", "lam"), [(0.3, 0.8), (0.7, 0.5), (0.5, 0.0), (0.4, -0.5), (0.05, 0.6)])
def test_a_chain_has_its_rate_and_its_transitions(rate, lam):
    who = availability.markov(rate, lam, clients=40)
    rounds = 3000
    there = _table(who, rounds, seed=3)
    spread = np.sqrt(rate * (1 - rate) * (1 + lam) / (1 - lam) / (rounds * 40))
    assert there.mean() == pytest.approx(rate, abs=4.5 * spread)
    before, after = there[:-1], there[1:]
    stay, come = rate + lam * (1 - rate), rate * (1 - lam)
    for was, odds in ((before, stay), (~before, come)):
        assert after[was].mean() == pytest.approx(odds, abs=4.5 * np.sqrt(odds * (1 - odds) / was.sum()) + 1e-12)
    assert np.corrcoef(there[:-2].ravel(), there[2:].ravel())[0, 1] == pytest.approx(lam**2, abs=0.03)
    assert np.abs(np.corrcoef(there[:, 0], there[:, 1])[0, 1]) < 0.2


@pytest.mark.parametrize("lam", [-0.3, 0.0, 0.6, 0.99])
def test_rounds_of_a_chain_need_no_order(lam):
    rates = np.linspace(0.3, 0.7, 15)
    steady = availability.markov(rates, lam)
    forward = [steady.participants(r, seed=5).tolist() for r in range(150)]
    # Any one round from a chain that knows nothing, backward, at random, and with another seed in between.
    for r in (0, 1, 2, 70, 149):
        assert availability.markov(rates, lam).participants(r, 5).tolist() == forward[r]
    assert [steady.participants(r, 5).tolist() for r in reversed(range(150))] == forward[::-1]
    for r in np.random.default_rng(0).permutation(150).tolist():
        assert steady.participants(r, 5).tolist() == forward[r]
        other = (7 * r) % 150
        there = steady.participants(other, 6).tolist()
        assert r % 15 or there == availability.markov(rates, lam).participants(other, 6).tolist()
    assert pickle.loads(pickle.dumps(steady)) == steady
    assert hash(steady) == hash(availability.markov(rates, lam))


def test_what_a_chain_tells_cannot_be_changed_from_outside():
    who = availability.markov(0.5, 0.5, 10)
    kept = who.present(4, 0).copy()
    who.present(4, 0)[:] = True
    np.testing.assert_array_equal(who.present(4, 0), kept)


def test_a_far_round_of_a_chain_is_found_at_once():
    who = availability.markov(0.5, 0.9, 1000)
    began = time.process_time()
    who.participants(10**9, 0)
    assert time.process_time() - began < 1.0


def test_a_chain_starts_in_its_stationary_state():
    there = [availability.markov(0.2, 0.95, 50).present(0, seed).mean() for seed in range(100)]
    assert np.mean(there) == pytest.approx(0.2, abs=4.5 * np.sqrt(0.16 / 5000))


def test_clients_that_are_always_there():
    assert _table(availability.markov(1.0, 0.0, 4), 50).all()
    assert _table(availability.markov(1.0, 0.9, 4), 50).all()


def test_texts_of_chains():
    one = participation.parse("markov:0.3:0.8", COUNTS, 0)
    np.testing.assert_array_equal(one.rates, 0.3)
    np.testing.assert_array_equal(one.correlations, 0.8)
    assert str(one) == "markov:0.3:0.8"
    many = participation.parse("markov:0.2..0.9:0..0.95", COUNTS, 1)
    assert str(many) == "markov:0.2..0.9:0..0.95"
    assert participation.parse(str(many), COUNTS, 1) == many
    assert participation.parse(str(many), COUNTS, 2) != many
    assert 0.2 <= many.rates.min() < 0.4
    assert 0.7 < many.rates.max() <= 0.9
    assert 0 <= many.correlations.min() < many.correlations.max() <= 0.95
    assert abs(np.corrcoef(many.rates, many.correlations)[0, 1]) < 0.7
    assert str(participation.parse("sample:3", COUNTS, 0)) == "sample:3"


def test_a_trace_holds_its_lines_and_starts_over(tmp_path):
    (tmp_path / "a.csv").write_text("round, client 1, 0\n0,1,0\n1,0,1\n4,1,1\n")
    who = participation.parse("trace:a.csv", COUNTS[:2], 0, folder=tmp_path)
    assert str(who) == "trace:a.csv"
    assert [who.participants(r, 0).tolist() for r in range(9)] == [[1], [0], [0], [0], [0, 1], [0, 1], [0, 1], [1], [0]]
    assert who.period == 7
    np.testing.assert_allclose(who.rates, [6 / 7, 4 / 7])
    assert not who.timed
    assert len(who.digest) == 64


def test_a_trace_of_seconds(tmp_path):
    (tmp_path / "a.csv").write_text("time,0\n0,1\n2.5,0\n3,1\n")
    who = participation.parse("trace:a.csv", COUNTS[:1], 0, folder=tmp_path)
    assert who.timed
    assert [who.at(t).tolist() for t in (0, 2.4, 2.5, 2.9, 3, 3.4, 3.5, 6.1)] == [[0], [0], [], [], [0], [0], [0], []]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("when,0,1\n0,1,1\n", "first column is 'when'"),
        ("round,0,1\n1,1,1\n", "line 2, 'round' is 1; expected 0 in the first"),
        ("round,0,1\n0,1,1\n2,1,1\n2,1,1\n", "line 4, 'round' is 2"),
        ("round,0,1\n0,1,1\ninf,1,1\n", "line 3, 'round' is inf"),
        ("round,0\n0,1\n", "client 1 of 2 has no column"),
        ("round,0,bob\n0,1,1\n", "'bob' is no client"),
        ("round,0,1\n0,1,0.5\n", "line 2, '1' is 0.5; expected 0 or 1"),
        ("round,0,1\n0,1,0\n", "client 1 is never there"),
    ],
)
def test_bad_traces_are_told(tmp_path, text, words):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(SettingError, match=words):
        participation.parse("trace:a.csv", COUNTS[:2], 0, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sample:0", "from 1 to 20"),
        ("sample:21", "from 1 to 20"),
        ("sample:2.5", "sample:10"),
        ("sampel:3", "did you mean sample"),
        ("markov", "markov:0.5:0.9"),
        ("markov:0.5", "has 1 numbers"),
        ("markov:0.5:0.5:0.5", "has 3 numbers"),
        ("markov:0:0.5", "client 0 is there at rate 0"),
        ("markov:1.5:0.5", "expected a number"),
        ("markov:0.5:1", "correlation 1.0.*-1, 1"),
        ("markov:0.25:-0.5", "-0.333333, 1"),
        ("markov:0.9..0.2:0", "LOW..HIGH"),
        ("markov:a:0", "'a'; expected a number"),
        ("trace:", "trace:FILE"),
    ],
)
def test_bad_texts_are_told(text, words):
    with pytest.raises(SettingError, match=words):
        participation.parse(text, COUNTS, 0)


def test_bad_shapes_are_told():
    for rates, lam, clients in (([0.5, 0.5], [0.1] * 3, None), (0.5, 0.5, None), ([0.5], 0.1, 2), ([[0.5]], 0.1, 1)):
        with pytest.raises(SettingError, match="shapes"):
            availability.markov(rates, lam, clients)
    with pytest.raises(SettingError, match="no clients"):
        availability.markov([], [])


def test_jobs_are_lost_at_their_rate_whatever_the_order():
    some = dropouts.parse("0.1")
    jobs = [(i, j) for i in range(40) for j in range(100)]
    lost = {job: some.lost(*job, seed=2) for job in jobs}
    assert np.mean(list(lost.values())) == pytest.approx(0.1, abs=4.5 * np.sqrt(0.09 / 4000))
    assert all(some.lost(*job, seed=2) == lost[job] for job in reversed(jobs))
    assert any(some.lost(*job, seed=3) != lost[job] for job in jobs)
    assert not any(dropouts.parse("none").lost(i, j, 0) for i, j in jobs[:50])
    for text in ("0.1", "0", "0.123456789"):
        assert str(dropouts.parse(text)) == text
    for text in ("1", "-0.1", "often", "nan"):
        with pytest.raises(SettingError, match="dropout"):
            dropouts.parse(text)
