"""Flower: the strategy's state, its checkpoint, and a server that goes on from it."""

from __future__ import annotations

import numpy as np
import pytest
from flower_federation import (
    ArrayRecord,
    Memory,
    MetricRecord,
    honest,
    model,
    one_round,
    record,
    reply,
    theirs,
)
from safetensors.numpy import load_file, save_file

from pluribus.core.errors import ContributionError, FileError, RuleError
from pluribus.federated.flower import PluribusStrategy, strategy
from pluribus.federated.flower_checkpoint import load

pytestmark = pytest.mark.usefixtures("identity")


# --- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["fedadam", "fedavgm", "fedau", "centered_clipping:radius=1", "median"])
def test_a_run_taken_up_again_is_an_unbroken_one(rule, tmp_path):
    clients = {1: honest, 2**64 - 7: honest, 3: honest}
    unbroken = PluribusStrategy(rule).start(Memory(clients), record(model()), num_rounds=4).arrays

    first = PluribusStrategy(rule)
    first.start(Memory(clients), record(model()), num_rounds=2)
    save_file(first.state_dict(), tmp_path / "state.safetensors")
    second = PluribusStrategy(rule)
    second.load_state_dict(load_file(tmp_path / "state.safetensors"))
    assert list(second.arrays()) == list(model())
    resumed = second.start(Memory(dict(reversed(clients.items()))), second.arrays(), num_rounds=2).arrays
    assert {n: a.data for n, a in resumed.items()} == {n: a.data for n, a in unbroken.items()}
    assert second.state_dict()["rounds"] == 4


def test_a_state_that_is_not_this_strategys():
    flower = PluribusStrategy("fedadam")
    one_round(flower, {1: honest, 2: honest})
    saved = flower.state_dict()
    with pytest.raises(RuleError, match=r"not one of fedavgm.*state/m/bias"):
        PluribusStrategy("fedavgm").load_state_dict(saved)
    with pytest.raises(RuleError, match="not one of fedadam"):
        PluribusStrategy("fedadam").load_state_dict({k: v for k, v in saved.items() if k != "state/v/weight"})
    with pytest.raises(RuleError, match=r"not one of fedadam.*state/v/weight"):
        PluribusStrategy("fedadam").load_state_dict({**saved, "state/v/weight": np.zeros(4)})
    with pytest.raises(RuleError, match="no whole state"):
        PluribusStrategy("fedadam").load_state_dict({})


def test_a_saved_state_is_a_copy():
    flower = PluribusStrategy("fedadam")
    one_round(flower, {1: honest, 2: honest})
    saved = flower.state_dict()
    saved["state/params/weight"][:] = 99
    assert flower.state["params"]["weight"].max() < 99
    other = PluribusStrategy("fedadam")
    other.load_state_dict(saved)
    saved["state/params/weight"][:] = -99
    assert other.state["params"]["weight"].min() == 99


def test_before_there_is_a_model_and_with_another_one():
    flower = PluribusStrategy("median")
    for ask in (flower.arrays, flower.state_dict, lambda: flower.aggregate_train(1, [])):
        with pytest.raises(RuleError, match="no model yet"):
            ask()
    one_round(flower, {1: honest, 2: honest})
    with pytest.raises(ContributionError, match="the strategy's model"):
        one_round(flower, {1: honest, 2: honest}, record({"other": np.zeros(2)}))
    with pytest.raises(ContributionError, match="the model to send: the ArrayRecord is empty"):
        one_round(PluribusStrategy("median"), {1: honest, 2: honest}, ArrayRecord())


# --- the checkpoint -------------------------------------------------------------------------------------------------


def data(arrays):
    return {name: array.data for name, array in arrays.items()}


@pytest.mark.parametrize("rule", ["fedavgm:momentum=0.5", "fedau", "centered_clipping:radius=1"])
def test_a_server_started_again_goes_on_from_its_checkpoint(rule, tmp_path):
    clients, path = {1: honest, 2**64 - 7: honest, 3: honest}, tmp_path / "state.safetensors"
    seen = []

    def evaluate(number, arrays):
        seen.append(number)
        return MetricRecord({"number": number})

    unbroken = PluribusStrategy(rule).start(Memory(clients), record(model()), num_rounds=5).arrays
    asked = []

    def noted(message):
        asked.append(message.content["config"]["server-round"])
        return honest(message)

    strategy(rule, checkpoint=path, resume=True).start(Memory(clients), record(model()), num_rounds=2)
    again = strategy(rule, checkpoint=path, resume=True)
    assert again.rounds == 2
    result = again.start(
        Memory({**clients, 3: noted}), record(model()), num_rounds=5, evaluate_fn=evaluate, timeout=9.0
    )
    assert data(result.arrays) == data(unbroken)
    assert asked[::2] == [3, 4, 5]
    assert seen == [2, 3, 4, 5]
    assert list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp) == [3, 4, 5]
    assert result.evaluate_metrics_serverapp[5]["number"] == 5
    done = strategy(rule, checkpoint=path, resume=True)
    assert data(done.start(Memory(clients), record(model()), num_rounds=5).arrays) == data(unbroken)
    # A start after that is one of the same strategy: as many rounds as it is told.
    done.start(Memory(clients), done.arrays(), num_rounds=1)
    assert done.rounds == 6


def test_the_checkpoint_is_whole_after_every_round(tmp_path):
    path = tmp_path / "state.safetensors"
    first = strategy("fedadam", checkpoint=path)
    for number in (1, 2):
        one_round(first, {1: honest, 2: honest}, None if number == 1 else first.arrays(), number)
        saved = load(path, "fedadam with seed 0")
        assert saved["rounds"] == number
        for name, value in first.state_dict().items():
            np.testing.assert_array_equal(saved[name], value)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_checkpoints_that_cannot_be_used(tmp_path):
    path = tmp_path / "state.safetensors"
    one_round(strategy("median", checkpoint=path), {1: honest, 2: honest})
    with pytest.raises(FileError, match="is there already; pass resume=True"):
        strategy("median", checkpoint=path)
    with pytest.raises(FileError, match=r"of median with seed 0, and this strategy is median with seed 1"):
        strategy("median", checkpoint=path, resume=True, seed=1)
    with pytest.raises(FileError, match="this strategy is mean with"):
        strategy("mean", checkpoint=path, resume=True)
    with pytest.raises(RuleError, match="needs checkpoint=PATH"):
        strategy("median", resume=True)
    with pytest.raises(FileError, match="does not exist; create it first"):
        strategy("median", checkpoint=tmp_path / "no" / "state.safetensors", resume=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(FileError, match="damaged"):
        strategy("median", checkpoint=path, resume=True)
    for bad in (whole[: len(whole) // 2], b"", b"rubbish"):
        path.write_bytes(bad)
        with pytest.raises(FileError, match="no checkpoint of a strategy"):
            strategy("median", checkpoint=path, resume=True)
    save_file({"x": np.zeros(2)}, path)
    with pytest.raises(FileError, match="no checkpoint of a strategy"):
        strategy("median", checkpoint=path, resume=True)


def test_inside_of_a_wrapper_the_checkpoints_model_must_be_given(tmp_path):
    path = tmp_path / "state.safetensors"
    start = record({"w": np.zeros(3, np.float32)})

    def client(message):
        return reply(message, {"w": message.content["arrays"]["w"].numpy() + np.float32(1)})

    clients = Memory(dict.fromkeys([1, 2, 3], client))
    strategy("median", checkpoint=path).start(clients, start, num_rounds=1)

    def wrapped(inner):
        return theirs.DifferentialPrivacyServerSideFixedClipping(
            inner, noise_multiplier=1e-3, clipping_norm=0.1, num_sampled_clients=3
        )

    with pytest.raises(RuleError, match=r"give strategy.arrays\(\) as initial_arrays"):
        wrapped(strategy("median", checkpoint=path, resume=True)).start(clients, start, num_rounds=1)
    inner = strategy("median", checkpoint=path, resume=True)
    result = wrapped(inner).start(clients, inner.arrays(), num_rounds=1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1 + 0.1 / np.sqrt(3), atol=2e-3)
