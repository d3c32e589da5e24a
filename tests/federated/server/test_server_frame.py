"""What holds for every server rule, whatever it does with the updates."""

import copy
import io
from dataclasses import replace

import numpy as np
import pytest
from server_rounds import TEXTS, a_round, leaves, model, nested, plain, same_bits

from pluribus.core.errors import ContributionError, NonFiniteError, RuleError
from pluribus.federated.server import STATUS, FedAvg, ServerRule, parse

every = pytest.mark.parametrize("text", TEXTS)


def run(rule, params, rounds, n_clients=8):
    state = rule.init(params, n_clients)
    for one in rounds:
        state = rule.step(state, one)
    return state


def poisoned(one, client, value=np.nan, name="layer.bias"):
    updates = list(one.updates)
    k = one.clients.index(client)
    bad = np.array(updates[k][name])
    bad.flat[-1] = value
    updates[k] = {**updates[k], name: bad}
    return replace(one, updates=updates)


def picked(one, places):
    return replace(
        one,
        clients=tuple(one.clients[k] for k in places),
        updates=[one.updates[k] for k in places],
        sizes=one.sizes[places],
        label_counts=one.label_counts[places],
    )


@every
def test_it_says_what_it_is(text):
    rule = parse(text)
    assert isinstance(rule, ServerRule)
    assert rule.formula
    assert rule.source
    assert rule.explanation.endswith(".")
    assert parse(rule.name) == rule
    assert hash(rule) == hash(parse(text))


@every
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_state_is_a_tree_of_arrays_that_survives_a_file(text, dtype):
    params, rule = model(dtype=dtype), parse(text)
    state = run(rule, params, [a_round(params, number=0)])
    flat = leaves(state)
    assert all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in flat.values())
    assert set(leaves(rule.init(params, 8))) == set(flat)
    file = io.BytesIO()
    np.savez(file, **flat)
    file.seek(0)
    back = nested(dict(np.load(file)))
    following = a_round(params, number=1)
    same_bits(rule.step(back, following), rule.step(state, following))
    for name, value in params.items():
        assert state["params"][name].dtype == value.dtype
        assert state["params"][name].shape == value.shape


@every
def test_a_step_changes_neither_state_nor_round_and_repeats(text):
    params, rule = model(), parse(text)
    state = run(rule, params, [a_round(params)])
    following = a_round(params, number=1)
    for array in leaves(state).values():
        array.flags.writeable = False
    for tree in following.updates:
        for array in tree.values():
            array.flags.writeable = False
    before, updates, sizes = copy.deepcopy(state), copy.deepcopy(following.updates), following.sizes.copy()
    first, second = rule.step(state, following), rule.step(state, following)
    same_bits(first, second)
    same_bits(before, state)
    for old, new in zip(updates, following.updates, strict=True):
        same_bits(old, new)
    assert np.array_equal(sizes, following.sizes)
    assert any(
        not np.array_equal(first["params"][name], state["params"][name]) for name in ("layer.weight", "layer.bias")
    )


def test_a_state_does_not_share_memory_with_the_models_that_it_came_from():
    params = model()
    state = FedAvg().init(params, 8)
    params["layer.bias"][:] = 7
    assert not (state["params"]["layer.bias"] == 7).any()


@every
def test_the_order_of_participants_is_irrelevant(text):
    params, rule = model(), parse(text)
    rounds = [a_round(params, number=number) for number in range(2)]
    turned = [picked(one, [4, 2, 6, 0, 1, 5, 3]) for one in rounds]
    same_bits(run(rule, params, rounds), run(rule, params, turned))


@every
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
def test_one_bad_client_is_as_good_as_absent(text, value):
    params, rule = model(), parse(text)
    whole = a_round(params, number=0)
    without = picked(whole, [0, 1, 2, 4, 5, 6])
    followed = a_round(params, number=1)
    bad = run(rule, params, [poisoned(whole, 3, value), followed])
    good = run(rule, params, [without, followed])
    same_bits(bad, good)
    after = rule.step(rule.init(params, 8), poisoned(whole, 3, value))
    assert after["dropped"].tolist() == [i == 3 for i in range(8)]
    assert np.isnan(after["weights"][3])
    assert STATUS[int(after["status"])] == "stepped"
    assert all(np.isfinite(value).all() for value in after["params"].values())


@every
def test_when_nobody_is_left_the_model_stays(text):
    params, rule = model(), parse(text)
    state = run(rule, params, [a_round(params)])
    nobody = picked(a_round(params, number=1), [])
    all_bad = a_round(params, number=1)
    for client in all_bad.clients:
        all_bad = poisoned(all_bad, client, name="norm.running_var")
    for empty, dropped in ((nobody, 0), (all_bad, 7)):
        after = rule.step(state, empty)
        same_bits(after["params"], state["params"])
        assert np.isnan(after["weights"]).all()
        assert after["dropped"].sum() == dropped
        assert STATUS[int(after["status"])] == "nobody came"
        assert set(leaves(after)) == set(leaves(state))
        following = rule.step(after, a_round(params, number=2))
        assert int(following["status"]) == 0


@every
def test_one_participant(text):
    params, rule = model(), parse(text)
    state = rule.init(params, 8)
    one = a_round(params, clients=(5,))
    after = rule.step(state, one)
    if rule.least > 1:
        same_bits(after["params"], state["params"])
        assert STATUS[int(after["status"])] == "too few for the rule"
        assert np.isnan(after["weights"]).all()
    else:
        assert np.flatnonzero(~np.isnan(after["weights"])).tolist() == [5]
        assert int(after["status"]) == 0
        assert all(np.isfinite(value).all() for value in after["params"].values())


@every
def test_counters_stay_whole_masks_stay_and_variances_stay_positive(text):
    params, rule = model(), parse(text)
    state = rule.init(params, 8)
    for number in range(12):
        # Whoever comes late has a long gap, and so a weight above one under FedAU.
        clients = (0, 1, 2, 3, 4, 5, 6, 7) if number % 3 == 2 else (1, 2, 3, 4, 5, 6)
        state = rule.step(state, a_round(state["params"], clients, number=number, scale=2.0))
        assert int(state["status"]) == 0
        assert (state["params"]["norm.running_var"] >= 0).all()
    counter = state["params"]["norm.num_batches_tracked"]
    assert counter.dtype == np.int64
    assert 400_012 <= counter <= 400_000 + 12 * 8
    assert state["params"]["mask"].tolist() == [True, False]


def test_a_buffer_moves_by_its_mean_whatever_the_step():
    params = model()
    one = a_round(params)
    shares = one.sizes / one.sizes.sum()
    expected = params["norm.running_var"] + sum(
        share * update["norm.running_var"] for share, update in zip(shares, one.updates, strict=True)
    )
    for text in ("fedavg:server_lr=3", "fedavgm:server_lr=3", "fedadam", "fedyogi", "fedadagrad", "finetune:steps=2"):
        state = run(parse(text), params, [one])
        np.testing.assert_allclose(state["params"]["norm.running_var"], expected, rtol=1e-12)
    named = FedAvg(server_lr=3.0, buffers=("layer.bias",))
    state = run(named, params, [one])
    bias = params["layer.bias"] + sum(s * u["layer.bias"] for s, u in zip(shares, one.updates, strict=True))
    var = params["norm.running_var"] + 3 * (expected - params["norm.running_var"])
    np.testing.assert_allclose(state["params"]["layer.bias"], bias, rtol=1e-12)
    np.testing.assert_allclose(state["params"]["norm.running_var"], var, rtol=1e-12)


@every
def test_a_client_whose_model_its_dtype_cannot_hold_is_left_out(text):
    rule = parse(text)
    params = model(dtype="float32")
    params["layer.bias"][:] = 3e38
    state = rule.init(params, 8)
    one = a_round(params)
    for update in one.updates:
        update["layer.bias"][:] = 3e38
    after = rule.step(state, one)
    assert STATUS[int(after["status"])] == "nobody came"
    assert after["dropped"][:7].all()
    same_bits(after["params"], state["params"])


@pytest.mark.parametrize("text", ["fedavg", "fedavg:weighting=uniform", "median", "krum", "geometric_median"])
def test_a_step_that_would_not_be_finite_is_not_taken(text):
    params = {"w": np.zeros(2, dtype=np.float32)}
    one = replace(plain([[0, 0]] * 5), updates=[{"w": np.full(2, 2e38, dtype=np.float32)}] * 5)
    key, *rest = text.split(":")
    rule = parse(":".join([key, "server_lr=4", *rest]))
    after = rule.step(rule.init(params, 5), one)
    assert STATUS[int(after["status"])] == "the step would not have been finite"
    same_bits(after["params"], params)


def test_large_finite_float32_is_not_taken_for_infinite():
    params = {"w": np.zeros(4, dtype=np.float32)}
    one = replace(plain([[0.0]]), updates=[{"w": np.full(4, 1e30, dtype=np.float32)}])
    after = FedAvg().step(FedAvg().init(params, 1), one)
    assert not after["dropped"].any()
    assert after["params"]["w"][0] == np.float32(1e30)


def test_policies():
    one = plain([[1.0, 2.0], [np.nan, 4.0]])
    params = {"w": np.zeros(2)}
    with pytest.raises(NonFiniteError, match=r"round 0: client 1: NaN or Inf in w; pass nonfinite='drop'"):
        run(FedAvg(nonfinite="raise"), params, [one], 2)
    zeroed = run(FedAvg(nonfinite="zero"), params, [one], 2)
    np.testing.assert_array_equal(zeroed["params"]["w"], [0.5, 3.0])
    assert not zeroed["dropped"].any()
    assert np.isnan(one.updates[1]["w"][0])
    with pytest.raises(RuleError, match="nonfinite must be one of 'drop', 'raise', 'zero', not 'ignore'"):
        FedAvg(nonfinite="ignore")
    with pytest.raises(RuleError, match="tuple of names"):
        FedAvg(buffers="running_var")


def test_rounds_that_make_no_sense_say_why():
    params = {"w": np.zeros(2)}
    state = FedAvg().init(params, 3)
    with pytest.raises(RuleError, match="3 clients cannot take a round of 5"):
        FedAvg().step(state, plain([[1, 2]], n_clients=5))
    with pytest.raises(RuleError, match=r"distinct ids in 0\.\.2"):
        FedAvg().step(state, plain([[1, 2], [1, 2]], clients=(1, 1), n_clients=3))
    with pytest.raises(RuleError, match=r"distinct ids in 0\.\.2"):
        FedAvg().step(state, plain([[1, 2]], clients=(3,), n_clients=3))
    with pytest.raises(RuleError, match="2 clients and 1 sizes"):
        FedAvg().step(state, plain([[1, 2], [1, 2]], sizes=[1], n_clients=3))
    with pytest.raises(ContributionError, match=r"client 2.*shape \(1,\), expected \(2,\) as in .*the model"):
        FedAvg().step(state, plain([[1, 2], [1]], clients=(0, 2), n_clients=3))
    wrong = plain([[1, 2]], n_clients=3)
    with pytest.raises(ContributionError, match=r"client 0.*lacks 'w' and has 'v'"):
        FedAvg().step(state, replace(wrong, updates=[{"v": np.zeros(2)}]))


def test_all_sizes_zero_is_an_error_that_names_the_reason():
    state = FedAvg().init({"w": np.zeros(2)}, 2)
    with pytest.raises(ValueError, match="all weights are zero"):
        FedAvg().step(state, plain([[1, 2], [3, 4]], sizes=[0, 0]))
