"""Settings: layers, their checks, and TOML that reads back."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pluribus.core.errors import FileError
from pluribus.federated import Config, Layer, SettingError, config, config_file, resolve, server
from pluribus.federated.options import split_list


def made(*layers: dict) -> Config:
    return resolve(*(Layer(values) for values in layers))[0]


def test_defaults_are_settings():
    assert made() == made({})
    assert made().rules[0] == "fedavg"
    assert resolve()[1] == ()


def test_later_layers_go_first_and_dashes_are_underscores():
    assert made({"rounds": 5, "batch-size": "7"}, {"rounds": "9"}) == made({"rounds": 9, "batch_size": 7})


@pytest.mark.parametrize(
    ("clients", "attack"), [(20, "sign_flip:4:3"), (50, "sign_flip:10:3"), (9, "sign_flip:1:3"), (4, "none")]
)
def test_a_fifth_of_the_clients_attacks_unless_given(clients, attack):
    settings = made({"clients": clients})
    assert settings.attack == attack
    assert made({"clients": clients, "attack": "none"}).attack == "none"
    assert server.parse("multi_krum", config.attackers_of(settings)).least <= max(clients, 5)
    assert resolve(Layer({"rounds": 2}), base=made({"clients": 30}))[0].attack == "sign_flip:6:3"


def test_texts_of_a_command_line_and_values_of_toml_are_the_same():
    one = made({"lr": "0.5", "clients": "9", "rules": "median, krum:f=2", "seeds": "2"})
    assert one == made({"lr": 0.5, "clients": 9, "rules": ["median", "krum:f=2"], "seeds": 2})
    assert made({"lr": 1}).lr == 1.0


def test_alpha_is_short_for_a_partition():
    assert made({"alpha": 0.30}).partition == "dirichlet:0.3"
    assert made({"partition": "iid"}, {"alpha": "2"}).partition == "dirichlet:2"
    assert made({"alpha": "2"}, {"partition": "iid"}).partition == "iid"
    with pytest.raises(SettingError, match="one of the two"):
        made({"alpha": 1, "partition": "iid"})


def test_one_spelling_of_each_text():
    settings = made({"partition": " dirichlet:0.10 ", "model": "mlp", "attack": "ipm:2", "label_noise": "3:0.70"})
    told = settings.partition, settings.model, settings.attack, settings.label_noise
    assert told == ("dirichlet:0.1", "mlp:64", "ipm:2:0.5", "3:0.7")
    fine = made({"alpha": 0.123456789, "label_noise": "3:0.123456789", "schedule": "window:1234567.5"})
    told = fine.partition, fine.label_noise, fine.schedule
    assert told == ("dirichlet:0.123456789", "3:0.123456789", "window:1234567.5")  # nothing is rounded


def test_the_baseline_comes_first_and_fine_tuning_beside_learned_weights():
    settings, notes = resolve(Layer({"rules": "median,fedlaw:gamma=1,krum"}))
    assert settings.rules == ("fedavg", "median", "fedlaw:gamma=1", "finetune", "krum")
    assert [note.split()[0] for note in notes] == ["FedAvg", "finetune"]
    settings, notes = resolve(Layer({"rules": "fedlaw,finetune:steps=5,FedAvg,fedavg"}))
    assert settings.rules == ("fedavg", "fedlaw", "finetune:steps=5")
    assert notes == ()
    assert resolve(Layer({"rules": "fedavg:weighting=uniform"}))[0].rules == ("fedavg", "fedavg:weighting=uniform")


def test_resolving_again_changes_nothing():
    settings = made({"rules": "median,fedlaw", "alpha": 0.2, "data": "some.csv"})
    assert resolve(Layer(settings.plain())) == (settings, ())


def test_own_files_are_standardised_and_their_paths_absolute(tmp_path):
    assert made().standardize is False
    settings = resolve(Layer({"data": "mine.csv"}, folder=tmp_path))[0]
    assert settings.data == str(tmp_path / "mine.csv")
    assert settings.standardize is True
    assert made({"data": "x.csv", "standardize": False}).standardize is False
    assert made({"data": "x.csv"}, {"data": "digits"}).standardize is False


WRONG = [
    ({"round": 3}, "did you mean rounds"),
    ({"bogus_name_far_off": 3}, "known are"),
    ({"rounds": "abc"}, "rounds is 'abc'; expected a whole number"),
    ({"rounds": 0}, "rounds is 0"),
    ({"rounds": 2.0}, "rounds is 2.0; expected a whole number"),
    ({"rounds": True}, "rounds is True"),
    ({"rounds": "1" * 40}, "expected a whole number"),
    ({"clients": 10**9}, "from 1 to 1000000"),
    ({"clients": 10**6, "rounds": 10**6}, "fewer of either"),
    ({"lr": "fast"}, "lr is 'fast'; expected a number > 0"),
    ({"lr": 0}, "number > 0"),
    ({"lr": float("nan")}, "number > 0"),
    ({"lr": float("inf")}, "number > 0"),
    ({"lr": False}, "number > 0"),
    ({"momentum": 1}, r"number in \[0, 1\)"),
    ({"test": 1}, r"number in \(0, 1\)"),
    ({"data": ""}, "expected text"),
    ({"data": 3}, "expected text"),
    ({"standardize": "yes"}, "true or false"),
    ({"rules": []}, "rules is empty"),
    ({"rules": [1]}, "expected names"),
    ({"rules": "fedavgg"}, "rules: no rule is called 'fedavgg'; did you mean fedavg"),
    ({"rules": "krum:g=2"}, "rules: krum takes f"),
    ({"partition": "foo"}, "partition: no partition"),
    ({"partition": "dirichelt:1"}, r"; did you mean dirichlet\?$"),
    ({"attack": "sign-flip:1"}, r"; did you mean sign_flip\?$"),
    ({"participation": "cyclic:99"}, "participation: 99 groups"),
    ({"model": "cmn"}, "model: 'cmn' is no model"),
    ({"model": "mlp:0"}, "no model"),
    ({"attack": "sign_flip:20"}, "attack: 20 of 20 clients attack"),
    ({"attack": "flip:2"}, "attack: no attack is called"),
    ({"label_noise": "3"}, "label_noise: '3' is no label noise"),
    ({"label_noise": "21:0.5"}, "21 clients with wrong labels of 20"),
    ({"label_noise": "2:1.5"}, "no label noise"),
    ({"alpha": -1}, "alpha is -1"),
    ({"clients": "+-5"}, r"clients is '\+-5'; expected a whole number"),
    ({"seed": -1}, "seed is -1"),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[str(values)[:40] for values, _ in WRONG])
def test_a_wrong_value_is_named(values, message):
    with pytest.raises(SettingError, match=message) as caught:
        made(values)
    assert "\n" not in str(caught.value)


def test_messages_name_the_place():
    with pytest.raises(SettingError, match=r"^--rounds is 'x'"):
        resolve(Layer({"rounds": "x"}, lambda key: f"--{key}"))
    with pytest.raises(SettingError, match=r"^--attack: no attack"):
        resolve(Layer({"attack": "x:1"}, lambda key: f"--{key}"))


def test_lists_are_split_outside_of_brackets():
    assert split_list("a,b(x=1,y=[2,3]),c") == ["a", "b(x=1,y=[2,3])", "c"]
    assert split_list("a)b,c") == ["a)b", "c"]


def test_differences_name_both_values():
    one, other = made().plain(), made({"rounds": 7, "rules": "krum"}).plain()
    told = config.differences(one, other)
    assert [text.split(" (")[0] for text in told] == ["rules", "rounds"]
    assert "60 there, 7 here" in told[1]
    assert config.differences(one, one) == []


# --- TOML -----------------------------------------------------------------------------------------------------------


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@given(
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1).filter(str.strip),
    st.floats(1e-300, 1e300),
    st.booleans(),
)
def test_what_is_written_reads_back(text, number, switch):
    settings = dataclasses.replace(made(), data=f"/{text}", lr=number, standardize=switch)
    assert tomllib.loads(config_file.to_toml(settings)) == settings.plain()


def test_a_file_is_flat_or_one_section(tmp_path):
    flat = written(tmp_path / "a.toml", 'rounds = 3\nrules = ["median"]\nout = "there"\nworkers = 2\n')
    section = written(tmp_path / "b.toml", '\ufeff[federate]\nrounds = 3\nrules = "median"\nout = "there"\nworkers = 2')
    for path in (flat, section):
        layer, beside = config_file.read(path)
        assert resolve(layer)[0] == made({"rounds": 3, "rules": "median"})
        assert config_file.folder_of(beside, path) == tmp_path / "there"
        assert config.read_workers(beside["workers"]) == 2


def test_a_files_data_lie_beside_it(tmp_path):
    layer, _ = config_file.read(written(tmp_path / "a.toml", 'data = "mine.csv"'))
    assert resolve(layer)[0].data == str(tmp_path / "mine.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round = 3", r"a.toml: round is no setting; did you mean rounds\?"),
        ("rounds = 3\n[federate]\nlr = 1.0", "rounds stands outside of"),
        ("[federated]\nrounds = 3", r"\[federated\] is no section; the one there is is \[federate\]"),
        ("rounds = 'x'", "a.toml: rounds is 'x'; expected a whole number"),
        ("rounds = ", "a.toml is no TOML"),
        ("data = 3", "a.toml: data is 3; expected text"),
        ("seed = 1979-05-27", "whole number"),
    ],
)
def test_a_wrong_file_is_told(tmp_path, text, message):
    path = written(tmp_path / "a.toml", text)
    with pytest.raises((SettingError, FileError), match=message):
        resolve(config_file.read(path)[0])


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        config_file.read(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="cannot be read"):
        config_file.read(tmp_path / "bytes.toml")
    with pytest.raises(SettingError, match="name of a folder"):
        config_file.folder_of({"out": 3}, tmp_path / "a.toml")


def test_workers():
    assert config.read_workers(None) >= 1
    with pytest.raises(SettingError, match=r"--workers is '0'|--workers is 0"):
        config.read_workers("0")
