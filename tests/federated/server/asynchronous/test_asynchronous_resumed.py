"""Asynchronous runs that are broken off while jobs are under way go on with the same bits."""

import pytest
from federations import federation
from server_rounds import same_bits

from pluribus.federated import checkpoint, server, simulate
from pluribus.federated.checkpoint import Clock
from pluribus.federated.simulation import advance, begin

ROUNDS = 12


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("fedbuff", "buffer:2"),
        ("fedasync", "async:3"),
        ("asyncfeded", "async"),
        ("fedfix", "window:3"),
        ("delayed_nesterov:speeds=measured", "async"),
        ("mifa", "window:3"),
        ("fedstale:rates=estimated", "buffer:2"),
        ("ca_fed", "window:3"),
    ],
)
def test_broken_off_in_mid_flight(text, schedule, tmp_path):
    setup, rule = federation(speeds="lognormal:1:0.2", schedule=schedule), server.parse(text)
    whole = simulate(setup, rule, seed=3, rounds=ROUNDS)
    assert (whole.history.staleness > 0).any()
    part = begin(setup, rule, 3, ROUNDS)
    for _ in range(ROUNDS // 2):
        part = advance(setup, rule, 3, part)
    assert part.world.get("flights"), "nothing is under way"
    checkpoint.save(tmp_path / "run", part, "me", Clock())
    again, _ = checkpoint.load(tmp_path / "run", "me")
    resumed = simulate(setup, rule, seed=3, rounds=ROUNDS, start=again)
    for part_of in ("state", "memories", "world"):
        same_bits(getattr(resumed, part_of), getattr(whole, part_of))
