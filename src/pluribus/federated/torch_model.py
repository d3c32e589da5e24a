"""A torch module as a pure model over a tree of numpy arrays."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pluribus.core.errors import require
from pluribus.federated.data import Dataset
from pluribus.federated.errors import SettingError
from pluribus.federated.models import Array, Batch, Scoring, Tree
from pluribus.federated.seeding import derived
from pluribus.federated.training import UNCHANGED, Hooks, LocalResult, LocalTraining

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, eq=False)
class TorchModel(Scoring):
    """``module``: samples ``(n, ...)`` to scores ``(n, n_classes)``; ``loss(scores, labels)`` a number.

    The tree holds the module's parameters and persistent buffers under torch's names and in torch's dtypes;
    tensors that are tied appear once, under their first name. Samples are cast to the parameters' dtype. The
    module serves as a recipe on the CPU: its own tensors are never changed.

    Parameters
    ----------
    module
        The recipe.
    loss
        Defaults to ``torch.nn.functional.cross_entropy``; for weighted batches it must take
        ``reduction="none"``, as that one does.
    fresh
        Whether `init` draws new parameters; False starts from the module's own.
    optimizer
        How a client trains: ``"sgd"`` (with the training's momentum), ``"adam"``, ``"adamw"``, or a function
        ``optimizer(parameters, lr=..., **optimizer_options)`` such as ``torch.optim.RMSprop``. It begins anew
        in every round.
    optimizer_options
        Its keyword arguments; an ``lr`` among them wins over the training's.
    scheduler
        ``scheduler(optimizer)`` gives one of ``torch.optim.lr_scheduler``, which is stepped after each step.
    precision
        ``"bf16"`` runs the forward pass under ``torch.autocast``; so does ``"fp16"``, which needs a CUDA device
        and scales the loss (``GradScaler``). Parameters, loss and evaluation stay as they are without it.
    device
        Where the work is done: ``"cpu"``, ``"cuda"``. Trees are numpy arrays all the same.

    *Training* goes through `fit`: torch's own loop. *Gradients* are given for parameters with
    ``requires_grad``; frozen ones and buffers pass through. *Buffers* (running means, counters) move in `fit`
    and in ``loss_grad_and_buffers``: they come back in the client's tree, float ones as floats and counters as
    integers. ``predict`` runs in evaluation mode and reads them; ``loss_and_grad`` runs in training mode and
    discards what it did to them. *Dropout* and the like draw from a generator of their own, in ``fit`` seeded by
    the client's seed, else by the batch and the parameters; the global generator is left as it was.

    Raises ``MissingExtraError`` where torch is not installed.
    """

    module: Any
    loss: Callable[..., Any] | None = None
    fresh: bool = field(default=True, kw_only=True)
    optimizer: str | Callable[..., Any] = field(default="sgd", kw_only=True)
    optimizer_options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    scheduler: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    precision: str | None = field(default=None, kw_only=True)
    device: str = field(default="cpu", kw_only=True)

    def __post_init__(self) -> None:
        torch = _torch()
        self._check_options(torch)
        if not isinstance(self.module, torch.nn.Module):
            raise SettingError(f"module is a {type(self.module).__name__}; expected a torch.nn.Module, not its class")
        for name, value in self.module.state_dict().items():
            if value.dtype == torch.bfloat16 or value.is_complex():
                raise SettingError(f"{name!r} is {value.dtype}, which numpy trees cannot train; use module.float()")
        if self.loss is None:
            object.__setattr__(self, "loss", torch.nn.functional.cross_entropy)

    def init(self, seed: int) -> Tree:
        """Parameters and buffers as every submodule's ``reset_parameters`` makes them under this seed.

        Tensors of modules without that method keep the values they have in ``module``; with ``fresh=False``
        (a pretrained start) all do.
        """
        torch = _torch()
        if not self.fresh:
            return self._tree()
        before = {name: value.clone() for name, value in self.module.state_dict().items()}
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derived(seed, "model.torch"))
                for part in self.module.modules():
                    reset = getattr(part, "reset_parameters", None)
                    if callable(reset):
                        reset()
            return self._tree()
        finally:
            self.module.load_state_dict(before)

    def fit(
        self, params: Tree, dataset: Dataset, how: LocalTraining, seed: int, *, hooks: Hooks = UNCHANGED
    ) -> LocalResult:
        """Local training in torch, with the model's optimiser; what `training.train` calls.

        Batches, their order, the proximal part, clipping and hooks are as `training.train` says, so with
        ``"sgd"`` the result is that of plain gradients up to rounding (compared in the tests). *Dropout* draws from
        a generator seeded by ``seed``. Nothing given is modified.

        Raises ``SettingError`` for a tree of another model, and ``DataError`` for a client without samples.
        """
        from pluribus.federated import torch_training

        return torch_training.fit(self, params, dataset, how, seed, hooks=hooks)

    def loss_and_grad(self, params: Tree, batch: Batch) -> tuple[float, Tree]:
        """Loss of a batch in training mode, and its gradient for each trained parameter."""
        loss, grads, _ = self.loss_grad_and_buffers(params, batch)
        return loss, grads

    def loss_grad_and_buffers(self, params: Tree, batch: Batch) -> tuple[float, Tree, Tree]:
        """Loss, gradients, and the buffers after one forward pass in training mode."""
        torch = _torch()
        state = self._state(torch, params)
        trained = {name: state[name].requires_grad_() for name, own in self._parameters() if own.requires_grad}
        before = torch.get_rng_state()
        try:
            torch.manual_seed(_fingerprint(params, batch))
            with self._mode(training=True), self.autocast():
                scores = torch.func.functional_call(self.module, state, (self.samples(batch.x),))
            loss = self.loss_of(scores, batch)
        finally:
            torch.set_rng_state(before)
        slopes = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        # Copies, because autograd may hand out one tensor for two names, or a view that repeats one number.
        grads = {
            name: np.zeros_like(params[name]) if slope is None else np.array(slope.cpu().numpy())
            for name, slope in zip(trained, slopes, strict=True)
        }
        buffers = {
            name: np.array(state[name].detach().cpu().numpy())
            for name, _ in self.module.named_buffers()
            if name in params
        }
        return float(loss.detach()), grads, buffers

    def logits(self, params: Tree, x: Array) -> Array:
        """The module's scores in evaluation mode, shape ``(n, n_classes)``."""
        torch = _torch()
        state = self._state(torch, params)
        with self._mode(training=False), torch.no_grad():
            scores = torch.func.functional_call(self.module, state, (self.samples(x),))
        return np.array(scores.cpu().numpy())

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        return iter(self.module.named_parameters())

    def _tree(self) -> Tree:
        kept = set(self.module.state_dict())
        tensors = [*self._parameters(), *((k, v) for k, v in self.module.named_buffers() if k in kept)]
        return {name: np.array(value.detach().numpy()) for name, value in tensors}

    def _state(self, torch: Any, params: Tree) -> dict[str, Any]:
        """Private tensors of the tree, and of the buffers that no tree holds (``persistent=False``)."""
        kept = set(self.module.state_dict())
        state = {name: value.clone() for name, value in self.module.named_buffers() if name not in kept}
        state.update((name, torch.from_numpy(np.array(value))) for name, value in params.items())
        return {name: value.to(self.device) for name, value in state.items()}

    def samples(self, x: Array) -> Any:
        """Samples as a tensor of the module's dtype, on the device."""
        torch = _torch()
        samples = torch.from_numpy(np.array(x))
        real = next((value.dtype for value in self._tensors() if value.is_floating_point()), samples.dtype)
        return samples.to(self.device, real if samples.is_floating_point() else samples.dtype)

    def loss_of(self, scores: Any, batch: Batch) -> Any:
        """The loss of a batch, a tensor of one number; in full precision whatever the scores are."""
        assert self.loss is not None
        torch = _torch()
        scores = scores.float() if self.precision else scores
        labels = torch.from_numpy(np.array(batch.y, dtype=np.int64)).to(self.device)
        if batch.weight is None:
            loss = self.loss(scores, labels)
            if loss.ndim:
                raise SettingError(f"the loss of a batch has shape {tuple(loss.shape)}; expected one number")
            return loss
        try:
            losses = self.loss(scores, labels, reduction="none")
        except TypeError as error:
            raise SettingError('for a weighted batch the loss must take reduction="none"') from error
        weight = torch.from_numpy(np.array(batch.weight)).to(losses)
        return (losses * weight).sum() / weight.sum()

    def _tensors(self) -> Iterator[Any]:
        yield from self.module.parameters()
        yield from self.module.buffers()

    def autocast(self) -> Any:
        """Mixed precision, where the model has one."""
        if self.precision is None:
            return nullcontext()
        torch = _torch()
        return torch.autocast(torch.device(self.device).type, dtype=getattr(torch, PRECISIONS[self.precision]))

    def _check_options(self, torch: Any) -> None:
        if isinstance(self.optimizer, str) and self.optimizer not in OPTIMIZERS:
            raise SettingError(
                f"no optimizer is called {self.optimizer!r}; there are {', '.join(OPTIMIZERS)}, and any function of "
                "parameters and lr, e.g. torch.optim.RMSprop"
            )
        if self.precision not in (None, *PRECISIONS):
            raise SettingError(f"precision is {self.precision!r}; expected None, bf16 or fp16")
        cuda = torch.device(self.device).type == "cuda"
        if cuda and not torch.cuda.is_available():
            raise SettingError(f"device is {self.device!r}, but torch finds no GPU here; use device='cpu'")
        if self.precision == "fp16" and not cuda:
            raise SettingError(f"precision fp16 needs device='cuda', not {self.device!r}; use bf16 there")

    @contextmanager
    def _mode(self, *, training: bool) -> Iterator[None]:
        before = [(part, part.training) for part in self.module.modules()]
        self.module.train(training)
        try:
            yield
        finally:
            for part, was in before:
                part.training = was


def _torch() -> Any:
    return require("torch", "torch")


def _fingerprint(params: Tree, batch: Batch) -> int:
    """A number that changes with the batch, its order, and the first coordinates of the parameters."""
    mark = zlib.crc32(batch.x.tobytes())
    mark = zlib.crc32(batch.y.tobytes(), mark)
    for name in sorted(params):
        mark = zlib.crc32(params[name].flat[:16].tobytes(), mark)
    return mark
