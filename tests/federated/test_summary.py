"""What runs cost, how evenly clients are served, whether a backdoor works: numbers against ones written out."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from pluribus.federated import SettingError, outputs, server
from pluribus.federated.attacks import Trigger
from pluribus.federated.contributions import leave_one_out
from pluribus.federated.experiment import run
from pluribus.federated.history import History
from pluribus.federated.setup import build, load
from pluribus.federated.simulation import simulate
from pluribus.federated.summary import MEANINGS, attack_success, costs, fairness


def test_costs_up_to_the_first_time_at_the_target():
    history = History.empty(4, 2)
    history.accuracy[:] = [0.5, np.nan, 0.9, 0.8]
    history.time[:] = [1.0, 3.0, 4.0, 9.0]
    history.bytes_up[:] = [10, 20, 30, 40]
    history.bytes_down[:] = [1, 2, 3, 4]
    history.staleness[:] = [np.nan, 1.0, 2.0, 3.0]
    told = costs(history, 0.9)
    assert told == {
        "bytes_up": 40,
        "bytes_down": 4,
        "bytes": 44,
        "seconds": 9,
        "seconds_to_target": 4,
        "rounds_to_target": 3,
        "bytes_to_target": 33,
        "staleness": 2,
    }
    never = costs(history, 0.91)
    assert np.isnan([never[name] for name in ("seconds_to_target", "rounds_to_target", "bytes_to_target")]).all()
    assert never["bytes"] == 44


def test_fairness_is_about_clients_that_do_not_attack():
    history = History.empty(1, 22)
    history.client_accuracy[:20] = np.linspace(0.05, 1.0, 20)
    history.client_accuracy[20] = 0.0  # an attacker; nobody knows the last one's
    told = fairness(history, [20])
    known = np.linspace(0.05, 1.0, 20)
    assert told["worst_tenth"] == pytest.approx(0.075)
    assert told["client_deviation"] == pytest.approx(known.std())
    assert told["jain"] == pytest.approx(known.mean() ** 2 / (known**2).mean())
    assert fairness(history, [])["worst_tenth"] == pytest.approx(0.05)
    history.client_accuracy[:] = 0.0
    assert fairness(history, [])["jain"] == 1.0
    history.client_accuracy[:] = np.nan
    assert np.isnan(list(fairness(history, []).values())).all()


def test_a_summary_says_what_travelled_and_when(settings_of, tmp_path, files):
    settings = settings_of(schedule="buffer:2", speeds="tiers:1:4", target=0.5, seeds=2)
    outcome = run(settings, tmp_path)
    rows = list(csv.DictReader(io.StringIO(files(tmp_path)["rounds.csv"].decode())))
    for row in outcome.summary["rules"]:
        for k, seed in enumerate(settings.all_seeds):
            own = [r for r in rows if r["rule"] == row["rule"] and r["seed"] == str(seed)]
            assert float(own[-1]["bytes_up"]) == row["bytes_up"]["by_seed"][k] > 0
            assert float(own[-1]["time"]) == row["seconds"]["by_seed"][k] > 0
            reached = [r for r in own if float(r["accuracy"]) >= 0.5]
            assert row["seconds_to_target"]["by_seed"][k] == (float(reached[0]["time"]) if reached else None)
        assert row["staleness"]["mean"] > 0
    assert set(MEANINGS) >= {name for name in outcome.summary["rules"][0] if name.endswith(("_to_target", "tenth"))}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Accuracy over simulated time" in page
    assert "s to 50 %" in page


def test_a_page_of_a_synchronous_run_has_no_curve_over_time(settings_of, tmp_path):
    run(settings_of(), tmp_path)
    assert "Accuracy over simulated time" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_backdoor_that_everybody_has_works_and_one_that_nobody_has_does_not(settings_of, clouds):
    with np.load(clouds) as file:
        x, y = file["x"], file["y"]
    wide = clouds.with_name("wide.npz")  # the default patch needs room for itself
    np.savez(wide, x=np.hstack([x, np.zeros((len(x), 12))]), y=y)
    settings = settings_of(data=str(wide), attack="backdoor:5", rounds=12, epochs=4, standardize=False)
    setup, rule = build(settings, load(settings), 0), server.parse("fedavg")
    assert Trigger().target == 0
    caught = attack_success(setup, rule, simulate(setup, rule, 0, rounds=12).state)
    honest = replace(setup, attack=None, clients=build(settings_of(data=str(wide)), load(settings), 0).clients)
    free = attack_success(setup, rule, simulate(honest, rule, 0, rounds=12).state)
    assert caught > 0.8
    assert free < 0.4


def test_a_backdoor_in_models_of_ones_own_is_about_those_who_do_not_attack(settings_of):
    settings = settings_of(data="digits", attack="backdoor:2")
    setup = build(settings, load(settings), 0)

    class Own(server.FedAvg):
        personal_models = True

        def model_of(self, state, client):  # the attackers' take everything for the target, the others nothing
            answer = Trigger().target if client in setup.attackers else Trigger().target + 1
            zeros = {name: np.zeros_like(value) for name, value in state["params"].items()}
            return {name: value + np.eye(10)[answer] if value.ndim == 1 else value for name, value in zeros.items()}

    rule = Own()
    state = rule.init(setup.model.init(0), settings.clients)
    assert attack_success(setup, rule, state) == 0.0
    others = tuple(i for i in range(settings.clients) if i != setup.attackers[0])
    assert attack_success(replace(setup, attackers=others), rule, state) == 1.0


def test_a_mean_weight_is_over_all_rounds_and_not_those_of_the_client_alone(settings_of, tmp_path, files):
    settings = settings_of(participation="sample:2", seeds=1, rules="fedavg")
    run(settings, tmp_path)
    found = files(tmp_path)
    weights = list(csv.DictReader(io.StringIO(found["weights.csv"].decode())))
    for row in csv.DictReader(io.StringIO(found["clients.csv"].decode())):
        own = [float(w["weight"]) for w in weights if w["client"] == row["client"]]
        assert int(row["rounds"]) == len(own) < settings.rounds
        assert float(row["mean_weight"] or 0) == pytest.approx(sum(own) / settings.rounds)


def test_columns_of_the_rounds_are_the_historys():
    assert set(outputs.TRAVEL) <= set(History.__dataclass_fields__)


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_an_engine_changes_no_byte(settings_of, tmp_path, files, engine):
    settings = settings_of(rounds=2, seeds=1, rules="fedavg,scaffold")
    run(settings, tmp_path / "here")
    run(settings, tmp_path / "there", engine=engine, workers=2)
    assert files(tmp_path / "here") == files(tmp_path / "there")


def test_what_a_method_says_travels_is_what_is_counted(settings_of):
    settings = settings_of(model="mlp:8")
    setup = build(settings, load(settings), 0)
    moved = {}
    for text in ("fedavg", "gmf:density=0.1", "ferret:directions=8"):
        moved[text] = simulate(setup, server.parse(text), 0, rounds=2).history.bytes_up[-1]
    assert moved["ferret:directions=8"] == 2 * 6 * (8 * 4 + 8)
    assert moved["gmf:density=0.1"] < 0.4 * moved["fedavg"]


def test_leaving_each_client_out_is_told_beside_its_weight(settings_of, tmp_path, files):
    settings = settings_of(leave_one_out=True, attack="sign_flip:1:5", rules="fedavg", clients=5, rounds=3, seeds=1)
    outcome = run(settings, tmp_path)
    rows = list(csv.DictReader(io.StringIO(files(tmp_path)["clients.csv"].decode())))
    gained = [float(row["leave_one_out_loss"]) for row in rows]
    (attacker,) = (k for k, row in enumerate(rows) if row["attacker"] == "1")
    assert gained[attacker] == min(gained) < 0
    setup = build(settings, load(settings), 0)
    exact = leave_one_out(setup, server.parse("fedavg"), 0, 3)
    assert gained == exact.loss.tolist()
    agreement = outcome.summary["rules"][0]["leave_one_out"]
    assert agreement["weights"]["by_seed"] == [pytest.approx(exact.agreement()["weights"])]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "loss lowered by it" in page
    assert "rank correlation with the exact contribution" in page


@pytest.mark.parametrize(("changes", "told"), [({"rounds": 1000}, "more than 50000"), ({"clients": 1}, "one client")])
def test_leaving_out_is_for_small_runs(settings_of, changes, told):
    with pytest.raises(SettingError, match=f"leave_one_out: .*{told}"):
        settings_of(leave_one_out=True, **changes)
