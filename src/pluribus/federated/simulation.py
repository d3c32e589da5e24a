"""The loop: clients train, attackers attack, the server combines, the test samples measure.

Every random number is a function of the seed, the round and the client, so a run that is taken up again from a
checkpoint goes on exactly as one that was never broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

import pluribus
from pluribus.core import weights
from pluribus.core.errors import NonFiniteError, PluribusError
from pluribus.federated.attacks import Scene, defence_of
from pluribus.federated.history import History
from pluribus.federated.measuring import measure, measure_round
from pluribus.federated.models import Tree
from pluribus.federated.rounds import Exchange, exchange
from pluribus.federated.seeding import derived
from pluribus.federated.server.base import Round, ServerRule, State
from pluribus.federated.server.rule import Server
from pluribus.federated.setup import Setup

Floats = NDArray[np.float64]


class SimulationError(PluribusError):
    """A run that could not go on; the message names the round."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run under way: ``round`` rounds are done, ``state`` is the server's, ``history`` holds what happened.

    ``memories`` is what clients keep, by client, and ``world`` the clock and what is under way; trees of arrays.
    """

    round: int
    state: State
    history: History
    memories: State = field(default_factory=dict)
    world: State = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.round >= self.history.rounds


def begin(setup: Setup, rule: ServerRule, seed: int, rounds: int) -> Run:
    """A run before its first round: fresh parameters, the same for every rule under one seed."""
    params = setup.model.init(derived(seed, "simulation.init"))
    state = rule.init(params, len(setup.clients))
    return Run(0, state, History.empty(rounds, len(setup.clients)))


def advance(setup: Setup, rule: ServerRule, seed: int, run: Run, eval_every: int = 1) -> Run:
    """One round more. The history is filled in place; the state is a new one.

    A round in which nobody takes part reaches the rule as one without updates.
    """
    number, history = run.round, run.history
    came = exchange(setup, rule, seed, number, state=run.state, world=run.world, memories=run.memories)
    arrivals = came.arrivals
    present = np.array([arrival.client for arrival in arrivals], dtype=np.int64)
    told = _round(setup, rule, seed, number, came)
    updates, attack = _attacked(setup, rule, run, told, [arrival.update for arrival in arrivals])
    state = rule.step(run.state, replace(told, updates=updates))
    if arrivals:
        history.train_loss[number] = np.mean([arrival.loss for arrival in arrivals])
        history.staleness[number] = np.mean([number - arrival.version for arrival in arrivals])
    before = (history.bytes_up[number - 1], history.bytes_down[number - 1]) if number else (0.0, 0.0)
    history.time[number] = came.time
    history.bytes_up[number], history.bytes_down[number] = before[0] + came.up, before[1] + came.down
    history.present[number, present] = True
    history.weights[number] = state["weights"]
    history.status[number] = state.get("status", 0)
    counted = np.nan_to_num(history.weights[number])
    history.effective[number] = weights.effective_size(counted) if counted.any() else np.nan
    last = number + 1 == history.rounds
    if last or (number + 1) % eval_every == 0:
        measure_round(setup, rule, state, history, number)
    if last and updates:
        _relate(history, updates, present)
    world = {**came.world, "attack": attack} if attack else came.world
    return Run(number + 1, state, history, came.memories, world)


def simulate(
    setup: Setup,
    rule: ServerRule,
    seed: int,
    *,
    rounds: int,
    eval_every: int = 1,
    start: Run | None = None,
    after_round: Callable[[Run], None] | None = None,
) -> Run:
    """Run all rounds that are left.

    Parameters
    ----------
    setup, rule, seed
        The federation, the server's rule, and what all randomness starts from.
    rounds
        How many.
    eval_every
        Every how many rounds to measure; the last is always measured.
    start
        A run to go on with, of as many rounds; None begins one.
    after_round
        Called with the run after each round: to show or store it, or to stop by raising.

    Raises
    ------
    SimulationError
        A round that failed; the message names it, and the cause hangs on the error.
    """
    from threadpoolctl import threadpool_limits

    run = start if start is not None else begin(setup, rule, seed, rounds)
    if run.history.rounds != rounds:
        raise SimulationError(f"the run to go on with is one of {run.history.rounds} rounds, not of {rounds}")
    # One thread: a product of matrices summed by several threads has other last bits.
    with threadpool_limits(limits=1), np.errstate(all="ignore"):
        while not run.finished:
            try:
                run = advance(setup, rule, seed, run, eval_every)
            except Exception as error:
                told = str(error) if isinstance(error, PluribusError) else f"{type(error).__name__}: {error}"
                raise SimulationError(f"round {run.round + 1}: {told}") from error
            if after_round is not None:
                after_round(run)
    return run


def _attacked(
    setup: Setup, rule: ServerRule, run: Run, round: Round, updates: Sequence[Tree]
) -> tuple[list[Tree], State]:
    """What the server gets: the attackers' updates are replaced; and what the attackers remember."""
    memory: State = run.world.get("attack", {})
    sent = list(updates)
    if setup.attack is None:
        return sent, memory
    theirs = [k for k, i in enumerate(round.clients) if i in setup.attackers]
    honest = [k for k in range(len(sent)) if k not in theirs]
    scene = Scene(
        honest=[sent[k] for k in honest],
        own=[sent[k] for k in theirs],
        seed=round.seed,
        round=round.number,
        clients=[round.clients[k] for k in honest],
        defence=defence_of(rule, run.state, round, theirs),
        params=run.state["params"],
    )
    made, memory = setup.attack.send(scene, memory)
    for k, update in zip(theirs, made, strict=True):
        sent[k] = update
    return sent, memory


def _round(setup: Setup, rule: ServerRule, seed: int, number: int, came: Exchange) -> Round:
    arrivals, sizes = came.arrivals, setup.sizes
    present = [arrival.client for arrival in arrivals]
    needs = rule.needs if isinstance(rule, Server) else frozenset()

    def validate(client: int, params: Tree) -> tuple[float, float]:
        _, accuracy, loss = measure(setup.model, params, setup.clients[client])
        return loss, 1.0 - accuracy

    return Round(
        number=number,
        clients=tuple(present),
        updates=[arrival.update for arrival in arrivals],
        sizes=sizes[present].astype(np.float64),
        n_clients=len(setup.clients),
        total_size=float(sizes.sum()),
        label_counts=setup.label_counts[present],
        proxy=setup.objective(),
        seed=seed,
        starts=[arrival.start for arrival in arrivals],
        steps=np.array([arrival.steps for arrival in arrivals], dtype=np.int64),
        losses=np.array([validate(a.client, a.start)[0] for a in arrivals]) if "losses" in needs else None,
        staleness=np.array([number - arrival.version for arrival in arrivals], dtype=np.int64),
        messages=[arrival.message for arrival in arrivals],
        rates=setup.participation.rates,
        time=came.time,
        validate=validate if "validate" in needs else None,
    )


def _relate(history: History, updates: Sequence[Tree], present: NDArray[np.int64]) -> None:
    try:
        relation = pluribus.aggregate(list(updates), nonfinite="drop").gram
    except NonFiniteError:  # nobody sent anything that has distances
        return
    window = np.ix_(present, present)
    for kept, found in ((history.gram, relation.gram), (history.squared_distances, relation.squared_distances)):
        kept[window] = found * relation.scale * relation.scale
