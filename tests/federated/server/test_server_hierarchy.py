"""The rule ``tree``: flat FedAvg for any grouping, a rule at each level, states that live on, and what it refuses."""

import numpy as np
import pytest
from federations import federation
from server_rounds import a_round, model, plain

from pluribus.core.errors import RuleError
from pluribus.federated import server, simulate
from pluribus.federated.server import FedAdam, FedAvg, Hierarchy
from pluribus.federated.server.hierarchy import unwrapped

TREES = [
    "tree",
    "tree:groups=1",
    "tree:groups=3",
    "tree:groups=50",
    "tree:groups=4:outer=tree(groups=2)",
    "tree:inner=tree(groups=2)",
    "tree:groups=3:period=5",
]


@pytest.mark.parametrize("text", TREES)
def test_means_over_means_are_the_flat_fedavg(text):
    params = model()
    rule, flat = server.parse(text), FedAvg()
    state, wanted = rule.init(params, 8), flat.init(params, 8)
    for number, here in enumerate([(0, 1, 2, 3, 4, 5, 6), (1,), (), (0, 7, 3)]):
        told = a_round(params, here, number=number)
        state, wanted = rule.step(state, told), flat.step(wanted, told)
        for name, value in wanted["params"].items():
            off = 1e-15 if value.dtype.kind == "f" else 3 * (number + 1)  # counters are rounded on each level
            np.testing.assert_allclose(state["params"][name], value, rtol=1e-12, atol=off, err_msg=name)
            assert state["params"][name].dtype == value.dtype
        np.testing.assert_allclose(state["weights"], wanted["weights"], rtol=1e-12)


def test_in_a_federation_to_1e_6():
    setup = federation(clients=7, participation="bernoulli:0.7", partition="dirichlet:1")
    flat = simulate(setup, FedAvg(), seed=1, rounds=4)
    tree = simulate(setup, Hierarchy(groups=3, period=3.0), seed=1, rounds=4)
    for name, value in flat.state["params"].items():
        np.testing.assert_allclose(tree.state["params"][name], value, atol=1e-6)


def test_robust_inside_and_a_mean_outside():
    rng = np.random.default_rng(0)
    deltas = rng.normal(size=(9, 4))
    deltas[[1, 5]] = 1e6
    sizes = rng.integers(1, 9, size=9).astype(float)
    rule = Hierarchy(groups=3, inner="median")
    state = rule.step(rule.init({"w": np.zeros(4)}, 9), plain(deltas, sizes))
    groups = [range(3), range(3, 6), range(6, 9)]
    middles = [np.median(deltas[list(g)], axis=0) for g in groups]
    shares = np.array([sizes[list(g)].sum() for g in groups]) / sizes.sum()
    np.testing.assert_allclose(state["params"]["w"], shares @ middles, rtol=1e-12)
    assert np.abs(state["params"]["w"]).max() < 5


def test_gateways_that_tolerate_attackers_save_the_model():
    gained = []
    for seed in range(3):
        setup = federation(seed=seed, clients=10, partition="iid", attack="gaussian:2:3.0", rounds=8)
        runs = (simulate(setup, rule, seed=seed, rounds=8) for rule in (FedAvg(), Hierarchy(inner="median")))
        plainly, robust = (run.history.accuracy[-1] for run in runs)
        gained.append(robust - plainly)
    assert min(gained) > 0.1, gained


def test_chains_and_options_within_parentheses():
    rng = np.random.default_rng(1)
    deltas = rng.normal(size=(8, 3))
    rule = server.parse("tree:inner=clip(max_norm=1)|trimmed_mean(f=1,weighting=size):outer=fedavg(server_lr=0.5)")
    assert server.parse(rule.name) == rule
    state = rule.step(rule.init({"w": np.zeros(3)}, 8), plain(deltas, np.arange(1, 9)))
    inside = server.parse("clip:max_norm=1+trimmed_mean:f=1:weighting=size")
    parts = []
    for here in (slice(0, 4), slice(4, 8)):
        part = plain(deltas[here], np.arange(1, 9)[here])
        parts.append(inside.step(inside.init({"w": np.zeros(3)}, 4), part)["params"]["w"])
    np.testing.assert_allclose(state["params"]["w"], 0.5 * (10 * parts[0] + 26 * parts[1]) / 36, rtol=1e-12)


def test_states_of_both_levels_live_on():
    """One group of all with Adam above is Adam; two groups with momentum inside have one momentum each."""
    params = {"w": np.zeros(3)}
    rng = np.random.default_rng(2)
    rounds = [plain(rng.normal(size=(4, 3))) for _ in range(3)]
    rule, wanted = Hierarchy(groups=2, outer="fedadam"), FedAdam()
    state, goal = rule.init(params, 4), wanted.init(params, 4)
    for told in rounds:
        state, goal = rule.step(state, told), wanted.step(goal, told)
    np.testing.assert_allclose(state["params"]["w"], goal["params"]["w"], rtol=1e-12)
    rule, inside = Hierarchy(groups=2, inner="fedavgm"), server.parse("fedavgm")
    state = rule.init(params, 4)
    own = [inside.init(params, 2), inside.init(params, 2)]
    x = np.zeros(3)
    for told in rounds:
        state = rule.step(state, told)
        moves = []
        for g, here in enumerate(([0, 1], [2, 3])):
            part = plain([told.updates[k]["w"] for k in here])
            own[g] = inside.step({**own[g], "params": {"w": x}}, part)
            moves.append(own[g]["params"]["w"] - x)
        x = x + np.mean(moves, axis=0)
    np.testing.assert_allclose(state["params"]["w"], x, rtol=1e-12)


def test_a_group_that_is_too_small_takes_no_part():
    deltas = np.random.default_rng(3).normal(size=(6, 2))
    rule = Hierarchy(groups=2, inner="trimmed_mean(f=1)")
    state = rule.init({"w": np.zeros(2)}, 8)
    after = rule.step(state, plain(deltas, clients=(0, 1, 2, 3, 4, 5), n_clients=8))
    np.testing.assert_allclose(after["params"]["w"], np.sort(deltas[:4], axis=0)[1:3].mean(axis=0), rtol=1e-12)
    assert np.isnan(after["weights"][4:6]).all()


def test_contact_counts():
    rule = Hierarchy(groups=2, period=5.0, contact=True)
    deltas, sizes = np.random.default_rng(4).normal(size=(6, 2)), np.arange(1.0, 7)
    group, contact = rule.groups_of(6, 0)
    assert set(group) == {0, 1}
    assert contact.min() < 1
    state = rule.step(rule.init({"w": np.zeros(2)}, 6), plain(deltas, sizes))
    counted = sizes * contact
    np.testing.assert_allclose(state["params"]["w"], counted @ deltas / counted.sum(), rtol=1e-12)
    np.testing.assert_allclose(state["weights"], counted / counted.sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 0}, "groups"),
        ({"inner": "scaffold"}, "inner=scaffold"),
        ({"outer": "fedprox"}, "outer=fedprox"),
        ({"inner": "nothing_like_it"}, "no rule is called"),
        ({"inner": "median(f=1"}, "parentheses"),
        ({"inner": "median)"}, "parentheses"),
        ({"contact": True}, "needs a period"),
        ({"period": 0.5}, "at least 1 round"),
        ({"inner": 3}, "inner is a rule's text"),
        ({"outer": None}, "outer is a rule's text"),
    ],
)
def test_what_it_refuses(options, message):
    with pytest.raises(RuleError, match=message):
        Hierarchy(**options)


def test_more_clients_than_a_group_has():
    with pytest.raises(RuleError, match="needs at least"):
        Hierarchy(groups=4, inner="trimmed_mean(f=2)").init({"w": np.zeros(2)}, 8)


def test_texts():
    assert unwrapped("nnm(f=1)|median") == "nnm:f=1+median"
    assert unwrapped("tree(groups=2,inner=clip(max_norm=1)|mean)") == "tree:groups=2:inner=clip(max_norm=1)|mean"
    assert unwrapped("mean()") == unwrapped("mean") == "mean"
