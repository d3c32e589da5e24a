"""Seconds of a job: each form's formula, independence of the order of calls, files and links."""

import math

import numpy as np
import pytest

from pluribus.core.errors import FileError
from pluribus.federated.errors import SettingError
from pluribus.federated.world import speeds


def test_a_link_takes_bytes_over_speed():
    link = speeds.parse_link("100:400")
    assert link.seconds(50, 200) == 0.5 + 0.5
    assert speeds.Link().seconds(1e12, 1e12) == 0
    assert speeds.parse("even:2", 3, link).seconds(1, 5, 50, 200, job=0, seed=0) == 2 * 5 + 1


@pytest.mark.parametrize("text", ["none", "100", "100:400", "none:400", "1000000.5:inf"])
def test_links_and_texts_name_each_other(text):
    link = speeds.parse_link(text)
    assert speeds.parse_link(str(link)) == link


@pytest.mark.parametrize("text", ["even", "even:0.25", "lognormal:1", "lognormal:0.5:0.123456789", "tiers:1:2:4:8"])
def test_speeds_and_texts_name_each_other(text):
    assert str(speeds.parse(text, 4)) == text
    assert speeds.parse(str(speeds.parse(text, 4)), 4) == speeds.parse(text, 4)


def test_tiers_are_the_clients_in_turn():
    made = speeds.parse("tiers:1:2:8", 7)
    assert [made.seconds(i, 10, 0, 0, job=0, seed=0) for i in range(7)] == [10, 20, 80, 10, 20, 80, 10]


def test_lognormal_factors_are_the_clients_own_and_have_their_spread():
    made = speeds.parse("lognormal:0.7", 1)
    logs = np.log([made.seconds(i, 1, 0, 0, job=0, seed=3) for i in range(2000)])
    assert abs(logs.mean()) < 4 * 0.7 / math.sqrt(2000)
    assert logs.std() == pytest.approx(0.7, rel=0.07)
    assert made.seconds(5, 1, 0, 0, job=0, seed=3) == made.seconds(5, 1, 0, 0, job=9, seed=3)
    assert made.seconds(5, 7, 0, 0, job=0, seed=3) == pytest.approx(7 * made.seconds(5, 1, 0, 0, job=0, seed=3))
    assert made.seconds(5, 1, 0, 0, job=0, seed=3) != made.seconds(5, 1, 0, 0, job=0, seed=4)


def test_jitter_is_each_jobs_own_and_needs_no_order():
    made = speeds.parse("lognormal:0.5:0.3", 1)
    jobs = [(i, j) for i in range(3) for j in range(200)]
    forward = {job: made.seconds(job[0], 1, 0, 0, job=job[1], seed=0) for job in jobs}
    backward = {job: made.seconds(job[0], 1, 0, 0, job=job[1], seed=0) for job in reversed(jobs)}
    assert forward == backward
    assert len(set(forward.values())) == len(jobs)
    steady = speeds.parse("lognormal:0.5", 1)
    for i in range(3):
        ratios = np.log([forward[i, j] / steady.seconds(i, 1, 0, 0, job=0, seed=0) for j in range(200)])
        assert ratios.std() == pytest.approx(0.3, rel=0.2)
        assert abs(ratios.mean()) < 4.5 * 0.3 / math.sqrt(200)


def test_a_trace_gives_each_client_its_line(tmp_path):
    (tmp_path / "s.csv").write_text("client,seconds_per_step,down_bytes_per_s\n1,2.5,10\n\n0,1,inf\n")
    made = speeds.parse("trace:s.csv", 2, "100", folder=tmp_path)
    assert str(made) == "trace:s.csv"
    assert made.seconds(0, 4, 200, 50, job=0, seed=0) == 4 + 2
    assert made.seconds(1, 4, 200, 50, job=0, seed=0) == 10 + 2 + 5
    other = tmp_path / "t.csv"
    other.write_text("client,seconds_per_step\n0,1\n1,3\n")
    assert speeds.parse(f"trace:{other}", 2).digest != made.digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,seconds_per_step\n0,1\n", "client 1 of 2 has no line"),
        ("client,seconds_per_step\n0,1\n0,2\n", "line 3: client 0 has two"),
        ("client,seconds_per_step\n0,0\n1,2\n", "line 2, 'seconds_per_step' is 0"),
        ("client,seconds_per_step\n0,inf\n1,2\n", "'seconds_per_step' is inf"),
        ("client,seconds_per_step\n0,x\n1,2\n", "line 2, 'seconds_per_step' holds 'x'"),
        ("client,seconds_per_step\n0,nan\n1,2\n", "line 2.*'nan'"),
        ("client,seconds_per_step\n0.5,1\n1,2\n", "'client' is 0.5"),
        ("client,seconds_per_step\n0,1\n1\n", "line 3 has 1 cells"),
        ("client,speed\n0,1\n", "no column 'seconds_per_step'"),
        ("client,seconds_per_step,colour\n0,1,2\n", "'colour' is none of"),
        ("client,client\n0,1\n", "same name"),
        ("client,seconds_per_step\n", "it has 1 lines"),
    ],
)
def test_bad_traces_are_told(tmp_path, text, words):
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(SettingError, match=words):
        speeds.parse("trace:s.csv", 2, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("evn", "no speeds are called 'evn'.*did you mean even"),
        ("even:0", "expected a number > 0"),
        ("lognormal", "lognormal:1"),
        ("lognormal:-1", "from 0 to 10"),
        ("lognormal:1:2:3", "no speeds"),
        ("tiers", "no speeds"),
        ("tiers:1:x", "expected a number > 0"),
        ("trace:", "no speeds"),
    ],
)
def test_bad_speeds_are_told(text, words):
    with pytest.raises(SettingError, match=words):
        speeds.parse(text, 2)


def test_bad_links_and_files_are_told(tmp_path):
    for text in ("0", "1:2:3", "fast", "-1:2", "nan"):
        with pytest.raises(SettingError):
            speeds.parse_link(text)
    with pytest.raises(FileError, match="no such file"):
        speeds.parse("trace:none.csv", 2, folder=tmp_path)
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="cannot be read"):
        speeds.parse("trace:b.csv", 2, folder=tmp_path)
