"""S2S and S2A: their step written out, the cases in which they are FedAvg, and when which of them wins."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation, quadratics

from pluribus.core.errors import RuleError
from pluribus.federated import simulate, topology
from pluribus.federated.data import Dataset
from pluribus.federated.server import FedAvg
from pluribus.federated.topology import SemiDecentralised, run_semi


def test_a_round_written_out():
    setup, targets, curvatures = quadratics(clients=5, steps=2, lr=0.1)
    mixing = topology.metropolis(topology.ring(5))
    for returning in ("s2s", "s2a"):
        schedule = SemiDecentralised(returning, sampled=2, period=2)
        run = run_semi(setup, schedule, mixing, seed=3, rounds=4)
        x = np.zeros((5, 2))
        for number in range(4):
            for _ in range(2):
                x = x - 0.1 * curvatures * (x - targets)
            x = mixing @ x
            chosen = schedule.draw(5, number, 3)
            assert len(chosen) == (2 if number % 2 else 0)
            if chosen:
                average = x[chosen].mean(axis=0)
                x = x.copy()
                x[chosen if returning == "s2s" else slice(None)] = average
            distance = ((x - x.mean(axis=0)) ** 2).sum() / 5
            assert run.consensus[number] == pytest.approx(distance, abs=1e-14)
        np.testing.assert_allclose([m["w"] for m in run.models], x, rtol=1e-12)


def test_all_sampled_makes_the_two_identical():
    setup = federation(clients=5, partition="dirichlet:0.5")
    mixing = topology.metropolis(topology.ring(5))
    one, other = (run_semi(setup, SemiDecentralised(way, period=2), mixing, 0, 4) for way in ("s2s", "s2a"))
    for a, b in zip(one.models, other.models, strict=True):
        for name in a:
            assert a[name].tobytes() == b[name].tobytes()


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_a_server_every_round_with_all_sampled_is_fedavg(weighting):
    setup = federation(clients=5, partition="dirichlet:0.5")
    flat = simulate(setup, FedAvg(weighting=weighting), seed=2, rounds=3)
    # gossip before the server changes its plain mean only by rounding, and a mean by sizes not at all if there is none
    mixing = topology.metropolis(topology.ring(5)) if weighting == "uniform" else np.eye(5)
    run = run_semi(setup, SemiDecentralised("s2s", weighting=weighting), mixing, 2, 3)
    for name, value in flat.state["params"].items():
        np.testing.assert_allclose(run.mean[name], value, atol=1e-6)
    np.testing.assert_allclose(run.consensus, 0, atol=1e-12)
    np.testing.assert_allclose(run.accuracy, flat.history.accuracy, atol=0.01)


def test_the_mean_of_all_survives_s2s_and_not_s2a():
    rng = np.random.default_rng(0)
    models = [{"w": rng.normal(size=3)} for _ in range(6)]
    shares = np.full(2, 0.5)
    middle = np.mean([m["w"] for m in models], axis=0)
    kept, moved = (
        np.mean([m["w"] for m in topology.mix(models, SemiDecentralised(way).matrix(6, [1, 4], shares))], axis=0)
        for way in ("s2s", "s2a")
    )
    np.testing.assert_allclose(kept, middle, rtol=1e-12)
    np.testing.assert_allclose(moved, (models[1]["w"] + models[4]["w"]) / 2, rtol=1e-12)


def alike_up_to(spread, seed, n=12, d=4, samples=8):
    """Noisy quadratics whose optima lie ``spread`` apart; the setup, the objective and its least value."""
    rng = np.random.default_rng(seed)
    setup, *_ = quadratics(clients=n, size=d, steps=2, lr=0.1)
    a, t = rng.uniform(0.3, 1.7, size=(n, d)), spread * rng.normal(size=(n, d)) + 1
    sets = []
    for i in range(n):
        noise = rng.normal(size=(samples, d))
        x = np.concatenate([np.tile(a[i], (samples, 1)), t[i] + noise - noise.mean(axis=0)], axis=1)
        sets.append(Dataset(x, np.zeros(samples, dtype=int), 2))
    setup = replace(setup, clients=tuple(sets), test=sets[0], true_counts=np.tile([samples, 0], (n, 1)))

    def objective(params):
        return float(0.5 * (a * (params["w"] - t) ** 2).mean(axis=0).sum())

    return setup, objective, objective({"w": (a * t).mean(axis=0) / a.mean(axis=0)})


def test_the_winner_flips_with_heterogeneity():
    """By the devices' own models, S2S where they are alike and S2A where they differ; by the mean model, S2S wins."""
    mixing = topology.metropolis(topology.random_regular(12, 4, 0))
    gaps = {}
    for spread in (0.0, 3.0):
        for way in ("s2s", "s2a"):
            found = []
            for seed in range(3):
                setup, objective, least = alike_up_to(spread, seed)
                schedule = SemiDecentralised(way, sampled=2, period=5)
                run = run_semi(setup, schedule, mixing, seed, 40, objective=objective, optimum=least)
                found.append((run.device_gap[-20:].mean(), run.gap[-20:].mean()))
            gaps[spread, way] = np.mean(found, axis=0)
    assert gaps[0.0, "s2s"][0] < gaps[0.0, "s2a"][0]
    assert gaps[3.0, "s2s"][0] > 1.1 * gaps[3.0, "s2a"][0]
    assert gaps[3.0, "s2s"][1] < 0.7 * gaps[3.0, "s2a"][1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SemiDecentralised("all"), "s2s"),
        (lambda: SemiDecentralised(sampled=0), "at least 1"),
        (lambda: SemiDecentralised(period=0), "at least 1"),
        (lambda: SemiDecentralised(weighting="most"), "weighting"),
        (lambda: SemiDecentralised(sampled=9).draw(4, 0, 0), "9 devices"),
        (lambda: run_semi(quadratics()[0], SemiDecentralised(), np.eye(2), 0, 1), r"\(3, 3\)"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(RuleError, match=message):
        make()
