"""A strategy of Flower that outlives its server: its state in one file after each round, and a run that goes on.

Part of `pluribus.federated.flower`, which is where to begin.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pluribus.core.errors import FileError, RuleError, require
from pluribus.core.files import target_of, told, write_bytes
from pluribus.federated.server.base import Array

require("flwr.serverapp.strategy", "flower")

from flwr.serverapp.strategy import FedAvg  # noqa: E402 - asked for by name first

from pluribus.federated.flower_patience import Patient  # noqa: E402

_LOG = logging.getLogger("flwr")
_FORMAT = 1
_KEY = "pluribus-flower"


def save(path: Path, tensors: Mapping[str, Array], belongs_to: str) -> None:
    """Replace a checkpoint in one step; ``belongs_to`` is what `load` must ask for.

    Raises
    ------
    FileError
        The file cannot be written.
    """
    from safetensors.numpy import save as serialise

    facts = {"format": _FORMAT, "belongs_to": belongs_to, "digest": _digest(tensors)}
    write_bytes(path, serialise(dict(tensors), {_KEY: json.dumps(facts)}))


def load(path: Path, belongs_to: str) -> dict[str, Array]:
    """The tensors of a checkpoint.

    Raises
    ------
    FileError
        The file is truncated, damaged, no checkpoint of a strategy, or that of another rule or seed.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with told(path, "be read"), safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no iterable
        format_, owner, digest = facts["format"], facts["belongs_to"], facts["digest"]
    except FileError:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is no checkpoint of a strategy that can be used: {error}") from None
    if format_ != _FORMAT:
        raise FileError(f"{path} has format {format_}, not {_FORMAT}")
    if digest != _digest(tensors):
        raise FileError(f"{path} is damaged: its contents do not match its digest")
    if owner != belongs_to:
        raise FileError(
            f"{path} is the checkpoint of {owner}, and this strategy is {belongs_to}; start with the same rule "
            "and seed, or give another path"
        )
    return tensors


def _digest(tensors: Mapping[str, Array]) -> str:
    from safetensors.numpy import save as serialise

    return hashlib.sha256(serialise(dict(tensors))).hexdigest()


class Checkpointed(FedAvg):  # type: ignore[misc, unused-ignore]
    """What a strategy needs to go on: its state is written after each round, and rounds are counted over all starts."""

    grace: float | None = None

    def _open(self, checkpoint: str | Path | None, resume: bool, belongs_to: str) -> None:
        """Look at the checkpoint before anything else happens, and load it to go on from it."""
        self._path = None if checkpoint is None else Path(checkpoint)
        self._belongs_to, self._offset, self._resumed = belongs_to, 0, False
        if self._path is None:
            if resume:
                raise RuleError("resume=True needs checkpoint=PATH, the file to go on from")
            return
        there = target_of(self._path).exists()
        if there and not resume:
            raise FileError(
                f"{self._path} is there already; pass resume=True to go on from it, or another path, or remove it"
            )
        if there:
            self.load_state_dict(load(self._path, belongs_to))
            self._resumed = True
        else:  # a path that cannot be written is told now, and not after the first round
            parent = target_of(self._path).parent
            if not parent.is_dir():
                raise FileError(f"{self._path} cannot be written: the folder {parent} does not exist; create it first")

    @property
    @abstractmethod
    def rounds(self) -> int:
        """Rounds done, over all starts."""

    @abstractmethod
    def arrays(self) -> Any:
        """The global model."""

    @abstractmethod
    def state_dict(self) -> dict[str, Array]:
        """All that a later run needs."""

    @abstractmethod
    def load_state_dict(self, saved: Mapping[str, Array]) -> None:
        """Go on from a `state_dict`."""

    def _save(self) -> None:
        if self._path is not None:
            save(self._path, self.state_dict(), self._belongs_to)

    def start(  # noqa: PLR0917 - in Flower's order
        self,
        grid: Any,
        initial_arrays: Any,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: Any = None,
        evaluate_config: Any = None,
        evaluate_fn: Callable[[int, Any], Any] | None = None,
    ) -> Any:
        """Flower's; after ``resume=True`` the rest of it, from the checkpoint's model and round to ``num_rounds``.

        Rounds keep their numbers, for clients, for ``evaluate_fn`` and in the result. A run that was done returns its
        model at once. Metrics of rounds before the restart are not in the result.
        """
        self._offset = self.rounds if self._resumed else 0
        if self._resumed:
            _LOG.info("Going on from %s after round %d of %d", self._path, self._offset, num_rounds)
            initial_arrays, self._resumed = self.arrays(), False
        if self.grace is not None:
            grid = Patient(grid, {"train": self.min_train_nodes, "evaluate": self.min_evaluate_nodes}, self.grace)
        offset, evaluate = self._offset, evaluate_fn
        shifted = None if evaluate is None else lambda number, arrays: evaluate(number + offset, arrays)
        left = max(num_rounds - offset, 0)
        try:
            result = super().start(grid, initial_arrays, left, timeout, train_config, evaluate_config, shifted)
            found = {
                name: {number + offset: record for number, record in getattr(result, name).items()}
                for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
            }
            return replace(result, arrays=result.arrays or initial_arrays, **found)
        finally:
            self._offset = 0

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        """Flower's, with the round's number over all starts."""
        if self._resumed:  # somebody else's start, such as a privacy wrapper's: it knows nothing of a checkpoint
            self._resumed = False
            if arrays.object_id != self.arrays().object_id:
                raise RuleError(
                    f"the strategy goes on from {self._path}, but was given another model to start from: give "
                    "strategy.arrays() as initial_arrays"
                )
        return super().configure_train(server_round + self._offset, arrays, config, grid)

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        """Flower's, with the round's number over all starts."""
        return super().configure_evaluate(server_round + self._offset, arrays, config, grid)
