"""Memory for reads is lent again, and never while anybody holds what was read."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from safetensors.numpy import save_file

from pluribus import aggregate
from pluribus.core import checkpoints, lent

SIZE = lent.LEAST


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture(autouse=True)
def nothing_spare():
    for spare in lent._spare.values():
        spare.clear()


@pytest.mark.parametrize(
    "of",
    [
        lambda room: room,
        lambda room: room[5:],
        lambda room: room[:0],
        lambda room: room.view(np.float64)[3:].reshape(-1, 1)[::2].T,
        lambda room: memoryview(room)[8:],
        lambda room: np.asarray(memoryview(room)).view(np.int16),
        lambda room: np.lib.stride_tricks.as_strided(room.view(np.int32), (3, 3), (8, 4)),
    ],
    ids=["it", "a part", "nothing of it", "a view of a view", "a buffer", "an array of a buffer", "strides"],
)
def test_whoever_holds_a_view_holds_the_memory(of):
    room = lent.room(SIZE)
    where, view = address(room), of(room)
    del room
    others = [lent.room(SIZE) for _ in range(5)]
    assert where not in map(address, others)
    del view
    gc.collect()
    assert address(lent.room(SIZE)) == where


def test_a_tensor_holds_it_too():
    torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    room = lent.room(SIZE)
    where, tensor = address(room), torch.from_numpy(room)[8:].reshape(2, -1)[1]
    del room
    assert address(lent.room(SIZE)) != where
    del tensor
    assert where in map(address, lent._spare[SIZE])


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE + 8, 2 * lent.MOST])
def test_other_sizes_are_fresh(size):
    assert lent.room(size).shape == (size,)
    assert not any(lent._spare.values())


def test_what_is_kept_is_bounded():
    rooms = [lent.room(lent.MOST) for _ in range(40)]
    assert len({address(room) for room in rooms}) == 40
    del rooms
    assert 0 < sum(held.nbytes for spare in lent._spare.values() for held in spare) <= 1 << 26


def test_threads_never_share():
    def work(number):
        for _ in range(200):
            rooms = [lent.room(SIZE).view(np.int64) for _ in range(4)]
            for k, room in enumerate(rooms):
                room[:] = 10 * number + k
            wrong.extend(k for k, room in enumerate(rooms) if (room != 10 * number + k).any())

    wrong = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_ranges_of_files_stay_as_they_were_read(tmp_path, rng):
    x = rng.normal(size=SIZE)
    save_file({"w": x}, tmp_path / "x.safetensors")
    leaf = checkpoints.read(tmp_path / "x.safetensors")["w"]
    step = SIZE // 8
    held = [leaf.items(start, start + step) for start in range(0, len(x), step)]
    np.testing.assert_array_equal(np.concatenate(held), x)
    assert not held[0].flags.writeable
    part, where = held[3][10:], address(held[2])
    del held
    again = leaf.items(0, step)
    assert lent._spare[SIZE], "the memory is kept"
    assert where in [address(again), *(address(spare) for spare in lent._spare[SIZE])]
    np.testing.assert_array_equal(part, x[3 * step + 10 : 4 * step])


def test_results_of_files_are_those_in_memory(tmp_path, rng):
    xs = [{"w": rng.normal(size=400_000).astype(dtype)} for dtype in ("f4", "f4", "f8", "f4", "f4")]
    paths = [tmp_path / f"{k}.safetensors" for k in range(5)]
    for x, path in zip(xs, paths, strict=True):
        save_file(x, path)
    for rule in ("mean", "median", "krum:f=1", "trimmed_mean:f=1"):
        found, expected = aggregate(paths, rule), aggregate(xs, rule)
        np.testing.assert_array_equal(found.value["w"], expected.value["w"])
        np.testing.assert_array_equal(found.distances, expected.distances)
