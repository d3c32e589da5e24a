"""A hostile world: every rule stays finite, whole and deterministic, or says what is wrong."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from server_rounds import leaves, model, plain, same_bits

from pluribus.core.errors import ContributionError, FileError, NonFiniteError, PluribusError, RuleError
from pluribus.federated import server
from pluribus.federated.errors import SettingError
from pluribus.federated.models import MLP
from pluribus.federated.rounds import exchange
from pluribus.federated.server import FedAvg
from pluribus.federated.server.rule import STATUS
from pluribus.federated.simulation import _round, advance, begin
from pluribus.federated.world import channel
from pluribus.federated.world.availability import read_trace

KEYS = sorted(server.registered())
EXTRA = ["median", "krum", "geometric_median", "clip:max_norm=1+median", "fedavg:weighting=all", "fedavg:server_lr=1.9"]
EVERY = pytest.mark.parametrize("key", KEYS + EXTRA)
PLAIN_NETWORKS = {"fedadp", "fedftg"}  # they refuse other tensors than those of the embedded networks


class Normed(MLP):
    """A network with buffers that jump: a batch leaves a variance of nearly 0 or of 10; and with odd tensors."""

    def init(self, seed):
        own = {"norm.running_mean": np.zeros(3, "f4"), "norm.running_var": np.ones(3, "f4")}
        own |= {"scalar.running_var": np.array(1.0), "norm.num_batches_tracked": np.array(0)}
        own |= {
            "mask": np.array([True, False]),
            "empty": np.zeros((0, 4), "f4"),
            "frozen.weight": np.ones((3, 4), "f4"),
        }
        return super().init(seed) | own

    def loss_grad_and_buffers(self, params, batch):
        loss, grads = self.loss_and_grad(params, batch)
        lot = float(batch.x.ravel()[:700].sum() * 1000) % 1
        size = 1e-3 if lot < 0.5 else 10.0
        return (
            loss,
            grads,
            {
                "norm.running_mean": params["norm.running_mean"] + np.float32(lot),
                "norm.running_var": np.float32(size) * np.abs(np.sin(1 + lot + np.arange(3, dtype="f4"))),
                "scalar.running_var": params["scalar.running_var"] * 0 + size,  # numpy makes a scalar of it
                "norm.num_batches_tracked": params["norm.num_batches_tracked"] + 1,
            },
        )


def normed(key, **settings):
    setup = federation(clients=6, **settings)
    m = setup.model
    own = Normed(m.n_features, m.hidden, m.n_classes, m.activation, m.l2, m.dtype)
    return setup if key in PLAIN_NETWORKS else replace(setup, model=own)


def variances(tree):
    return [v for name, v in leaves(tree).items() if name.endswith("running_var")]


WORLDS = {
    "stale": {"schedule": "buffer:2", "speeds": "lognormal:1.5", "channel": "topk:0.05"},
    "flipped": {"attack": "sign_flip:2:4", "channel": "dp:1:1"},
}


@pytest.mark.parametrize("world", WORLDS)
@EVERY
def test_a_variance_is_never_negative_and_counters_stay_whole(key, world):
    rule, setup = server.parse(key), normed(key, **WORLDS[world])
    run = begin(setup, rule, 3, 4)
    for _ in range(4):
        run = advance(setup, rule, 3, run)
        params = run.state["params"]
        for tree in (params, *(rule.model_of(run.state, i) for i in range(6))):
            assert all((value >= 0).all() for value in variances(tree))
        assert all(np.isfinite(value).all() for value in params.values() if value.dtype.kind == "f")
        if key not in PLAIN_NETWORKS:
            assert params["norm.num_batches_tracked"].dtype.kind == "i"
            assert params["mask"].tolist() == [True, False]


def changed(tree, change):
    """A tree with each of its float tensors changed."""
    return {
        name: changed(v, change)
        if hasattr(v, "items")
        else change(np.asarray(v))
        if np.asarray(v).dtype.kind == "f"
        else v
        for name, v in tree.items()
    }


def complaint(rule, state, round):
    """What the rule says of a round that it refuses; any error but the library's own is let through."""
    try:
        rule.step(state, round)
    except PluribusError as error:
        return str(error)
    return None


def spoilt(value):
    value = np.array(value)
    value.reshape(-1)[:1] = np.nan
    return value


@pytest.fixture(scope="module")
def rounds():
    """For each rule its state after a round, and its second round, made once."""
    made = {}

    def second(key):
        if key not in made:
            rule, setup = server.parse(key), normed(key)
            run = advance(setup, rule, 3, begin(setup, rule, 3, 3))
            came = exchange(setup, rule, 3, 1, state=run.state, world=run.world, memories=run.memories)
            made[key] = rule, run.state, _round(setup, rule, 3, 1, came)
        return made[key]

    return second


@EVERY
def test_order_of_arrival_changes_no_bit(key, rounds):
    rule, state, round = rounds(key)
    same_bits(rule.step(state, round.take([3, 0, 5, 2, 1, 4])), rule.step(state, round))


@EVERY
def test_one_hostile_client_is_left_out_and_nobody_is_no_step(key, rounds):
    rule, state, round = rounds(key)
    updates, before = list(round.updates), {n: v.copy() for n, v in leaves(state).items()}
    for change in (spoilt, lambda v: np.full(v.shape, 1e200), lambda v: np.full(v.shape, 1e150)):
        after = rule.step(state, replace(round, updates=[updates[0], changed(updates[1], change), *updates[2:]]))
        assert after["dropped"].tolist() == [False, True, False, False, False, False]
    if round.losses is not None:
        after = rule.step(state, replace(round, losses=np.append(np.nan, round.losses[1:])))
        assert after["dropped"][0]
        assert np.isfinite(after.get("loss", np.zeros(1))[1:]).all()
    for nobody in (round.take([]), replace(round, updates=[changed(u, spoilt) for u in updates])):
        after = rule.step(state, nobody)
        assert STATUS[int(after["status"])] == "nobody came"
        same_bits(after["params"], state["params"])
    same_bits(state, before)


@EVERY
def test_messages_that_cannot_be_read_are_named(key, rounds):
    rule, state, round = rounds(key)
    told = list(round.messages)
    if not told[1]:
        return
    for odd in (
        {},
        None,
        {name: {"a": np.zeros(3)} for name in told[1]},
        {name: np.zeros(3) for name in told[1]},
        changed(told[1], lambda v: np.zeros((2, 3, 5))),
        changed(told[1], lambda v: np.full(v.shape, "a")),
    ):
        said = complaint(rule, state, replace(round, messages=[told[0], odd, *told[2:]]))
        assert said is None or "client" in said


def test_a_number_is_not_spread_over_a_tensor(rounds):
    rule, state, round = rounds("pgfed")
    told = list(round.messages)
    odd = {name: tree and {part: np.zeros(()) for part in tree} for name, tree in told[1].items()}
    with pytest.raises(ContributionError, match=r"client 1: .* has shape \(\), expected"):
        rule.step(state, replace(round, messages=[told[0], odd, *told[2:]]))


@EVERY
def test_what_a_round_lacks_or_tells_wrongly_is_said(key, rounds):
    rule, state, round = rounds(key)
    for name in ("proxy", "messages", "losses", "label_counts", "starts", "steps", "staleness", "rates", "validate"):
        said = complaint(rule, state, replace(round, **{name: None}))
        assert said is None or len(said) > 30
    with pytest.raises(RuleError, match="distinct ids"):
        rule.step(state, replace(round, clients=(0.5, *round.clients[1:])))
    with pytest.raises(RuleError, match=r"sizes must be numbers of shape \(k,\)"):
        rule.step(state, replace(round, sizes=round.sizes[:, None]))
    with pytest.raises(ContributionError, match="client 1"):
        rule.step(state, replace(round, updates=[round.updates[0], {}, *round.updates[2:]]))


@pytest.mark.parametrize("key", KEYS)
def test_names_with_huge_numbers_are_read_back(key):
    cls = server.registered()[key]
    for name, field in cls.__dataclass_fields__.items():
        if isinstance(field.default, float):
            try:
                rule = cls(**{name: 1e22})
            except RuleError:
                continue
            assert server.parse(rule.name) == rule


def test_a_channel_with_huge_numbers_is_read_back():
    way = channel.parse("dp:1e38:1e30+topk:0.1")
    assert channel.parse(str(way)) == way
    assert str(way).endswith("+topk:0.1")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_update_that_the_models_dtype_cannot_hold_is_left_out(dtype):
    params = {"w": np.full(2, 0.6, dtype) * np.finfo(dtype).max}
    one = replace(plain([[0, 0]] * 2), updates=[{"w": np.zeros(2, dtype)}, {"w": params["w"].copy()}])
    after = FedAvg().step(FedAvg().init(params, 2), one)
    assert after["dropped"].tolist() == [False, True]
    zeroed = FedAvg(nonfinite="zero")
    same_bits(zeroed.step(zeroed.init(params, 2), one)["params"], params)
    with pytest.raises(NonFiniteError, match="client 1: NaN or Inf in w"):
        FedAvg(nonfinite="raise").step(FedAvg().init(params, 2), one)


def test_a_start_of_its_own_counts_like_a_stale_one():
    """A personal model's variance fell from 5 to 1; the global one of 0.5 does not fall by 4."""
    params = model() | {"norm.running_var": np.full(3, 0.5)}
    own = params | {"norm.running_var": np.full(3, 5.0)}
    update = {name: np.zeros_like(v) for name, v in params.items() if name != "mask"}
    one = replace(plain([[0]]), updates=[update | {"norm.running_var": np.full(3, -4.0)}], starts=[own])
    after = FedAvg().step(FedAvg().init(params, 1), one)
    np.testing.assert_allclose(after["params"]["norm.running_var"], 1.0)


def test_adamw_of_diloco_steps_in_float16():
    rule = server.parse("diloco")
    setup = federation(model="softmax")

    class Half(type(setup.model)):
        def init(self, seed):
            return changed(super().init(seed), lambda v: v.astype("f2"))

        def loss_and_grad(self, params, batch):
            loss, grads = super().loss_and_grad(changed(params, lambda v: v.astype("f4")), batch)
            return loss, changed(grads, lambda v: v.astype("f2"))

    m = setup.model
    setup = replace(setup, model=Half(m.n_features, m.n_classes, m.l2, m.dtype))
    run = advance(setup, rule, 0, begin(setup, rule, 0, 1))
    assert int(run.state["status"]) == 0


def test_a_flow_in_which_nobody_ever_answers_gives_up(monkeypatch):
    monkeypatch.setattr("pluribus.federated.rounds.PATIENCE", 200)
    setup = federation(model="softmax", schedule="buffer:2", dropout=0.999999)
    rule = server.parse("fedbuff")
    with pytest.raises(SettingError, match=r"buffer:2 waits for updates, and 200 jobs in a row never answered"):
        advance(setup, rule, 0, begin(setup, rule, 0, 1))


def test_traces_with_tricks_are_told(tmp_path):
    (tmp_path / "big.csv").write_text(f"round,0,{10**20}\n0,1,1\n")
    with pytest.raises(SettingError, match="is no client"):
        read_trace("big.csv", 1, tmp_path)
    with pytest.raises(FileError, match="cannot be read"):
        read_trace("a\0b", 1, tmp_path)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(SettingError, match="0 lines"):
        read_trace("empty.csv", 1, tmp_path)
