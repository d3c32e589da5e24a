"""Contact of satellites and gateways, the weights made of it (SemSpaceFL), and what they are for."""

import numpy as np
import pytest
from federations import federation

from pluribus.core.errors import RuleError
from pluribus.federated.seeding import generator
from pluribus.federated.server import Hierarchy
from pluribus.federated.server.base import Round
from pluribus.federated.topology import Orbit, contact_weights, devices


def test_contact_is_the_share_of_the_round_in_the_arc():
    for orbit in (Orbit(7, 3, 5.0), Orbit(5, 2, 1.0, arc=0.3), Orbit(6, 4, 8.5, arc=0.1), Orbit(4, 1, 3.0)):
        for number in range(4):
            contact = orbit.contact(number)
            arc = orbit.arc or 1 / orbit.gateways
            for i in range(orbit.satellites):
                for g in range(orbit.gateways):
                    fine = (np.arange(4000) + 0.5) / 4000
                    angle = (i / orbit.satellites + (number + fine) / orbit.period - g / orbit.gateways) % 1
                    assert contact[i, g] == pytest.approx((angle < arc).mean(), abs=2e-3)
            if orbit.arc is None:
                np.testing.assert_allclose(contact.sum(axis=1), 1, atol=1e-12)


def test_the_constellation_turns():
    orbit = Orbit(6, 3, 6.0)
    assert set(orbit.association(0)) == {0, 1, 2}
    assert (orbit.association(6) == orbit.association(0)).all()
    assert (np.roll(orbit.association(1), 1) == orbit.association(0)).all()
    assert (Orbit(8, 2, 4.0, arc=0.1).association(0) == -1).any()


def test_contact_weights_written_out_and_flat_without_mobility():
    rng = np.random.default_rng(0)
    sizes, contact = rng.integers(1, 40, size=6).astype(float), rng.uniform(0.1, 1, size=(6, 2))
    group = np.array([0, 1, 0, 1, 1, -1])
    inner, outer = contact_weights(sizes, contact, group)
    for g in range(2):
        here = np.flatnonzero(group == g)
        counted = sizes[here] * contact[here, g]
        np.testing.assert_allclose(inner[g, here], counted / counted.sum())
        assert inner[g].sum() == pytest.approx(1)
    assert (outer @ inner)[5] == 0
    np.testing.assert_allclose(outer.sum(), 1)
    inner, outer = contact_weights(sizes, np.ones((6, 2)), np.array([0, 1, 0, 1, 1, 0]))
    np.testing.assert_allclose(outer @ inner, sizes / sizes.sum(), rtol=1e-14)


def test_contact_aware_weights_converge_in_fewer_rounds_than_sizes():
    """A link whose noise grows as contacts shorten: variance 64 (1 / c - 1) times that of the update.

    With an unbiased sparse link (each coordinate arrives with odds c, divided by c) the two did not separate.
    """
    needed = {True: [], False: []}
    for seed in range(3):
        setup = federation(seed=seed, clients=8, partition="dirichlet:0.3", model="mlp:16", lr=0.1)
        orbit = Orbit(8, 2, 8.3, arc=0.13)
        for aware in (True, False):
            rule = Hierarchy(groups=2, period=8.3, arc=0.13, contact=aware)
            state = rule.init(devices.start(setup, seed), 8)
            done = 31
            for number in range(30):
                contact = orbit.contact(number).max(axis=1)
                here = np.flatnonzero(contact > 0.02).tolist()
                ends = devices.trained(setup, dict.fromkeys(here, state["params"]), seed, number)
                updates = []
                for i in here:
                    rng = generator(seed, "test.link", number, i)
                    change = {name: value - state["params"][name] for name, value in ends[i].items()}
                    noise = 8 * np.sqrt(1 / contact[i] - 1)
                    updates.append(
                        {n: v + noise * rng.normal(size=v.shape) * np.sqrt((v**2).mean()) for n, v in change.items()}
                    )
                sizes = setup.sizes[here].astype(float)
                state = rule.step(state, Round(number, tuple(here), updates, sizes, 8, float(setup.sizes.sum())))
                if devices.accuracy(setup, state["params"]) >= 0.6:
                    done = number + 1
                    break
            needed[aware].append(done)
    assert np.mean(needed[True]) < 0.9 * np.mean(needed[False]), needed


def test_bad_parameters():
    for options in ((0, 1, 2.0), (2, 0, 2.0), (2, 1, 0.5), (2, 1, 2.0, 1.5), (2, 1, 2.0, 0.0)):
        with pytest.raises(RuleError):
            Orbit(*options)
