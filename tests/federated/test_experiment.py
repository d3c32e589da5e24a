"""An experiment: its files, that they are the same bytes however it came about, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import shutil

import numpy as np
import pytest

from pluribus.federated import SettingError, config_file, experiment, folder, resolve, server, simulation
from pluribus.federated.experiment import Watch, run
from pluribus.federated.folder import FolderError
from pluribus.federated.history import History
from pluribus.federated.outputs import stems
from pluribus.federated.simulation import SimulationError
from pluribus.federated.summary import label, mean_effective, over_seeds, share_of, worst_client


def rows(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode())))


def test_the_files_and_what_they_say(settings_of, tmp_path, files):
    settings = settings_of(
        attack="sign_flip:1", label_noise="2:0.5", rules="median,fedlaw", participation="bernoulli:0.7"
    )
    outcome = run(settings, tmp_path)
    found = files(tmp_path)
    names = {"report.html", "rounds.csv", "weights.csv", "clients.csv", "config.toml", "summary.json"}
    models = {
        f"models/{rule}-seed{s}.safetensors" for rule in ("fedavg", "median", "fedlaw", "finetune") for s in (0, 1)
    }
    assert set(found) == names | models
    summary = json.loads(found["summary.json"])
    assert summary == json.loads(json.dumps(outcome.summary))
    assert set(summary["files"]) == names | models | {"timing.json"}

    assert [row["rule"] for row in summary["rules"]] == ["fedavg", "median", "fedlaw", "finetune"]
    assert summary["rules"][0]["gain"]["by_seed"] == [0.0, 0.0]
    rounds, weights, clients = (rows(found[name]) for name in ("rounds.csv", "weights.csv", "clients.csv"))
    assert len(rounds) == 4 * 2 * 4
    assert len(clients) == 4 * 2 * 6
    for row in summary["rules"]:
        ends = [r for r in rounds if r["rule"] == row["rule"] and r["round"] == "4"]
        assert [float(r["accuracy"]) for r in ends] == row["accuracy"]["by_seed"]
        attackers = [c for c in clients if c["rule"] == row["rule"] and c["attacker"] == "1"]
        assert len(attackers) == 2
        honest = [c for c in clients if c["rule"] == row["rule"] and c["attacker"] == "0" and c["seed"] == "1"]
        assert min(float(c["accuracy"]) for c in honest) == row["worst_client"]["by_seed"][1]
        assert sum(c["noisy"] == "1" for c in honest + attackers) >= 2
    one = [w for w in weights if w["rule"] == "fedavg" and w["seed"] == "0" and w["round"] == "2"]
    assert sum(float(w["weight"]) for w in one) == pytest.approx(1)
    row = next(r for r in rounds if r["rule"] == "fedavg" and r["seed"] == "0" and r["round"] == "2")
    assert int(row["participants"]) == len(one)
    shares = np.array([float(w["weight"]) for w in one])
    assert float(row["effective_clients"]) == pytest.approx(1 / (shares**2).sum())
    for c in clients:
        assert int(c["samples"]) == sum(int(c[f"samples_of_{k}"]) for k in range(3))
    assert outcome.timing["seconds"]["median"]["cpu"][1] >= 0
    assert b"FedLAW" in found["report.html"]


def test_models_are_the_last_rounds(settings_of, tmp_path):
    from safetensors.numpy import load_file

    from pluribus.federated.setup import build, load
    from pluribus.federated.simulation import simulate

    settings = settings_of()
    run(settings, tmp_path)
    params = load_file(tmp_path / "models" / "median-seed1.safetensors")
    state = simulate(build(settings, load(settings), 1), server.parse("median"), 1, rounds=4).state
    assert params.keys() == state["params"].keys()
    assert all((params[name] == state["params"][name]).all() for name in params)


def test_the_same_bytes_again_and_from_the_resolved_settings_and_on_any_number_of_processes(
    settings_of, tmp_path, files
):
    settings = settings_of(rules="fedavg,multi_krum", attack="nan:1", clients=7)
    run(settings, tmp_path / "a")
    again = resolve(config_file.read(tmp_path / "a" / "config.toml")[0])[0]
    assert again == settings
    run(again, tmp_path / "b", workers=2)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_a_finished_experiment_is_told_and_not_run_again(settings_of, tmp_path, files):
    first = run(settings_of(), tmp_path)
    before = files(tmp_path)

    def fail(*_):
        raise AssertionError("it was run again")

    second = run(settings_of(), tmp_path, watch=Watch(begin=fail))
    assert (first.made_now, second.made_now) == (True, False)
    assert second.summary == json.loads(before["summary.json"])
    assert second.timing == first.timing
    assert "--force" in second.notes[0]
    run(settings_of(), tmp_path, force=True)
    assert files(tmp_path) == before


def test_a_finished_experiment_that_lacks_a_file_is_run_again(settings_of, tmp_path, files):
    run(settings_of(), tmp_path)
    before = files(tmp_path)
    (tmp_path / "rounds.csv").unlink()
    assert run(settings_of(), tmp_path).made_now
    assert files(tmp_path) == before


def test_another_experiment_is_not_written_over(settings_of, tmp_path, files):
    run(settings_of(), tmp_path)
    before = files(tmp_path)
    with pytest.raises(FolderError, match=r"another experiment, finished: it differs in rules \(fedavg,median there"):
        run(settings_of(rules="fedavg"), tmp_path)
    with pytest.raises(FolderError, match="it differs in rounds"):
        run(settings_of(rounds=5), tmp_path, resume=True)
    assert files(tmp_path) == before
    run(settings_of(rules="krum"), tmp_path, force=True)
    after = files(tmp_path)
    assert "models/krum-seed0.safetensors" in after
    assert "models/median-seed0.safetensors" not in after


def test_other_data_under_the_same_name_is_another_experiment(settings_of, clouds, tmp_path):
    mine = tmp_path / "mine.npz"
    shutil.copy(clouds, mine)
    run(settings_of(data=str(mine)), tmp_path / "out")
    with np.load(clouds) as found:
        np.savez(mine, x=found["x"] + 1, y=found["y"])
    with pytest.raises(FolderError, match="differs in contents of the data"):
        run(settings_of(data=str(mine)), tmp_path / "out")


def test_files_of_others_are_not_written_over(settings_of, tmp_path):
    (tmp_path / "config.toml").write_text("rounds = 3")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match=r"config\.toml, which no finished experiment"):
        run(settings_of(), tmp_path)
    assert (tmp_path / "config.toml").read_text() == "rounds = 3"
    run(settings_of(), tmp_path, force=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_place_that_is_no_folder(settings_of, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderError, match="is a file"):
        run(settings_of(), tmp_path / "file")


def test_two_processes_do_not_work_on_one_folder(settings_of, tmp_path):
    with folder.locked(tmp_path), pytest.raises(FolderError, match="another process"):
        run(settings_of(), tmp_path)
    run(settings_of(), tmp_path)


class StopError(Exception):
    pass


def broken_off(settings, out, rounds, **options):
    """An experiment that was left after so many rounds."""

    def look(board):
        if sum(board.rounds) >= rounds:
            raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pluribus.federated.workers.LOOK_EVERY", 0.0)
        patch.setattr("pluribus.federated.workers.SAVE_EVERY", 0.0)
        with pytest.raises(StopError):
            run(settings, out, watch=Watch(look=look), **options)


def test_an_unfinished_experiment_wants_a_word(settings_of, tmp_path, files, monkeypatch):
    settings = settings_of()
    run(settings, tmp_path / "whole")
    out = tmp_path / "out"
    broken_off(settings, out, rounds=6)
    assert folder.look(out).what == "unfinished"
    assert experiment.stored_settings(out) == settings
    with pytest.raises(FolderError, match="unfinished; go on with --resume"):
        run(settings, out)
    with pytest.raises(FolderError, match="another experiment, unfinished: it differs in rounds"):
        run(settings_of(rounds=5), out, resume=True)
    done, advance = [], simulation.advance
    monkeypatch.setattr(simulation, "advance", lambda *given: done.append(given) or advance(*given))
    run(settings, out, resume=True)
    assert len(done) == 2 * 2 * 4 - 6  # what was done was not done again
    assert files(out) == files(tmp_path / "whole")


def test_a_damaged_checkpoint_starts_that_run_again_and_is_told(settings_of, tmp_path, files):
    settings = settings_of()
    run(settings, tmp_path / "whole")
    out = tmp_path / "out"
    broken_off(settings, out, rounds=6)
    (damaged,) = (out / "checkpoints").glob("fedavg-seed0*")
    damaged.write_bytes(damaged.read_bytes()[:-3])
    outcome = run(settings, out, resume=True)
    assert len(outcome.notes) == 1
    assert outcome.notes[0].startswith("fedavg, seed 0: this run starts again, since ")
    assert files(out) == files(tmp_path / "whole")


def test_force_starts_an_unfinished_experiment_anew(settings_of, tmp_path, files):
    run(settings_of(), tmp_path / "whole")
    broken_off(settings_of(rounds=9), tmp_path / "out", rounds=3)
    (tmp_path / "out" / ".pluribus-1-ab.tmp").write_text("half a file")
    run(settings_of(), tmp_path / "out", force=True)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_results_of_before_are_gone_while_new_ones_are_made(settings_of, tmp_path, files):
    run(settings_of(), tmp_path)
    broken_off(settings_of(rounds=9), tmp_path, rounds=3, force=True)
    assert {name.split("/")[0] for name in files(tmp_path)} == {"checkpoints"}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_run_is_named_and_the_rest_stays(settings_of, tmp_path, workers):
    # A client that sends NaN, under a policy that raises: it fails in the round of its first participation.
    settings = settings_of(rules="fedavg,median:nonfinite=raise", attack="nan:1")
    with pytest.raises(SimulationError, match=r"^median:nonfinite=raise, seed \d, round 1: .*client \d: NaN or Inf"):
        run(settings, tmp_path, workers=workers)
    assert folder.look(tmp_path).what == "unfinished"


def test_a_folder_that_cannot_be_made(settings_of, tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    with pytest.raises(folder.FolderError, match=r"out could not be created: .*; choose another --out$"):
        run(settings_of(), out)


def test_rules_that_can_never_work_say_so_first(settings_of, tmp_path):
    with pytest.raises(SettingError, match=r"rule 'krum': .* at least 9 participants"):
        run(settings_of(rules="krum", attack="nan:3"), tmp_path / "a")
    with pytest.raises(SettingError, match=r"; its f is the number of attackers in attack sign_flip:2:1$"):
        run(settings_of(clients=5, rules="krum", attack="sign_flip:2"), tmp_path / "out")
    with pytest.raises(SettingError, match="rule 'fedlaw' learns on the server's own samples, and proxy is 0"):
        run(settings_of(rules="fedlaw", proxy=0), tmp_path / "a")
    with pytest.raises(SettingError):
        run(settings_of(clients=500), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_names_of_files_differ():
    found = stems(["median", "nnm+median", "nnm-median", "fedavg:server_lr=0.5"], 3)
    assert list(found.values()) == [
        "median-seed3", "nnm-median-seed3", "nnm-median-2-seed3", "fedavg-server_lr-0.5-seed3",
    ]  # fmt: skip


def test_labels_of_rules():
    texts = ["fedavg", "fedlaw:gamma=1", "median", "nnm+krum:server_lr=0.5"]
    assert [label(server.parse(text, attackers=2)) for text in texts] == [
        "FedAvg", "FedLAW, gamma=1", "Median", "NNM(f=2) + Krum(f=2), server_lr=0.5",
    ]  # fmt: skip


def test_the_worst_client_is_an_honest_one():
    history = History.empty(1, 4)
    history.client_accuracy[:] = [0.9, 0.1, np.nan, 0.6]
    assert worst_client(history, attackers=[1]) == 0.6
    assert worst_client(history, attackers=[]) == 0.1
    assert np.isnan(worst_client(History.empty(1, 4), []))


def test_shares_of_the_weight():
    history = History.empty(2, 3)
    history.weights[:] = [[0.5, 0.5, np.nan], [np.nan, 0.25, 0.75]]
    assert share_of(history, [1]) == pytest.approx(0.375)
    assert np.isnan(share_of(history, []))
    assert np.isnan(share_of(History.empty(2, 3), [1]))
    history.effective[:] = [2.0, np.nan]
    assert mean_effective(history) == 2.0


def test_over_seeds():
    told = over_seeds([0.2, 0.4])
    assert told["mean"] == pytest.approx(0.3)
    assert told["spread"] == pytest.approx(0.2 / np.sqrt(2))
    assert over_seeds([0.5]) == {"mean": 0.5, "spread": None, "by_seed": [0.5]}
    assert over_seeds([0.5, float("nan")])["mean"] is None
