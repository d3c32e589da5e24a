"""The torch adapter against the numpy network and against torch's own training loop."""

import sys

import numpy as np
import pytest

from pluribus.core.errors import MissingExtraError
from pluribus.federated.data import Dataset
from pluribus.federated.errors import SettingError
from pluribus.federated.models import MLP, Batch
from pluribus.federated.torch_model import TorchModel
from pluribus.federated.training import LocalTraining, train


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pluribus\[torch\]'"):
        TorchModel(object())


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed; pip install 'pluribus[torch]'")


def _network(torch, dtype):
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = torch.nn.Linear(6, 5, dtype=dtype)
            self.output = torch.nn.Linear(5, 3, dtype=dtype)

        def forward(self, x):
            return self.output(torch.relu(self.hidden(x)))

    return Network()


def _normed(torch):
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))


def _data(n=24):
    rng = np.random.default_rng(0)
    return Dataset(rng.normal(size=(n, 6)), rng.integers(0, 3, size=n), 3)


@pytest.mark.parametrize("weighted", [False, True])
def test_it_agrees_with_the_numpy_network(torch, weighted):
    numpy_model, torch_model, data = MLP(6, 5, 3), TorchModel(_network(torch, torch.float64)), _data()
    params = numpy_model.init(0)
    batch = Batch(data.x, data.y, np.linspace(0.5, 2, 24) if weighted else None)
    loss, grads = numpy_model.loss_and_grad(params, batch)
    torch_loss, torch_grads = torch_model.loss_and_grad(params, batch)
    assert torch_loss == pytest.approx(loss, rel=1e-12)
    assert torch_grads.keys() == grads.keys()
    for name, grad in grads.items():
        np.testing.assert_allclose(torch_grads[name], grad, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(torch_model.predict(params, data.x), numpy_model.predict(params, data.x))
    np.testing.assert_allclose(
        torch_model.probabilities(params, data.x), numpy_model.probabilities(params, data.x), atol=1e-14
    )
    how = LocalTraining(epochs=3, batch_size=5, momentum=0.9, proximal_mu=0.1)
    one, other = (train(model, params, data, how, seed=1) for model in (numpy_model, torch_model))
    for name, value in one.params.items():
        np.testing.assert_allclose(other.params[name], value, rtol=0, atol=1e-12)


def test_buffers_move_in_training_as_in_torch(torch):
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    model, data = TorchModel(module), _data()
    params = model.init(0)
    assert set(params) == set(module.state_dict())
    assert params["1.num_batches_tracked"].dtype == np.int64
    result = train(model, params, data, LocalTraining(epochs=4, batch_size=24, lr=0.1), seed=0)
    assert result.params["1.num_batches_tracked"] == 4
    assert result.params["1.num_batches_tracked"].dtype == np.int64
    assert params["1.num_batches_tracked"] == 0

    # Whole-set batches, so the order of samples does not matter and torch's own loop is the reference.
    module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in params.items()})
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = torch.from_numpy(data.x.astype(np.float32)), torch.from_numpy(data.y.copy())
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(result.params[name], value.numpy(), rtol=0, atol=2e-6)
    module.eval()
    np.testing.assert_allclose(model.logits(result.params, data.x), module(x).detach().numpy(), atol=2e-5)


def test_gradients_are_for_trained_parameters_only(torch):
    module = _normed(torch)
    module[0].bias.requires_grad_(False)
    model, data = TorchModel(module), _data()
    params = model.init(0)
    _, grads = model.loss_and_grad(params, Batch(data.x, data.y))
    assert set(grads) == {"0.weight", "1.weight", "1.bias", "4.weight", "4.bias"}
    result = train(model, params, data, LocalTraining(), seed=0)
    np.testing.assert_array_equal(result.params["0.bias"], params["0.bias"])
    assert {name: value.dtype for name, value in result.params.items()} == {
        name: value.dtype for name, value in params.items()
    }


def test_it_is_pure_even_with_dropout_and_buffers(torch):
    module = _normed(torch)
    module.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model, data = TorchModel(module), _data()
    params = model.init(0)
    for value in params.values():
        value.flags.writeable = False
    batch = Batch(data.x, data.y)
    state = torch.get_rng_state()
    one = model.loss_and_grad(params, batch)
    torch.rand(3)
    other = model.loss_and_grad(params, batch)
    torch.set_rng_state(state)
    model.loss_and_grad(params, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert one[0] == other[0]
    for name, grad in one[1].items():
        np.testing.assert_array_equal(grad, other[1][name])
    assert model.loss_and_grad(params, Batch(data.x[::-1].copy(), data.y[::-1].copy()))[0] != one[0]
    assert not module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    np.testing.assert_array_equal(model.logits(params, data.x), model.logits(params, data.x))


def test_gradients_may_be_changed_by_the_caller(torch):
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.zeros(3))
            self.b = torch.nn.Parameter(torch.zeros(3))
            self.unused = torch.nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return self.a + self.b + 0 * x

    model = TorchModel(Sum(), loss=lambda scores, labels: scores.sum())
    _, grads = model.loss_and_grad(model.init(0), Batch(np.zeros((4, 3)), np.zeros(4, dtype=int)))
    grads["a"][0] += 1
    np.testing.assert_array_equal(grads["a"], [5, 4, 4])
    np.testing.assert_array_equal(grads["b"], [4, 4, 4])
    np.testing.assert_array_equal(grads["unused"], 0)


def test_init_is_seeded_and_leaves_the_module_and_the_generator(torch):
    module = _normed(torch)
    model = TorchModel(module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    one, again, other = model.init(0), model.init(0), model.init(1)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
        np.testing.assert_array_equal(one[name], again[name])
    assert (one["0.weight"] != other["0.weight"]).any()
    kept = TorchModel(module, fresh=False).init(5)
    np.testing.assert_array_equal(kept["0.weight"], before["0.weight"].numpy())
    assert not np.shares_memory(kept["0.weight"], module[0].weight.detach().numpy())


def test_tied_tensors_appear_once_and_hidden_buffers_stay_hidden(torch):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(3, 3, bias=False)
            self.b = torch.nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight
            self.register_buffer("calls", torch.zeros(()), persistent=False)

        def forward(self, x):
            self.calls += 1
            return self.b(self.a(x))

    module = Tied()
    model = TorchModel(module)
    params = model.init(0)
    assert list(params) == ["a.weight"]
    x = np.eye(3)
    w = params["a.weight"]
    np.testing.assert_allclose(model.logits(params, x), (w @ w).T, atol=1e-6)
    _, grads = model.loss_and_grad(params, Batch(x, np.arange(3)))
    assert list(grads) == ["a.weight"]
    assert module.calls == 0


def test_what_cannot_work_is_told(torch):
    with pytest.raises(SettingError, match=r"expected a torch.nn.Module"):
        TorchModel(torch.nn.Linear)
    with pytest.raises(SettingError, match=r"'weight' is torch.bfloat16.*module.float"):
        TorchModel(torch.nn.Linear(2, 2).to(torch.bfloat16))
    data = _data()
    model = TorchModel(_network(torch, torch.float32), loss=lambda s, y: ((s - 1) ** 2).mean())
    with pytest.raises(SettingError, match="reduction"):
        model.loss_and_grad(model.init(0), Batch(data.x, data.y, np.ones(24)))
    each = TorchModel(_network(torch, torch.float32), loss=lambda s, y: ((s - 1) ** 2).mean(dim=1))
    with pytest.raises(SettingError, match=r"shape \(24,\)"):
        each.loss_and_grad(each.init(0), Batch(data.x, data.y))
