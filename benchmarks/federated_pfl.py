"""The benchmark's federation on pfl-research's simulation. Runs in an environment with ``pfl`` and torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.base import StatefulModel
from pfl.stats import MappedVectorStatistics

from benchmarks.federated import CLIENTS, HIDDEN, mark


class Accuracy(TrainingProcessCallback):
    """Measures after every round."""

    def __init__(self, federation: Any) -> None:
        self.federation = federation

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Mark the round."""
        del aggregate_metrics, central_iteration
        predicted = model.predict(self.federation["test_x"])
        mark(float((predicted == self.federation["test_y"]).mean()))
        return False, Metrics()


def torch_model(start: dict[str, Any]) -> Any:
    """Pfl's own model for torch, which it trains with its own loop."""
    import torch
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = torch.nn.Linear(64, HIDDEN)
            self.output = torch.nn.Linear(HIDDEN, 10)
            self.load_state_dict({name: torch.from_numpy(value) for name, value in start.items()})

        def forward(self, x: Any) -> Any:
            return self.output(torch.relu(self.hidden(torch.as_tensor(x))))

        def loss(self, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(self(x), torch.as_tensor(y))

        def metrics(self, x: Any, y: Any) -> dict[str, Any]:
            return {}

    class Predicting(PyTorchModel):
        def predict(self, x: Any) -> Any:
            with torch.no_grad():
                return self.pytorch_model(x).numpy().argmax(axis=1)

    network = Network()
    return Predicting(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))


class NumpyModel(StatefulModel):
    """Our network's parameters as pfl holds them."""

    def __init__(self, start: dict[str, Any]) -> None:
        from pluribus.federated.models import MLP

        super().__init__()
        self.kind, self.params = MLP(64, HIDDEN, 10, dtype="float32"), start

    def predict(self, x: Any) -> Any:
        return self.kind.predict(self.params, x)

    def get_parameters(self, placeholders: Any = None) -> Any:
        return MappedVectorStatistics(dict(self.params))

    def set_parameters(self, w: Any) -> None:
        self.params = {name: w[name] for name in w}

    def get_model_difference(self, other_parameters: Any, clone: bool = False) -> Any:
        return MappedVectorStatistics({name: self.params[name] - other_parameters[name] for name in self.params})

    def apply_model_update(self, statistics: Any) -> Any:
        self.params = {name: self.params[name] + statistics[name].astype(np.float32) for name in self.params}
        return self, Metrics()

    def evaluate(self, *args: Any, **kwargs: Any) -> Metrics:
        return Metrics()

    def save(self, dir_path: str) -> None: ...

    def load(self, dir_path: str) -> None: ...


class NumpyAveraging(FederatedAveraging):
    """Federated averaging whose clients train as ours do."""

    def __init__(self) -> None:
        super().__init__()
        self.samples: dict[str, Any] = {}

    def train_one_user(self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any) -> Any:
        from pluribus.federated.data import Dataset as Samples
        from pluribus.federated.training import LocalTraining, train

        if user_dataset.user_id not in self.samples:
            self.samples[user_dataset.user_id] = Samples(*user_dataset.raw_data, n_classes=10)
        data = self.samples[user_dataset.user_id]
        how = LocalTraining(epochs=2, batch_size=32, lr=0.1)
        model.params = train(model.kind, model.params, data, how, int(central_context.seed)).params
        return model.get_model_difference(initial_model_state), Metrics()


def run(folder: str, rounds: int, kind: str) -> None:
    """All rounds; marks each."""
    with np.load(Path(folder) / "federation.npz") as file:
        federation = dict(file)
    start = {name.partition(":")[2]: value for name, value in federation.items() if name.startswith("start:")}
    if kind == "torch":
        model, algorithm = torch_model(start), FederatedAveraging()
    else:
        from pfl.internal.ops import numpy_ops
        from pfl.internal.ops.selector import set_framework_module

        set_framework_module(numpy_ops)
        model, algorithm = NumpyModel(start), NumpyAveraging()
    ends = federation["ends"]
    parts = zip(np.split(federation["x"], ends[:-1]), np.split(federation["y"], ends[:-1]), strict=True)
    users = dict(enumerate(parts))
    if kind == "torch":  # cut and converted once, which pfl leaves to its user
        import torch

        users = {name: tuple(torch.from_numpy(array) for array in arrays) for name, arrays in users.items()}
    made = {name: Dataset(list(arrays), user_id=str(name)) for name, arrays in users.items()}
    data = FederatedDataset(made.__getitem__, get_user_sampler("minimize_reuse", list(made)))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=CLIENTS,
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(local_batch_size=32, local_num_epochs=2, local_learning_rate=0.1),
        callbacks=[Accuracy(federation)],
    )
