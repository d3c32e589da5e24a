"""The world as the command's settings name it, end to end."""

import numpy as np
import pytest
from federations import federation

from pluribus.federated import config, experiment, simulate
from pluribus.federated.data import digits
from pluribus.federated.errors import SettingError
from pluribus.federated.server import FedAvg


def run(**settings):
    return simulate(federation(**settings), FedAvg(), seed=0, rounds=4)


def test_speeds_make_seconds_and_links_make_them_longer():
    even = run(speeds="tiers:1:2")
    steps = [len(client) for client in federation().clients]
    assert even.history.time[0] == max(-(-n // 32) * (1 + i % 2) for i, n in enumerate(steps))
    slow = run(speeds="tiers:1:2", link="1000")
    model = even.history.bytes_down[0] / 5
    assert slow.history.time[0] == pytest.approx(even.history.time[0] + 2 * model / 1000, rel=0.3)


def test_compression_travels_and_keeps_the_rest():
    sent = run(channel="topk:0.1")
    assert sent.history.bytes_up[-1] < 0.3 * sent.history.bytes_down[-1]
    assert all("channel" in memory for memory in sent.memories.values())


def test_who_drops_out_is_not_in_the_round():
    assert not run(dropout=0.5).history.present.all()


def test_groups_that_disagree_about_labels_are_measured_in_their_own():
    setup = federation(shift="labels:2")
    assert not np.array_equal(setup.tests(0).y, setup.tests(1).y)
    np.testing.assert_array_equal(setup.true_counts[1], setup.clients[1].counts)
    history = simulate(setup, FedAvg(), seed=0, rounds=2).history
    assert np.isfinite(history.client_accuracy).all()
    # A global model is measured as personal ones are, and not on the kind of the first group alone.
    assert history.accuracy[-1] == history.client_accuracy.mean()


def test_a_trace_file_belongs_to_the_results(tmp_path):
    (tmp_path / "who.csv").write_text("round,0,1,2,3,4\n0,1,1,0,0,1\n1,0,0,1,1,0\n")
    layer = config.Layer({"participation": "trace:who.csv", "clients": 5, "attack": "none"}, folder=tmp_path)
    settings = config.resolve(layer)[0]
    assert settings.participation == f"trace:{tmp_path / 'who.csv'}"
    before = experiment.binding_of(settings, digits())
    (tmp_path / "who.csv").write_text("round,0,1,2,3,4\n0,1,1,0,0,0\n1,0,0,1,1,1\n")
    assert experiment.binding_of(settings, digits()) != before
    assert run(participation=settings.participation).history.present[0].tolist() == [True, True, False, False, False]


def test_attackers_that_remember_and_that_know_the_rule():
    for attack in ("free_rider:1:delta", "mimic:1", "alie:2:adaptive"):
        made = simulate(federation(attack=attack), FedAvg(), seed=0, rounds=3)
        assert ("attack" in made.world) == ("alie" not in attack)


@pytest.mark.parametrize(
    "settings", [{"schedule": "never"}, {"speeds": "fast"}, {"channel": "zip"}, {"dropout": 1.0}, {"shift": "up:1"}]
)
def test_settings_that_mean_nothing_are_named(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        federation(**settings)
