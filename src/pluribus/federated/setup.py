"""A federation, made from settings and a seed: who has which samples, who attacks, what measures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pluribus.federated import attacks, data, participation, partition
from pluribus.federated import shift as shifts
from pluribus.federated.attacks import Attack
from pluribus.federated.clients.base import ClientMethod, Job, Report
from pluribus.federated.config import BUILT_IN, Config, parse_noise
from pluribus.federated.data import Dataset
from pluribus.federated.errors import DataError
from pluribus.federated.model_text import make_model
from pluribus.federated.models import Batch, Model, Tree
from pluribus.federated.participation import Participation
from pluribus.federated.seeding import derived, generator
from pluribus.federated.server.base import Objective
from pluribus.federated.training import LocalTraining
from pluribus.federated.world import channel, schedule, speeds
from pluribus.federated.world.availability import Trace
from pluribus.federated.world.base import World
from pluribus.federated.world.dropouts import Dropouts

DTYPE = "float32"


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything about a federation that is not a server's rule.

    Attributes
    ----------
    model, training
        What each client trains, and how.
    clients
        N data sets, with the labels that their owners have: noisy or flipped ones where somebody made them so.
    test
        Samples that only measure.
    participation
        Who takes part in a round.
    true_counts
        Clients x classes before any label was changed, (N, C): what a client would meet in use.
    proxy
        The server's own clean samples, or None.
    attack, attackers, noisy
        The attack, positions of the attackers, positions of the clients with noisy labels.
    world
        Speeds, losses, channel, and when the server steps.
    tests
        ``tests(client)``, test samples of the client's own kind, or None: all clients' are of one kind, ``test``.
    engine
        Where jobs are done: ``run(method, jobs) -> reports``; None: here, one after another.
    class_names
        C of them.
    """

    model: Model
    training: LocalTraining
    clients: tuple[Dataset, ...]
    test: Dataset
    participation: Participation
    true_counts: NDArray[np.int64]
    proxy: Dataset | None = None
    attack: Attack | None = None
    attackers: tuple[int, ...] = ()
    noisy: tuple[int, ...] = ()
    world: World = field(default_factory=World)
    tests: Callable[[int], Dataset] | None = None
    engine: Callable[[ClientMethod, Sequence[Job]], list[Report]] | None = None

    def run_jobs(self, method: ClientMethod, jobs: Sequence[Job]) -> list[Report]:
        """The reports of jobs, in their order."""
        return [method.train(job) for job in jobs] if self.engine is None else self.engine(method, jobs)

    @cached_property
    def label_counts(self) -> NDArray[np.int64]:
        """Clients x classes as the clients see them and tell the server, (N, C)."""
        return np.stack([client.counts for client in self.clients])

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client, (N,)."""
        return np.array([len(client) for client in self.clients])

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called."""
        return self.test.class_names

    def objective(self) -> Objective | None:
        """Loss and gradient of the proxy samples, as server rules take them."""
        if self.proxy is None:
            return None
        batch, model = Batch(self.proxy.x, self.proxy.y), self.model

        def loss_and_grad(params: Tree) -> tuple[float, Tree]:
            return model.loss_and_grad(params, batch)

        return loss_and_grad


def load(config: Config) -> Dataset:
    """The samples that the settings name."""
    if config.data in BUILT_IN:
        made: Dataset = getattr(data, config.data)()
        return made
    return data.load(config.data)


def fingerprint(dataset: Dataset) -> str:
    """A digest of samples, labels and class names: whether a file still holds what it held."""
    told = hashlib.sha256(repr((dataset.x.shape, dataset.x.dtype.str, dataset.class_names)).encode())
    told.update(np.ascontiguousarray(dataset.x).tobytes())
    told.update(np.ascontiguousarray(dataset.y).tobytes())
    return told.hexdigest()


def traces(config: Config) -> dict[str, str]:
    """Digests of the files that ``participation`` and ``speeds`` name, by setting: they belong to the results."""
    found = {
        "participation": participation.parse(config.participation, [[1.0, 1.0]] * config.clients, 0),
        "speeds": speeds.parse(config.speeds, config.clients),
    }
    return {key: value.digest for key, value in found.items() if isinstance(value, (Trace, speeds.Trace))}


def build(config: Config, dataset: Dataset, seed: int) -> Setup:
    """The federation of one seed: its own split, partition, participation, attackers and noisy clients.

    The proxy samples are kept from the clients whether a rule uses them or not, so that all rules see the same
    clients.
    """
    if dataset.n_classes < 2:
        raise DataError(f"{dataset.name} has {dataset.n_classes} class; there is nothing to tell apart")
    split = data.split(dataset, seed, test=config.test, proxy=config.proxy)
    if config.standardize:
        split = split.standardized()
    train = replace(split.train, x=split.train.x.astype(DTYPE))
    divide = partition.parse(config.partition)
    shared = divide(train.y, config.clients, seed, n_classes=dataset.n_classes)
    attack = attacks.parse(config.attack)
    attackers = attack.attackers(config.clients, seed).tolist() if attack else []
    count, fraction = parse_noise(config.label_noise)
    noisy = sorted(generator(seed, "setup.noisy").permutation(config.clients)[:count].tolist())
    shift = shifts.parse(config.shift)
    test = replace(split.test, x=split.test.x.astype(DTYPE))
    clients, true_counts = [], []
    for i, indices in enumerate(shared.indices):
        own = shift.apply(train.take(indices), i, seed)
        true_counts.append(own.counts)
        if i in noisy:
            mixed = data.noisy_labels(own.y, fraction, own.n_classes, derived(seed, "setup.noise", i))
            own = own.with_labels(mixed)
        if attack and i in attackers:
            own = attack.poison_data(own)
        clients.append(own)
    return Setup(
        model=_model(config, dataset),
        training=LocalTraining(config.epochs, config.batch_size, config.lr, config.momentum, config.proximal),
        clients=tuple(clients),
        test=test,
        participation=participation.parse(config.participation, np.stack(true_counts), seed),
        true_counts=np.stack(true_counts),
        proxy=replace(split.proxy, x=split.proxy.x.astype(DTYPE)) if config.proxy else None,
        attack=attack,
        attackers=tuple(attackers),
        noisy=tuple(noisy),
        world=World(
            schedule.parse(config.schedule),
            speeds.parse(config.speeds, config.clients, config.link),
            Dropouts(config.dropout) if config.dropout else None,
            None if (way := channel.parse(config.channel)).plain else way,
        ),
        tests=(lambda client: shift.apply(test, client, seed, part=1)) if shift.kind != "none" else None,
    )


def _model(config: Config, dataset: Dataset) -> Model:
    return make_model(config.model, dataset, DTYPE)
