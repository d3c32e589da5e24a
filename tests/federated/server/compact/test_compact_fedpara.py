from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from server_rounds import plain, same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.models import MLP, Batch, Softmax
from pluribus.federated.server import FedAvg, FedPara, FedParaAvg, PFedPara
from pluribus.federated.server.compact.fedpara import FACTORS, FedParaClient, chain, compose, factored, factorise
from pluribus.federated.server.control.pullback import pull


@pytest.mark.parametrize("personal", [False, True])
def test_gradients_against_differences(personal):
    rng = np.random.default_rng(0)
    model = FedPara(MLP(12, 9, 3, activation="tanh"), rank=2, personal=personal)
    params = {name: rng.normal(size=value.shape) for name, value in model.init(0).items()}
    assert factored(params) == ["hidden.weight"]
    batch = Batch(rng.normal(size=(5, 12)), np.array([0, 1, 2, 0, 1]))
    _, grads = model.loss_and_grad(params, batch)
    assert grads.keys() == params.keys()
    slope = rng.normal(size=(5, 3))
    pulled = pull(model, params, batch.x, slope)
    for name, value in params.items():
        for place in [tuple(rng.integers(size) for size in value.shape) for _ in range(4)]:
            losses, scores = [], []
            for sign in (1, -1):
                moved = value.copy()
                moved[place] += sign * 1e-6
                losses.append(model.loss_and_grad(params | {name: moved}, batch)[0])
                scores.append((slope * model.logits(params | {name: moved}, batch.x)).sum())
            assert grads[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-7)
            assert pulled.params[name][place] == pytest.approx((scores[0] - scores[1]) / 2e-6, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize(("rank", "m", "n"), [(1, 20, 30), (2, 20, 30), (3, 20, 30), (5, 20, 60)])
def test_the_rank_of_random_weights_is_the_square_of_the_factors(rank, m, n):
    weight = np.random.default_rng(0).normal(size=(m, n))
    made = factorise({"w": weight}, rank, seed=1)
    if "w" in made:
        rng = np.random.default_rng(2)
        made = {f"w.{f}": rng.normal(size=(rows, rank)) for f, rows in zip(FACTORS, (m, n, m, n), strict=True)}
    assert np.linalg.matrix_rank(compose(made)["w"]) == min(rank**2, m, n)


def test_what_travels_and_what_is_drawn():
    weight = np.random.default_rng(0).normal(scale=0.3, size=(80, 100))
    for personal in (False, True):
        made = factorise({"w": weight, "b": np.ones(3)}, 4, 0, personal)
        assert sum(value.size for name, value in made.items() if name != "b") == 2 * 4 * (80 + 100)
        composed = compose(made, personal)
        assert composed["w"].std() == pytest.approx(0.3, rel=0.35)
        np.testing.assert_array_equal(composed["b"], np.ones(3))
    assert "w" in factorise({"w": np.ones((4, 4))}, 3, 0)
    zero = Softmax(64, 40)
    params = FedPara(zero, rank=3).init(0)
    assert not compose(params)["output.weight"].any()
    batch = Batch(np.random.default_rng(1).normal(size=(9, 64)), np.arange(9))
    assert FedPara(zero, rank=3).loss_and_grad(params, batch)[1]["output.weight.x1"].any()


def test_a_personal_weight_without_its_own_half_is_the_global_one():
    made = factorise({"w": np.random.default_rng(0).normal(size=(20, 20))}, 2, 0, personal=True)
    first = made["w.x1"] @ made["w.y1"].T
    np.testing.assert_allclose(compose(made, True)["w"], first)
    np.testing.assert_allclose(compose({n: made[n] for n in ("w.x1", "w.y1")}, True)["w"], first)
    changed = made | {"w.x2": np.ones_like(made["w.x2"])}
    np.testing.assert_allclose(compose(changed, True)["w"], first * (1 + changed["w.x2"] @ changed["w.y2"].T))
    assert not chain(made, {"b": np.ones(2)}, True).keys() - {"b"}


def test_any_rule_averages_the_wrapped_models_factors():
    setup = federation(clients=3, model="mlp:32")
    wrapped = replace(setup, model=FedPara(setup.model, rank=3))
    run = simulate(wrapped, FedAvg(), seed=0, rounds=2)
    assert "hidden.weight.x1" in run.state["params"]
    assert np.isfinite(run.history.accuracy).all()


def test_the_rule_is_fedavg_on_the_factors():
    """Against the wrapped model under FedAvg from the same factors."""
    from pluribus.federated.simulation import Run, begin

    setup = federation(clients=3, model="mlp:32")
    rule = FedParaAvg(rank=3)
    start = begin(setup, rule, 0, 2)
    run = simulate(setup, rule, seed=0, rounds=2)
    wrapped = replace(setup, model=FedPara(setup.model, rank=3))
    rest = {name: value for name, value in start.state["params"].items() if name != "hidden.weight"}
    theirs = FedAvg().init(rest | start.state["factors"], 3)
    from pluribus.federated.history import History

    other = simulate(wrapped, FedAvg(), seed=0, rounds=2, start=Run(0, theirs, History.empty(2, 3)))
    for name, value in run.state["factors"].items():
        np.testing.assert_allclose(value, other.state["params"][name], rtol=1e-5, atol=1e-6)
    same_bits({"w": run.state["params"]["hidden.weight"]}, {"w": compose(run.state["factors"])["hidden.weight"]})


def test_personal_halves_stay_with_their_client():
    setup = federation(clients=4, model="mlp:32", participation="cyclic:2")
    rule = PFedPara(rank=3)
    run = simulate(setup, rule, seed=0, rounds=1)
    here = np.flatnonzero(run.history.present[0])
    for name, value in run.state["private"].items():
        start = rule.init(setup.model.init(0), 4)["private"][name].shape
        assert value.shape == start
        changed = [not np.array_equal(value[i], value[next(k for k in range(4) if k not in here)]) for i in range(4)]
        assert changed == [i in here for i in range(4)]
    absent = next(i for i in range(4) if i not in here)
    same_bits(rule.model_of(run.state, absent), run.state["params"])
    assert not np.array_equal(rule.model_of(run.state, here[0])["hidden.weight"], run.state["params"]["hidden.weight"])


def test_equal_clients_are_a_fixed_point_of_the_averaging():
    setup = federation(clients=3, model="mlp:32")
    rule = FedParaAvg(rank=3)
    state = rule.init(setup.model.init(0), 3)
    rng = np.random.default_rng(0)
    change = {name: rng.normal(size=value.shape).astype(value.dtype) for name, value in state["factors"].items()}
    zero = {name: np.zeros_like(value) for name, value in state["params"].items()}
    told = replace(plain(np.zeros((3, 1))), updates=[zero] * 3, messages=[{"factors": change}] * 3)
    after = rule.step(state, told)
    for name, value in change.items():
        np.testing.assert_allclose(after["factors"][name], state["factors"][name] + value, rtol=1e-5, atol=1e-6)


def test_digits_are_learned_with_fewer_numbers():
    for seed in range(3):
        setup = federation(seed, clients=5, model="mlp:64", epochs=3)
        run = simulate(setup, FedParaAvg(rank=4), seed=seed, rounds=12, eval_every=12)
        factors = sum(value.size for value in run.state["factors"].values())
        assert factors == 2 * 4 * (64 + 64 + 10 + 64) < (64 + 10) * 64
        assert run.history.accuracy[-1] > 0.7


def test_bytes_and_bad_input():
    factors = {f"w.{f}": np.zeros((5, 2), dtype=np.float32) for f in FACTORS}
    update = {"w": np.zeros((5, 5), dtype=np.float32), "b": np.zeros(5, dtype=np.float32)}
    assert FedParaClient.upload_bytes(update, {"factors": factors}) == 4 * 40 + 20
    with pytest.raises(RuleError, match="rank must be a whole number"):
        FedParaAvg(rank=0)
    with pytest.raises(RuleError, match="take a smaller rank or a larger model"):
        FedParaAvg(rank=4).init({"w": np.zeros((6, 6))}, 2)
