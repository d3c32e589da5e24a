"""A grid: its cells, that a stopped one ends with the same bytes, what it refuses; and experiments side by side."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import pytest

from pluribus.federated import Layer, SettingError, comparison, experiment, grid, resolve
from pluribus.federated.comparison import Told, differing, mark, sentences
from pluribus.federated.folder import FolderError
from pluribus.federated.verdict import judge


@pytest.fixture
def layer(clouds):
    def make(**changes):
        tiny = {
            "data": str(clouds),
            "clients": 5,
            "rounds": 2,
            "rules": ["fedavg", "median"],
            "model": "softmax",
            "epochs": 1,
            "seeds": 2,
            "attack": "none",
        }
        return Layer(tiny | changes)

    return make


def cells_of(*layers):
    found = grid.expand(layers)
    assert found is not None
    return found[0]


def test_lists_are_axes_and_scalars_are_not(layer):
    assert grid.expand([layer()]) is None
    cells = cells_of(layer(attack=["none", "sign_flip:1"], partition=["iid", "dirichlet:0.10"]))
    assert [cell.name for cell in cells] == [
        "attack-none_partition-iid",
        "attack-none_partition-dirichlet-0.1",
        "attack-sign_flip-1-1_partition-iid",
        "attack-sign_flip-1-1_partition-dirichlet-0.1",
    ]
    assert [cell.settings.attack for cell in cells] == ["none", "none", "sign_flip:1:1", "sign_flip:1:1"]
    assert {cell.settings.clients for cell in cells} == {5}


def test_a_later_scalar_goes_before_a_list_and_alphas_are_partitions(layer):
    lists = layer(attack=["none", "nan:1"], alpha=[0.1, 1])
    cells = cells_of(lists, Layer({"attack": "ipm:1"}))
    assert [cell.settings.attack for cell in cells] == ["ipm:1:0.5"] * 2
    assert [cell.settings.partition for cell in cells] == ["dirichlet:0.1", "dirichlet:1"]
    overruled = [layer(attack=["none", "nan:1"], partition=["iid"]), Layer({"attack": "ipm:1", "alpha": 2})]
    assert grid.expand(overruled) is None
    settings = resolve(*grid.settled(overruled))[0]
    assert (settings.attack, settings.partition) == ("ipm:1:0.5", "dirichlet:2")


def test_paths_in_a_list_start_at_the_file(layer, tmp_path):
    (tmp_path / "who.csv").write_text("round,0,1,2,3,4\n0,1,1,1,1,1\n")
    base = layer(participation=["all", "trace:who.csv"])
    cells = cells_of(Layer(base.values, folder=tmp_path))
    assert cells[1].settings.participation == f"trace:{tmp_path / 'who.csv'}"
    assert cells[1].name == "participation-trace-who.csv"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"attack": []}, "attack is an empty list"),
        ({"attack": ["none", " none"]}, "two cells of the grid mean the same, attack-none"),
        ({"attack": ["none", 3]}, "attack is 3"),
        ({"clients": [3, 4]}, "clients is"),
        ({"alpha": [1], "partition": "iid"}, "one of the two"),
    ],
)
def test_lists_that_make_no_grid(layer, changes, told):
    with pytest.raises(SettingError, match=told):
        grid.expand([layer(**({"attack": ["none", "nan:1"]} | changes))])


def test_a_grid_from_start_to_end(layer, tmp_path, files):
    cells = cells_of(layer(attack=["none", "sign_flip:1"]))
    outcome = grid.run(cells, tmp_path / "one")
    found = files(tmp_path / "one")
    top = {name for name in found if "/" not in name}
    assert top == {"grid.csv", "grid.json", "report.html"}
    summary = json.loads(found["grid.json"])
    assert summary == json.loads(json.dumps(outcome.summary))
    assert list(summary["cells"]) == [cell.name for cell in cells]
    assert summary["differing"] == {"attack": ["none", "sign_flip:1:1"]}
    rows = list(csv.DictReader(io.StringIO(found["grid.csv"].decode())))
    assert [(row["cell"], row["attack"], row["rule"]) for row in rows] == [
        (cell.name, cell.settings.attack, rule) for cell in cells for rule in ("fedavg", "median")
    ]
    own = json.loads(found[f"{cells[1].name}/summary.json"])["rules"][1]
    assert float(rows[3]["accuracy"]) == own["accuracy"]["mean"]
    assert float(rows[3]["bytes"]) == own["bytes"]["mean"]
    page = found["report.html"].decode()
    for cell in cells:
        assert f'<a href="{cell.name}/report.html">' in page
    again = grid.run(cells, tmp_path / "one")
    assert not again.made_now
    assert "holds this grid already" in again.notes[0]
    assert files(tmp_path / "one") == found
    assert [cell.settings for cell in grid.stored(tmp_path / "one")] == [cell.settings for cell in cells]
    begun = []

    def watch(cell, number, count):
        return experiment.Watch(begin=lambda settings, tasks: begun.append((cell.name, number, count)))

    grid.run(cells, tmp_path / "one", watch=watch)
    assert begun == []
    assert grid.run(cells, tmp_path / "one", watch=watch, force=True).made_now
    assert begun == [(cell.name, number, 2) for number, cell in enumerate(cells, 1)]
    assert files(tmp_path / "one") == found


def test_a_stopped_grid_goes_on_to_the_same_bytes(layer, tmp_path, files, monkeypatch):
    cells = cells_of(layer(attack=["none", "sign_flip:1", "nan:1"]))
    grid.run(cells, tmp_path / "whole")
    begun, real = [], experiment.run

    def stops(settings, *args, **kwargs):
        begun.append(settings.attack)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return real(settings, *args, **kwargs)

    out = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "run", stops)
        with pytest.raises(KeyboardInterrupt):
            grid.run(cells, out)
    assert {path.name for path in out.iterdir()} == {"cells.json", cells[0].name}
    with pytest.raises(FolderError, match="unfinished; go on with --resume"):
        grid.run(cells, out)
    with pytest.raises(FolderError, match=r"another grid .*is there and not here"):
        grid.run(cells[:2], out, resume=True)
    assert grid.run(cells, out, resume=True).made_now
    assert files(out) == files(tmp_path / "whole")


def test_a_grid_and_an_experiment_do_not_share_a_folder(layer, tmp_path):
    cells = cells_of(layer(attack=["none", "nan:1"]))
    experiment.run(cells[0].settings, tmp_path / "one")
    for force in (False, True):
        with pytest.raises(FolderError, match="holds"):
            grid.run(cells, tmp_path / "one", force=force)
    grid.run(cells, tmp_path / "grid")
    with pytest.raises(FolderError, match=r"grid\.json"):
        experiment.run(cells[0].settings, tmp_path / "grid")
    experiment.run(cells[0].settings, tmp_path / "grid", force=True)
    assert not (tmp_path / "grid" / "grid.json").exists()


def test_a_cell_that_cannot_be_is_told_before_the_first_run(layer, tmp_path):
    cells = cells_of(layer(rules=["multi_krum"], attack=["none", "nan:4"]))
    with pytest.raises(SettingError, match=r"^attack-nan-4: rule 'multi_krum'"):
        grid.run(cells, tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


# --- side by side ---------------------------------------------------------------------------------------------------


def one(name, folder, **accuracy):
    rows = [
        {"rule": k, "accuracy": {"mean": sum(v) / len(v), "spread": 0.0, "by_seed": v}} for k, v in accuracy.items()
    ]
    return Told(name, folder, {"attack": name, "rounds": 3, "rules": list(accuracy)}, rows, judge(rows))


def test_how_often_each_rule_is_ahead(tmp_path):
    found = [
        one("a", tmp_path, fedavg=[0.5, 0.6], median=[0.7, 0.8]),
        one("b", tmp_path, fedavg=[0.5, 0.6], krum=[0.6, 0.5]),
        one("c", tmp_path, fedavg=[0.1, 0.1], median=[0.2, 0.2]),
    ]
    assert differing(found) == {"attack": ["a", "b", "c"]}
    assert sentences(found)[0] == "median is ahead of every other rule in 2 of 3; in 1 of 3 the best do not separate."
    assert [mark(told, "fedavg") for told in found] == ["", "tied", ""]
    assert mark(found[0], "median") == "best"
    found[0] = dataclasses.replace(found[0], folder=tmp_path / "a b#1")
    page = comparison.page(found, "three", tmp_path)
    assert 'href="a%20b%231/report.html"' in page
    assert page.count("★ ") == 3  # two, and the caption
    assert page.count("≈ ") == 3


def test_folders_that_hold_nothing_finished(tmp_path):
    with pytest.raises(FolderError, match="no finished experiment"):
        comparison.read(tmp_path / "none")
