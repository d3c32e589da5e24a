"""Torch's own training loop against the plain one, and what torch adds to it."""

import functools
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; pip install 'pluribus[torch]'")

from pluribus.federated.data import Dataset, digits, split  # noqa: E402
from pluribus.federated.errors import DataError, SettingError  # noqa: E402
from pluribus.federated.models import MLP, Batch, LocallyTrained  # noqa: E402
from pluribus.federated.torch_model import TorchModel  # noqa: E402
from pluribus.federated.training import Hooks, LocalTraining, train  # noqa: E402


class Network(torch.nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.hidden = torch.nn.Linear(6, 5, dtype=dtype)
        self.output = torch.nn.Linear(5, 3, dtype=dtype)

    def forward(self, x):
        return self.output(torch.relu(self.hidden(x)))


def _normed():
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))


def _data(n=24):
    rng = np.random.default_rng(0)
    return Dataset(rng.normal(size=(n, 6)), rng.integers(0, 3, size=n), 3)


def _close(one, other, atol):
    assert one.params.keys() == other.params.keys()
    assert one.steps == other.steps
    assert one.loss == pytest.approx(other.loss, rel=1e-6)
    for name, value in one.params.items():
        assert other.params[name].dtype == value.dtype
        np.testing.assert_allclose(other.params[name], value, rtol=0, atol=atol, err_msg=name)


def _looked_ahead(evaluate, own, batch, step):
    _, grads = evaluate(own, batch)
    return evaluate({name: own[name] + 0.1 * grads[name] for name in own}, batch)


def _drifted(own, grads, step):
    for name in grads:
        grads[name] += 0.05 * (step + 1) + 0.1 * own[name]


def _clamped(own, step):
    np.clip(own["hidden.weight"], -0.4, 0.4, out=own["hidden.weight"])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("how", "hooks"),
    [
        (LocalTraining(epochs=3, batch_size=5), Hooks()),
        (LocalTraining(epochs=2, batch_size=7, momentum=0.9, lr=0.05), Hooks()),
        (LocalTraining(epochs=2, batch_size=7, momentum=0.5, proximal_mu=0.7, max_grad_norm=0.2), Hooks()),
        (LocalTraining(batch_size=10, steps=7, momentum=0.9), Hooks(rate=lambda step, steps: 1 - step / steps)),
        (LocalTraining(epochs=2, batch_size=5, proximal_mu=0.1), Hooks(adjust=_drifted, after=_clamped)),
        (LocalTraining(epochs=2, batch_size=5), Hooks(gradient=_looked_ahead, adjust=_drifted)),
    ],
    ids=["plain", "momentum", "proximal-clipped", "rate", "adjust-after", "gradient"],
)
def test_sgd_is_the_numpy_networks_training(how, hooks, dtype):
    model, data = MLP(6, 5, 3, dtype=dtype), _data()
    params = model.init(0)
    kept = {name: value.copy() for name, value in params.items()}
    for value in params.values():
        value.flags.writeable = False
    found = TorchModel(Network(getattr(torch, dtype))).fit(params, data, how, 1, hooks=hooks)
    _close(train(model, params, data, how, 1, hooks=hooks), found, 1e-12 if dtype == "float64" else 1e-5)
    for name, value in params.items():
        np.testing.assert_array_equal(value, kept[name])


def test_a_torch_model_trains_itself():
    assert isinstance(TorchModel(Network()), LocallyTrained)
    assert not isinstance(MLP(6, 5, 3), LocallyTrained)


@pytest.mark.parametrize(
    ("optimizer", "options", "own"),
    [
        ("adam", {}, lambda p: torch.optim.Adam(p, lr=0.01)),
        ("adam", {"betas": (0.5, 0.9)}, lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9))),
        ("adamw", {"weight_decay": 0.3, "lr": 0.02}, lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.3)),
        (
            "sgd",
            {"nesterov": True, "momentum": 0.9},
            lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
        ),
        (torch.optim.RMSprop, {"alpha": 0.9}, lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9)),
        (functools.partial(torch.optim.Adagrad, eps=1e-3), {}, lambda p: torch.optim.Adagrad(p, lr=0.01, eps=1e-3)),
    ],
    ids=["adam", "adam-betas", "adamw", "sgd-nesterov", "class", "partial"],
)
def test_optimisers_do_what_torchs_own_loop_does(optimizer, options, own):
    """Batches of all samples, so that their order does not matter."""
    model, data = TorchModel(Network(), optimizer=optimizer, optimizer_options=options), _data()
    params = model.init(3)
    found = model.fit(params, data, LocalTraining(epochs=5, batch_size=24, lr=0.01), 0)
    module = Network()
    module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in params.items()})
    steps = own(module.parameters())
    x, y = torch.from_numpy(data.x.copy()), torch.from_numpy(data.y.copy())
    for _ in range(5):
        steps.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        steps.step()
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(found.params[name], value.numpy(), rtol=0, atol=1e-12)


def test_a_scheduler_is_stepped_after_each_step_and_a_rate_comes_on_top():
    def halved(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    plain, data = MLP(6, 5, 3), _data()
    params, how = plain.init(0), LocalTraining(epochs=2, batch_size=5)
    model = TorchModel(Network(), scheduler=halved)
    _close(
        train(plain, params, data, how, 1, hooks=Hooks(rate=lambda k, _: 0.5**k)),
        model.fit(params, data, how, 1),
        1e-12,
    )
    both = Hooks(rate=lambda k, _: 2.0**k)
    _close(train(plain, params, data, how, 1), model.fit(params, data, how, 1, hooks=both), 1e-12)


def test_bfloat16_trains_nearly_as_well():
    parts = split(digits(), seed=0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    how = LocalTraining(epochs=6, lr=0.2, momentum=0.5)
    reached = {}
    for precision in (None, "bf16"):
        model = TorchModel(module, precision=precision)
        result = model.fit(model.init(0), parts.train, how, 0)
        assert result.params["0.weight"].dtype == np.float32
        reached[precision] = (model.predict(result.params, parts.test.x) == parts.test.y).mean(), result.params
    assert min(reached[None][0], reached["bf16"][0]) > 0.93
    assert (reached[None][1]["0.weight"] != reached["bf16"][1]["0.weight"]).any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("precision", [None, "bf16", "fp16"])
def test_a_gpu_trains_as_the_processor_does(precision):
    data, params = _data(), MLP(6, 5, 3, dtype="float32").init(0)
    how = LocalTraining(epochs=2, batch_size=5, proximal_mu=0.1, max_grad_norm=1.0)
    hooks = Hooks(adjust=_drifted, after=_clamped)
    here = TorchModel(Network(torch.float32)).fit(params, data, how, 0, hooks=hooks)
    there = TorchModel(Network(torch.float32), device="cuda", precision=precision).fit(
        params, data, how, 0, hooks=hooks
    )
    for name, value in here.params.items():
        np.testing.assert_allclose(there.params[name], value, atol=1e-5 if precision is None else 0.05)


def test_buffers_come_back_and_dropout_is_a_function_of_the_seed():
    module = _normed()
    module.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model, data = TorchModel(module), _data()
    params, how = model.init(0), LocalTraining(epochs=2, batch_size=12)
    one = model.fit(params, data, how, 0)
    torch.rand(3)
    state = torch.get_rng_state()
    again, other = (model.fit(params, data, how, seed) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert one.params["1.num_batches_tracked"] == 4
    assert {name: value.dtype for name, value in one.params.items()} == {k: v.dtype for k, v in params.items()}
    assert (one.params["1.running_mean"] != params["1.running_mean"]).all()
    for name, value in one.params.items():
        np.testing.assert_array_equal(value, again.params[name])
    assert (one.params["0.weight"] != other.params["0.weight"]).any()
    assert not module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_buffers_move_once_a_step_by_the_first_look():
    nn = torch.nn
    model, data = TorchModel(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))), _data()
    params, how = model.init(0), LocalTraining(epochs=2, batch_size=12)

    def twice(evaluate, own, batch, step):
        found = evaluate(own, batch)
        evaluate(own, Batch(batch.x + 100, batch.y))
        return found

    _close(model.fit(params, data, how, 0), model.fit(params, data, how, 0, hooks=Hooks(gradient=twice)), 1e-6)


def test_frozen_and_unused_parameters_stay():
    class Partly(Network):
        def __init__(self):
            super().__init__()
            self.unused = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.hidden.bias.requires_grad_(False)

    seen = []
    model, data = TorchModel(Partly()), _data()
    params = model.init(0)
    how = LocalTraining(momentum=0.5, proximal_mu=0.1)
    hooks = Hooks(adjust=lambda own, grads, step: seen.append((set(own), set(grads), grads["unused"].tolist())))
    result = model.fit(params, data, how, 0, hooks=hooks)
    for name in ("hidden.bias", "unused"):
        np.testing.assert_array_equal(result.params[name], params[name])
    names = {"hidden.weight", "output.weight", "output.bias", "unused"}
    assert seen == [({*names, "hidden.bias"}, names, [0, 0])]


def test_it_travels():
    model = TorchModel(Network(), optimizer="adam")
    params, data = model.init(0), _data()
    how = LocalTraining(lr=0.01)
    _close(model.fit(params, data, how, 0), pickle.loads(pickle.dumps(model)).fit(params, data, how, 0), 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "adamm"}, "sgd, adam, adamw"),
        ({"precision": "half"}, "None, bf16 or fp16"),
        ({"precision": "fp16"}, "device='cuda'"),
    ],
)
def test_options_that_cannot_be_are_told(options, words):
    with pytest.raises(SettingError, match=words):
        TorchModel(Network(), **options)


def test_what_cannot_be_trained_is_told():
    model, data, how = TorchModel(Network(), optimizer="adam"), _data(), LocalTraining()
    params = model.init(0)
    with pytest.raises(SettingError, match=r"momentum=0.9 is for the optimizer 'sgd'"):
        model.fit(params, data, LocalTraining(momentum=0.9), 0)
    with pytest.raises(DataError, match="no samples"):
        model.fit(params, data.take([]), how, 0)
    with pytest.raises(SettingError, match=r"'hidden.bias', which the tree lacks"):
        model.fit({name: value for name, value in params.items() if name != "hidden.bias"}, data, how, 0)
    with pytest.raises(SettingError, match="'more', which the module lacks"):
        model.fit(params | {"more": np.zeros(1)}, data, how, 0)
    with pytest.raises(SettingError, match=r"'hidden.bias' has shape \(1,\) in the tree and \(5,\) in the module"):
        model.fit(params | {"hidden.bias": np.zeros(1)}, data, how, 0)
    frozen = Network().requires_grad_(False)
    with pytest.raises(SettingError, match="nothing to train"):
        TorchModel(frozen).fit(params, data, how, 0)
