"""When the server steps, on a clock that the tests set themselves."""

from dataclasses import dataclass

import numpy as np
import pytest
from clocks import Fixed
from federations import quadratics
from server_rounds import same_bits

from pluribus.federated import checkpoint, simulate
from pluribus.federated.checkpoint import Clock
from pluribus.federated.errors import SettingError
from pluribus.federated.server import FedAvg
from pluribus.federated.simulation import advance, begin
from pluribus.federated.world import schedule
from pluribus.federated.world.base import World


@dataclass(frozen=True)
class First:
    """The first job of one client never answers."""

    client: int

    def lost(self, client, job, seed):
        return client == self.client and job == 0


def history(text, times=(1.0, 2.0, 4.0, 8.0), rounds=4, losses=None, **more):
    world = World(schedule.parse(text), Fixed(times), losses)
    setup, *_ = quadratics(clients=len(times), world=world, **more)
    return simulate(setup, FedAvg(), seed=0, rounds=rounds)


def who(run):
    return [np.flatnonzero(row).tolist() for row in run.history.present]


@pytest.mark.parametrize(
    "text",
    [
        *("sync", "deadline:3.5", "quorum:2", "quorum:2:10", "buffer:3", "buffer:3:5", "async", "async:4", "window:2"),
        *("window:1234567.5", "quorum:1000000"),  # as many digits as it takes
    ],
)
def test_texts_are_read_back(text):
    assert str(schedule.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["sometimes", "quorum", "quorum:x", "quorum:0", "deadline", "deadline:-1", "deadline:inf", "buffer:nan", "sync:3"],
)
def test_texts_that_mean_nothing(text):
    with pytest.raises(SettingError, match=r"sync, deadline|expected"):
        schedule.parse(text)


def test_sync_waits_for_the_slowest():
    run = history("sync")
    assert who(run) == [[0, 1, 2, 3]] * 4
    assert run.history.time.tolist() == [8, 16, 24, 32]
    assert (run.history.staleness == 0).all()


def test_a_deadline_leaves_out_who_is_late():
    run = history("deadline:4")
    assert who(run) == [[0, 1, 2]] * 4
    assert run.history.time.tolist() == [4, 8, 12, 16]


def test_a_deadline_that_all_make_does_not_wait_longer():
    assert history("deadline:100").history.time.tolist() == [8, 16, 24, 32]


def test_a_deadline_that_nobody_makes_is_an_empty_round():
    run = history("deadline:0.5")
    assert who(run) == [[]] * 4
    assert (run.history.status == 1).all()


def test_a_quorum_is_the_first_k():
    run = history("quorum:2")
    assert who(run) == [[0, 1]] * 4
    assert run.history.time.tolist() == [2, 4, 6, 8]
    assert who(history("quorum:4:4")) == [[0, 1, 2]] * 4


def test_a_client_that_is_lost_is_not_waited_for():
    run = history("sync", losses=First(3))
    assert who(run)[:2] == [[0, 1, 2], [0, 1, 2, 3]]
    assert who(history("quorum:2", losses=First(0)))[:2] == [[1, 2], [0, 1]]


def test_async_takes_each_as_it_comes():
    run = history("async", times=(1.0, 2.5), rounds=6)
    # Client 0 arrives at 1, 2, 3, 4, 5; client 1 at 2.5 and 5, when the two tie and the lower number comes first.
    assert who(run) == [[0], [0], [1], [0], [0], [0]]
    assert run.history.time.tolist() == [1, 2, 2.5, 3, 4, 5]
    assert run.history.staleness.tolist() == [0, 0, 2, 1, 0, 0]


def test_a_buffer_holds_each_client_once():
    run = history("buffer:2", times=(1.0, 3.0, 4.0), rounds=3)
    assert who(run) == [[0, 1], [0, 2], [0, 1]]
    assert run.history.time.tolist() == [3, 4, 6]  # client 0 waits for the buffer, and starts again at 3 and 4
    assert run.history.staleness.tolist() == [0, 0.5, 0.5]


def test_concurrency_bounds_who_is_under_way():
    run = history("async:1", times=(1.0, 1.0, 1.0), rounds=30)
    assert (run.history.staleness == 0).all()
    assert set(np.flatnonzero(run.history.present.any(axis=0))) == {0, 1, 2}


def test_a_window_takes_what_came():
    run = history("window:3", times=(1.0, 4.0), rounds=4)
    assert who(run) == [[0], [0, 1], [0], [0, 1]]
    assert run.history.time.tolist() == [3, 6, 9, 12]
    assert run.history.staleness.tolist() == [0, 0.5, 0, 0.5]


@pytest.mark.parametrize("text", ["async", "buffer:2:3", "window:3", "quorum:2"])
def test_a_run_with_clients_under_way_resumes_to_the_bit(text, tmp_path):
    world = World(schedule.parse(text), Fixed((1.0, 2.5, 4.0, 7.0), tired=0.25))
    setup, *_ = quadratics(clients=4, world=world)
    whole = simulate(setup, FedAvg(), seed=0, rounds=9)
    run = begin(setup, FedAvg(), 0, 9)
    for step in range(9):
        run = advance(setup, FedAvg(), 0, run)
        checkpoint.save(tmp_path / "run", run, str(step), Clock())
        run, _ = checkpoint.load(tmp_path / "run", str(step))
    same_bits(run.state, whole.state)
    same_bits(run.world, whole.world)
    np.testing.assert_array_equal(run.history.time, whole.history.time)


def test_bytes_are_counted_both_ways():
    run = history("sync", rounds=3)
    model = 2 * 8
    assert run.history.bytes_down.tolist() == [4 * model, 8 * model, 12 * model]
    assert run.history.bytes_up.tolist() == [4 * model, 8 * model, 12 * model]
    late = history("quorum:2", rounds=3)
    assert late.history.bytes_down.tolist() == [4 * model, 8 * model, 12 * model]
    assert late.history.bytes_up.tolist() == [2 * model, 4 * model, 6 * model]
