"""Local training of a torch module by torch itself: any optimiser, a scheduler, mixed precision."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pluribus.federated.data import Dataset
from pluribus.federated.errors import SettingError
from pluribus.federated.models import Array, Batch, Tree
from pluribus.federated.seeding import derived
from pluribus.federated.torch_model import OPTIMIZERS, TorchModel
from pluribus.federated.training import Evaluator, Hooks, LocalResult, LocalTraining, batches, refuse_empty


@dataclass(frozen=True, eq=False)
class Client:
    """A client at work: a module of its own, its tensors by name, those that are trained, and where they started."""

    model: TorchModel
    how: LocalTraining
    hooks: Hooks
    module: Any
    tensors: dict[str, Any]
    trained: dict[str, Any]
    start: dict[str, Any]
    optimizer: Any
    scheduler: Any
    scaler: Any

    @classmethod
    def begin(cls, model: TorchModel, params: Tree, how: LocalTraining, hooks: Hooks) -> Client:
        """Before the first step."""
        module = loaded(model.module, params).to(model.device).train()
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        optimizer = make_optimizer(model, trained, how)
        return cls(
            model=model,
            how=how,
            hooks=hooks,
            module=module,
            tensors=named(module, params),
            trained=trained,
            start={name: value.detach().clone() for name, value in trained.items()} if how.proximal_mu else {},
            optimizer=optimizer,
            scheduler=model.scheduler(optimizer) if model.scheduler is not None else None,
            scaler=torch.amp.GradScaler("cuda") if model.precision == "fp16" else None,
        )

    def step(self, batch: Batch, number: int, planned: int) -> float:
        """One step; gives the loss before it."""
        loss = self._backward(batch) if self.hooks.gradient is None else self._hooked(batch, number)
        self._correct(number)
        self._move(1.0 if self.hooks.rate is None else self.hooks.rate(number, planned))
        if self.hooks.after is not None:
            with arrays(self.tensors) as own:
                self.hooks.after(own, number)
        return loss

    def _backward(self, batch: Batch) -> float:
        self.optimizer.zero_grad()
        with self.model.autocast():
            scores = self.module(self.model.samples(batch.x))
        loss = self.model.loss_of(scores, batch)
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
        return float(loss.detach())

    def _hooked(self, batch: Batch, number: int) -> float:
        """The gradient as a client method makes it, from the model's pure gradient."""
        assert self.hooks.gradient is not None
        with arrays(self.tensors) as own:
            moved = dict(own)
            evaluate = Evaluator(self.model, moved)
            loss, grads = self.hooks.gradient(evaluate, moved, batch, number)
            evaluate.move_buffers()
            for name, value in moved.items():
                if value is not own[name]:
                    own[name][...] = value
        for name, value in self.trained.items():
            value.grad = torch.from_numpy(np.array(grads[name])).to(value)
        return loss

    def _correct(self, number: int) -> None:
        """The proximal part, the client method's correction, and the clipping, in this order."""
        if self.hooks.adjust is not None:  # it may look at every name
            for value in self.trained.values():
                value.grad = torch.zeros_like(value) if value.grad is None else value.grad
        slopes = {name: value.grad for name, value in self.trained.items() if value.grad is not None}
        if self.start:
            for name, slope in slopes.items():
                slope.add_(self.trained[name].detach() - self.start[name], alpha=self.how.proximal_mu)
        if self.hooks.adjust is not None:
            with arrays(self.tensors) as own, arrays(slopes) as grads:
                self.hooks.adjust(own, grads, number)
        if self.how.max_grad_norm is not None and slopes:
            norm = float(torch.linalg.vector_norm(torch.stack([slope.norm() for slope in slopes.values()])))
            if norm > self.how.max_grad_norm:
                for slope in slopes.values():
                    slope.mul_(self.how.max_grad_norm / norm)

    def _move(self, factor: float) -> None:
        """Step with the learning rates times the factor; the scheduler skips what mixed precision skips."""
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        stepped = True
        if self.scaler is None:
            self.optimizer.step()
        else:
            scale = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            stepped = self.scaler.get_scale() >= scale
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        if self.scheduler is not None and stepped:
            self.scheduler.step()


def fit(
    model: TorchModel, params: Tree, dataset: Dataset, how: LocalTraining, seed: int, *, hooks: Hooks
) -> LocalResult:
    """What `training.train` does, with the model's optimiser; see `TorchModel.fit`."""
    refuse_empty(dataset)
    planned, summed, seen, steps = how.planned_steps(len(dataset)), 0.0, 0, 0
    with one_thread(), seeded(model.device, derived(seed, "training.torch")), np.errstate(all="ignore"):
        client = Client.begin(model, params, how, hooks)
        for batch in batches(dataset, how, seed):
            summed += client.step(batch, steps, planned) * len(batch.y)
            seen += len(batch.y)
            steps += 1
    reached = {name: np.array(value.detach().cpu().numpy()) for name, value in client.tensors.items()}
    return LocalResult(reached, summed / seen, steps)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums by several threads have other last bits, and clients are what is done side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def loaded(module: Any, params: Tree) -> Any:
    """A copy of the module that holds the tree; raises ``SettingError`` for names and shapes that do not fit."""
    own = copy.deepcopy(module)
    for name, tensor in named(own, params).items():
        if tuple(tensor.shape) != params[name].shape:
            raise SettingError(
                f"{name!r} has shape {params[name].shape} in the tree and {tuple(tensor.shape)} in the module: is the "
                "tree another model's?"
            )
        tensor.detach().numpy()[...] = params[name]
    return own


def named(module: Any, params: Tree) -> dict[str, Any]:
    """The module's tensors that a tree holds, by name."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for name in params:
        if name not in tensors:
            raise SettingError(f"the tree holds {name!r}, which the module lacks: is the tree another model's?")
    for name, _ in module.named_parameters():
        if name not in params:
            raise SettingError(f"the module holds {name!r}, which the tree lacks: is the tree another model's?")
    return {name: tensors[name] for name in params}


def make_optimizer(model: TorchModel, trained: dict[str, Any], how: LocalTraining) -> Any:
    """The model's optimiser over the trained tensors, with the training's learning rate unless it has its own."""
    if not trained:
        raise SettingError("no parameter of the module has requires_grad, so there is nothing to train")
    options = {"lr": how.lr} | dict(model.optimizer_options)
    if model.optimizer == "sgd":
        return torch.optim.SGD(trained.values(), **({"momentum": how.momentum} | options))
    if how.momentum:
        raise SettingError(
            f"momentum={how.momentum:g} is for the optimizer 'sgd'; set it to 0, and give the optimizer options of its "
            "own in optimizer_options, e.g. {'betas': (0.9, 0.99)}"
        )
    if isinstance(model.optimizer, str):
        return getattr(torch.optim, OPTIMIZERS[model.optimizer])(trained.values(), **options)
    return model.optimizer(trained.values(), **options)


@contextmanager
def seeded(device: str, seed: int) -> Iterator[None]:
    """Torch's generators start from a seed in here, and go on as before after it."""
    where = torch.device(device)
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def arrays(tensors: dict[str, Any]) -> Iterator[Tree]:
    """Arrays to change in place: the tensors' own memory on the CPU, copies that are written back elsewhere."""
    own: dict[str, Array] = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    yield own
    with torch.no_grad():
        for name, value in tensors.items():
            if value.device.type != "cpu":
                value.copy_(torch.from_numpy(own[name]))
