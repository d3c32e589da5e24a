"""The example deployed: a SuperLink, SuperNodes and a ServerApp as processes of their own, killed and lied to.

One story, because each of Flower's processes takes a second of the processor: a bad client in three ways, a client
killed while it trains, the server killed between two rounds and started again.
"""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
from flower_federation import context_of, example_modules, one_round

from pluribus.federated.flower import by_node, strategy
from pluribus.federated.flower_checkpoint import load
from pluribus.federated.training import LocalTraining

RULE, OWNER = "fedavgm:momentum=0.5", "fedavgm:momentum=0.5 with seed 0"
BAD, VICTIM, HONEST, STRANGER = 0, 1, 2, 3


@pytest.fixture(scope="module")
def example():
    with example_modules() as found:
        yield found


def until(here, happened, name, seconds=100.0):
    """Wait for something; the log of a process tells why it did not come."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"{seconds} seconds are over; the log of {name} ends\n{here.log(name)[-3000:]}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def story(example, tmp_path_factory):
    """What happened: logs, the server's notes, the checkpoint before the server was killed and at the end."""
    folder = tmp_path_factory.mktemp("deployed")
    with example.deploy.Deployment(folder, nodes=4, seconds=100.0) as here:
        checkpoint, victim = here.output / "checkpoint.safetensors", f"node-{VICTIM}"
        settings = {"rule": RULE, "rounds": 3, "nodes": 2, "grace": 4.0}
        here.superlink()
        here.register(BAD, VICTIM, HONEST)
        here.supernode(STRANGER)
        here.supernode(BAD, fault="nan,shapes,huge")
        here.supernode(VICTIM)
        here.supernode(HONEST)
        here.run(**settings)
        until(here, lambda: here.log(victim).count("Receiving: train") == 2, victim)
        here.kill(victim)
        # Accuracy is noted before the first round, after it, and after the second; the log comes a little later.
        until(here, lambda: len(here.rounds()) == 3 and here.log("run").count("Global evaluation\n") == 2, "run")
        here.kill("superlink")
        here.kill("run")
        first, before = here.log("run"), load(checkpoint, OWNER)
        here.superlink()
        here.run(**settings)
        ended = here.wait()
        stranger = here.processes[f"node-{STRANGER}"].poll()
        pids = [pid for process in here.processes.values() for pid in (process.pid, *example.deploy.below(process.pid))]
        ids = [int(re.search(r"SuperNode ID: (\d+)", here.log(f"node-{i}"))[1]) for i in range(3)]
    return SimpleNamespace(
        ended=ended,
        stranger=(stranger, here.log(f"node-{STRANGER}")),
        pids=pids,
        ids=ids,
        rounds=here.rounds(),
        logs=(first, here.log("run").removeprefix(first)),
        before=before,
        after=load(checkpoint, OWNER),
        superlink=here.log("superlink"),
    )


def test_accuracy_rises_through_all_of_it(story):
    assert story.ended == "finished:completed"
    assert [line["round"] for line in story.rounds] == [0, 1, 2, 2, 3]  # the one before the restart is measured again
    accuracy = [line["accuracy"] for line in story.rounds]
    assert accuracy[2] == accuracy[3]
    assert accuracy[0] < 0.3 < accuracy[1] < accuracy[4]


def test_a_bad_client_is_named_with_its_reason_each_time(story):
    bad = story.ids[BAD]
    for log, why in (
        (story.logs[0], f"Left out node {bad}: it sent NaN or Inf"),
        (story.logs[0], f"'node {bad}': tensor 'hidden.weight' has shape (31, 64), expected (32, 64)"),
        (story.logs[0], f"Left out node {bad}: it sent what cannot be combined"),
        (story.logs[1], f"node {bad} sent an update of norm"),
        (story.logs[1], f"Left out node {bad}: it sent an update that is too long"),
    ):
        assert why in log, log
    left_out = [set(map(int, re.findall(r"Left out node (\d+)", log))) for log in story.logs]
    assert left_out == [{bad, story.ids[VICTIM]}] * 2


def test_a_client_killed_in_mid_round_is_survived(story):
    assert f"Left out node {story.ids[VICTIM]}: it did not answer" in story.logs[0]
    assert story.before["rounds"] == 2
    assert f"'pluribus/weight/{story.ids[HONEST]}': 1.0" in story.logs[0].split("[ROUND 2/3]")[1]


@pytest.mark.usefixtures("identity")
def test_the_server_goes_on_with_the_rules_state(story, example):
    """The last round, done here again from the checkpoint before the kill: the same bits, which take the momentum."""
    assert "after round 2 of 3" in story.logs[1]
    assert story.after["rounds"] == 3
    assert sorted(story.after["nodes"].tolist()) == sorted(story.ids)
    assert np.abs(story.before["state/momentum/output.weight"]).max() > 0

    def client(message):
        node = message.metadata.dst_node_id
        return example.client_app.app(message, context_of(node, **{"partition-id": HONEST, "num-partitions": 4}))

    here = strategy(RULE, min_train_nodes=1, min_available_nodes=1, how=LocalTraining(epochs=2, lr=0.2))
    here.load_state_dict(story.before)
    _, metrics = one_round(here, {story.ids[HONEST]: client}, here.arrays(), 3)
    assert by_node(metrics) == {story.ids[HONEST]: 1.0}
    for name, value in here.state_dict().items():
        np.testing.assert_array_equal(story.after[name], value, err_msg=name)


def test_nobody_is_let_in_without_a_key_that_is_registered_and_all_of_it_is_encrypted(story):
    code, log = story.stranger
    assert code
    assert "Failed to activate SuperNode" in log
    assert story.superlink.count("Uvicorn running on https://127.0.0.1:") == 2
    assert "Uvicorn running on http://" not in story.superlink


def test_no_process_is_left(story, example):
    assert len(story.pids) >= 5  # the SuperLink and two SuperNodes, and a SuperExec of each
    assert not example.deploy.running().keys() & set(story.pids)
