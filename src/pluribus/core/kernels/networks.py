"""Comparator networks that find order statistics without a branch.

A network sorts n wires by a fixed list of comparators, so that one comparator can be applied to a whole tile of
coordinates at once.  Batcher's odd-even merge sort gives a short list for every n; pruning it backwards from the ranks
that are wanted makes it shorter.

Reference: K. E. Batcher, "Sorting networks and their applications", AFIPS 1968.
Compared: numbers of comparators (n = 10: 32 full, 29 for the median) with an independent count, and all 0/1 inputs
(the zero-one principle) in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

BOTH, LOW, HIGH = 0, 1, 2
"""What a comparator (i, j) keeps: min on wire i and max on wire j; only the min on i; only the max on j."""


@dataclass(frozen=True)
class Network:
    """A list of comparators over ``n`` wires.

    Attributes
    ----------
    n : int
        Number of wires (contributors).
    steps : tuple of (i, j, op)
        Comparators in order, ``i < j``; ``op`` is `BOTH`, `LOW` or `HIGH`.
    outputs : tuple of int
        Wires that hold the wanted ranks after the last step, one rank a wire.

    """

    n: int
    steps: tuple[tuple[int, int, int], ...]
    outputs: tuple[int, ...]

    def __hash__(self) -> int:
        return hash((self.n, len(self.steps), self.outputs))  # thousands of steps, looked up for every tile

    @property
    def operations(self) -> int:
        """Number of elementary minima and maxima: two for a full comparator, one for a half."""
        return sum(2 if op == BOTH else 1 for _, _, op in self.steps)


def odd_even_merge_sort(n: int) -> Network:
    """Batcher's network that sorts ``n`` wires, smallest value on wire 0.

    It is the network of the next power of two without the comparators that touch a wire beyond n (those wires would
    hold +infinity, which no comparator moves).
    """
    if n < 1:
        raise ValueError(f"a comparator network needs at least one wire, not {n}")
    steps: list[tuple[int, int, int]] = []
    run = 1
    while run < n:  # merge neighbouring sorted runs of this length
        distance = run
        while distance >= 1:
            for start in range(distance % run, n - distance, 2 * distance):
                steps.extend(
                    (i, i + distance, BOTH)
                    for i in range(start, min(start + distance, n - distance))
                    if i // (2 * run) == (i + distance) // (2 * run)
                )
            distance //= 2
        run *= 2
    return Network(n, tuple(steps), tuple(range(n)))


def prune(network: Network, alone: Iterable[int] = (), together: Iterable[int] = ()) -> Network:
    """Keep only what the wanted outputs need.

    Parameters
    ----------
    network : Network
        Any network of full comparators.
    alone : iterable of int
        Wires whose own value is wanted.
    together : iterable of int
        Wires that are wanted as a set only (they are summed): it does not matter which of them holds which value.

    Returns
    -------
    Network
        Walking backwards, a comparator goes when both its outputs are dead or both are wanted only in the set, and
        becomes a half comparator when one output is dead.  ``outputs`` lists the wanted wires in ascending order.

    """
    dead, member, exact = 0, 1, 2
    state = [dead] * network.n
    for wire in together:
        state[wire] = member
    for wire in alone:
        state[wire] = exact
    outputs = tuple(wire for wire in range(network.n) if state[wire] != dead)
    kept = []
    for i, j, _ in reversed(network.steps):
        if state[i] == state[j] and state[i] != exact:
            continue
        kept.append((i, j, HIGH if state[i] == dead else LOW if state[j] == dead else BOTH))
        state[i] = state[j] = exact
    return Network(network.n, tuple(reversed(kept)), outputs)


@lru_cache(maxsize=256)
def rank_network(n: int, ranks: tuple[int, ...]) -> Network:
    """Return the network whose output wires hold the given distinct ``ranks`` (0 = smallest), one each, ascending."""
    if not all(0 <= rank < n for rank in ranks):
        raise ValueError(f"ranks of {n} values lie in 0..{n - 1}, not {ranks}")
    return prune(odd_even_merge_sort(n), alone=ranks)


@lru_cache(maxsize=256)
def middle_network(n: int, low: int, high: int) -> Network:
    """Return the network whose output wires together hold the ranks ``low..high-1``, in no particular order."""
    if not 0 <= low < high <= n:
        raise ValueError(f"ranks low..high-1 of {n} values need 0 <= low < high <= {n}, not low={low}, high={high}")
    return prune(odd_even_merge_sort(n), together=range(low, high))


Step = tuple[int, int, int, int]
"""(`LOW` or `HIGH`, row, row, row that is written): a minimum or a maximum of two rows."""


@lru_cache(maxsize=256)
def schedule(network: Network) -> tuple[tuple[Step, ...], int, tuple[int, ...]]:
    """Turn a network into minima and maxima of rows, so that no row is ever copied.

    Rows 0..n-1 are the views (read only), the following ones scratch.  A full comparator writes its minimum into a free
    row and its maximum over one of its inputs; then the wires point to other rows.  Returns the steps, the number of
    scratch rows, and the rows of the wanted outputs.
    """
    n, made = network.n, 0
    place = list(range(n))
    free: list[int] = []
    steps: list[Step] = []

    def fresh() -> int:
        nonlocal made
        if free:
            return free.pop()
        made += 1
        return n + made - 1

    for i, j, op in network.steps:
        a, b = place[i], place[j]
        owned = [row for row in (a, b) if row >= n]
        if op == BOTH:
            place[i] = fresh()
            steps.append((LOW, a, b, place[i]))
        kept = j if op != LOW else i
        place[kept] = owned.pop() if owned else fresh()
        steps.append((HIGH if kept == j else LOW, a, b, place[kept]))
        free.extend(owned)
    return tuple(steps), made, tuple(place[wire] for wire in network.outputs)
