"""The loop: clients train, attackers attack, the server combines, the test samples measure.

Every random number is a function of the seed, the round and the client, so a run that is taken up again from a
checkpoint goes on exactly as one that was never broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import pluribus
from pluribus.core import weights
from pluribus.core.errors import NonFiniteError, PluribusError
from pluribus.federated.data import Dataset
from pluribus.federated.models import Array, Model, Tree
from pluribus.federated.rounds import Exchange, exchange
from pluribus.federated.seeding import derived
from pluribus.federated.server.base import Round, ServerRule, State
from pluribus.federated.server.rule import Server
from pluribus.federated.setup import Setup

Floats = NDArray[np.float64]


class SimulationError(PluribusError):
    """A run that could not go on; the message names the round."""


@dataclass(frozen=True, eq=False)
class History:
    """What happened, in arrays of a fixed size that are filled round by round.

    Attributes
    ----------
    accuracy, loss
        Of the global model on the test samples after each round, (R,); the loss is the mean ``-log p(label)``.
        NaN where it was not measured. Under a rule with personal models: the mean over the clients of the accuracy as
        in ``client_accuracy`` and of the loss on the test samples, each of the client's own model.
    train_loss
        Mean over the round's participants of their loss while they trained, (R,).
    effective
        Effective number of clients, ``(sum |w|)^2 / sum w^2`` of the weights, (R,); NaN where nobody counted.
    weights
        What each client counted for, (R, N); NaN for those absent or left out.
    present
        Who took part, (R, N).
    time
        Simulated seconds from the start to the server's step, (R,).
    bytes_up, bytes_down
        Bytes that reached the server, and that it sent, up to and with each round, (R,).
    staleness
        Mean number of server steps between the model a participant started from and the step it took part in, (R,);
        NaN where nobody came.
    status
        What the server did in each round, (R,): an index into `pluribus.federated.server.rule.STATUS`, where 0 is
        a step and all else leaves the model as it was; -1 before the round.
    client_accuracy
        After the last round, (N,): the accuracy to expect on fresh samples of a client's own kind, that is
        ``sum_c p_c a_c`` with its true shares ``p`` of the classes and the accuracy ``a`` of each class on the
        test samples (of its own kind, where clients' samples differ in kind). Classes without test samples are left
        out. A client with a model of its own is measured with that.
    gram, squared_distances
        Of the last round's updates as the server got them, (N, N); NaN for clients that were absent or sent NaN.
    """

    accuracy: Floats
    loss: Floats
    train_loss: Floats
    effective: Floats
    time: Floats
    bytes_up: Floats
    bytes_down: Floats
    staleness: Floats
    weights: Floats
    present: NDArray[np.bool_]
    status: NDArray[np.int64]
    client_accuracy: Floats
    gram: Floats
    squared_distances: Floats

    @classmethod
    def empty(cls, rounds: int, clients: int) -> History:
        """Of so many rounds, none of which has happened."""

        def missing(*shape: int) -> Floats:
            return np.full(shape, np.nan)

        return cls(
            accuracy=missing(rounds),
            loss=missing(rounds),
            train_loss=missing(rounds),
            effective=missing(rounds),
            time=missing(rounds),
            bytes_up=missing(rounds),
            bytes_down=missing(rounds),
            staleness=missing(rounds),
            weights=missing(rounds, clients),
            present=np.zeros((rounds, clients), dtype=np.bool_),
            status=np.full(rounds, -1),
            client_accuracy=missing(clients),
            gram=missing(clients, clients),
            squared_distances=missing(clients, clients),
        )

    @property
    def rounds(self) -> int:
        """How many rounds it has room for."""
        return len(self.accuracy)

    @property
    def cosines(self) -> Floats:
        """Cosines of the last round's updates, (N, N); NaN as in ``gram``, 0 for a zero update."""
        norms = np.sqrt(np.diag(self.gram))
        safe = np.where(norms > 0, norms, 1.0)
        return np.asarray(np.clip(self.gram / safe[:, None] / safe[None, :], -1.0, 1.0))


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
    updates = _attacked(setup, [arrival.update for arrival in arrivals], present, seed, number)
    state = rule.step(run.state, _round(setup, rule, seed, number, came, updates=updates))
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
        _measure(setup, rule, state, history, number)
    if last and updates:
        _relate(history, updates, present)
    return Run(number + 1, state, history, came.memories, came.world)


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


def measure(model: Model, params: Tree, test: Dataset) -> tuple[Floats, float, float]:
    """Accuracy of each class (C,), NaN for a class without samples; of all samples; and the mean loss."""
    probabilities = np.asarray(model.probabilities(params, test.x), dtype=np.float64)
    right = probabilities.argmax(axis=1) == test.y
    of_label = probabilities[np.arange(len(test)), test.y]
    # The least positive float32 stands for zero, so that one sure mistake is not a loss of infinity.
    loss = float(-np.log(np.maximum(of_label, np.finfo(np.float32).tiny)).mean())
    hits = np.bincount(test.y[right], minlength=test.n_classes).astype(np.float64)
    counts = test.counts
    by_class = np.divide(hits, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return by_class, float(right.mean()), loss


def accuracy_of_clients(by_class: Floats, counts: NDArray[np.int64]) -> Floats:
    """``sum_c p_c a_c`` over the classes whose accuracy is known, (N,); NaN where a client has none of them."""
    known = np.isfinite(by_class)
    own = counts[:, known]
    total = own.sum(axis=1)
    return np.divide(own @ by_class[known], total, out=np.full(len(counts), np.nan), where=total > 0)


def _measure(setup: Setup, rule: ServerRule, state: State, history: History, number: int) -> None:
    """The accuracy after a round: of the global model, or of each client's own on samples of its own kind."""
    last = number + 1 == history.rounds
    personal = isinstance(rule, Server) and rule.personal_models
    if not personal:
        by_class, history.accuracy[number], history.loss[number] = measure(setup.model, state["params"], setup.test)
        if last and setup.tests is None:
            history.client_accuracy[:] = accuracy_of_clients(by_class, setup.true_counts)
    if personal or (last and setup.tests is not None):
        accuracy, losses = _measured_apart(setup, rule, state)
        if personal:
            history.accuracy[number], history.loss[number] = np.nanmean(accuracy), losses.mean()
        if last:
            history.client_accuracy[:] = accuracy


def _measured_apart(setup: Setup, rule: ServerRule, state: State) -> tuple[Floats, Floats]:
    """Each client's model on test samples of the client's kind: accuracy in its own mix of classes, and loss, (N,)."""
    n = len(setup.clients)
    accuracy, losses = np.full(n, np.nan), np.full(n, np.nan)
    for i in range(n):
        params = rule.model_of(state, i) if isinstance(rule, Server) else state["params"]
        test = setup.test if setup.tests is None else setup.tests[i]
        by_class, _, losses[i] = measure(setup.model, params, test)
        accuracy[i] = accuracy_of_clients(by_class, setup.true_counts[i : i + 1])[0]
    return accuracy, losses


def _attacked(setup: Setup, updates: Sequence[Tree], present: NDArray[np.int64], seed: int, number: int) -> list[Tree]:
    """What the server gets: the attackers' updates are replaced."""
    sent = list(updates)
    if setup.attack is None:
        return sent
    theirs = [k for k, i in enumerate(present) if i in setup.attackers]
    honest = [update for k, update in enumerate(updates) if k not in theirs]
    made = setup.attack.poison_updates(honest, [updates[k] for k in theirs], seed, number)
    for k, update in zip(theirs, made, strict=True):
        sent[k] = update
    return sent


def _round(
    setup: Setup, rule: ServerRule, seed: int, number: int, came: Exchange, *, updates: Sequence[Mapping[str, Array]]
) -> Round:
    arrivals, sizes = came.arrivals, setup.sizes
    present = [arrival.client for arrival in arrivals]
    needs = rule.needs if isinstance(rule, Server) else frozenset()

    def validate(client: int, params: Tree) -> tuple[float, float]:
        _, accuracy, loss = measure(setup.model, params, setup.clients[client])
        return loss, 1.0 - accuracy

    return Round(
        number=number,
        clients=tuple(present),
        updates=updates,
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
