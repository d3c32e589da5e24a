"""Which rule when: a lead counts if it exceeds the spread of the paired differences."""

from __future__ import annotations

from pluribus.federated.verdict import clock, judge, size


def row(rule: str, *accuracy: float | None, moved: float = 1e6, seconds: float | None = 10.0) -> dict:
    mean = None if None in accuracy else sum(accuracy) / len(accuracy)
    return {
        "rule": rule,
        "accuracy": {"mean": mean, "by_seed": list(accuracy)},
        "bytes": {"mean": moved},
        "seconds_to_target": {"mean": seconds},
    }


def test_a_paired_lead_counts_where_seeds_differ_more_than_rules():
    told = judge([row("a", 0.5, 0.7, 0.9), row("b", 0.52, 0.72, 0.93)])
    assert told["best"] == told["first"] == "b"
    assert told["tied"] == []
    assert told["sentences"] == [
        "b is ahead of every other rule: 72.3 % accuracy, 2.3 ± 0.6 points above a, the next (paired over 3 seeds)."
    ]


def test_the_lead_must_exceed_its_spread_and_no_more():
    def best(*gaps):
        return judge([row("a", *[0.5] * len(gaps)), row("b", *(0.5 + gap for gap in gaps))])["best"]

    assert best(0.005, 0.02, 0.02) == "b"  # 0.015, spread 0.0087
    assert best(0.0, 0.02, 0.02) == "b"  # 0.0133, spread 0.0115
    assert best(0.0, 0.0, 0.02) is None  # 0.0067, spread 0.0115


def test_what_does_not_separate_is_told_with_its_cost():
    told = judge([row("a", 0.5, 0.7, 0.9), row("b", 0.6, 0.7, 0.81, moved=2e6), row("c", 0.1, 0.1, 0.1)])
    assert told["best"] is None
    assert told["first"] == "b"
    assert set(told["tied"]) == {"a", "b"}
    assert told["sentences"][0].startswith("These do not separate over 3 seeds: b, a. b reached 70.3 % accuracy")
    assert told["sentences"][1:] == ["Of these a has the least bytes moved, 1 MB; b the most, 2 MB."]


def test_the_price_of_the_best():
    told = judge([row("a", 0.5, 0.5, seconds=4.0), row("b", 0.8, 0.8, moved=3e6, seconds=None)])
    assert told["best"] == "b"
    assert told["sentences"][1:] == ["The least bytes moved is a's, 1 MB; b is at 3 MB."]
    told = judge([row("a", 0.5, 0.5, seconds=4.0), row("b", 0.8, 0.8, seconds=1234.4)])
    assert told["sentences"][1:] == ["The least simulated time to the target is a's, 4 s; b is at 1,234 s."]
    told = judge([row("a", 0.5, 0.5, seconds=4.0), row("b", 0.8, 0.8, seconds=1234.4)], target=0.9)
    assert told["sentences"][1:] == ["The least simulated time to 90 % accuracy is a's, 4 s; b is at 1,234 s."]


def test_a_price_that_the_best_does_not_pay_is_not_told():
    told = judge([row("a", 0.5, 0.5), row("b", 0.8, 0.8, moved=1.01e6), row("c", 0.6, 0.6, moved=9e6)])
    assert told["best"] == "b"
    assert len(told["sentences"]) == 1


def test_little_to_judge():
    assert judge([row("a", None)])["sentences"] == []
    assert judge([row("a", 0.5, 0.5)])["best"] is None
    one = judge([row("a", 0.5), row("b", 0.6)])
    assert one["best"] is None
    assert "one seed" in one["sentences"][0]
    same = judge([row("a", 0.5, 0.5), row("b", 0.5, 0.5)])
    assert (same["first"], same["best"]) == ("a", None)


def test_numbers_for_readers():
    assert [size(n) for n in (12, 1500, 12.34e6, 5e9)] == ["12 B", "1.5 kB", "12.3 MB", "5 GB"]
    assert clock(12.34) == "12.3 s"
