"""Importing pluribus is light."""

from __future__ import annotations

import subprocess
import sys

HEAVY = "torch numba ray pandas matplotlib sklearn scipy flwr hypothesis jinja2 rich click"
CODE = f"""
import sys, time, numpy
start = time.process_time()
import pluribus
taken = time.process_time() - start
found = [m for m in {HEAVY.split()!r} if m in sys.modules]
assert not found, found
assert taken < 0.3, taken
pluribus.aggregate([numpy.ones(3)] * 5, rule="krum", f=1)
found = [m for m in {HEAVY.split()[:6]!r} if m in sys.modules]
assert not found, found
"""


def test_import_is_fast_and_brings_nothing_heavy():
    subprocess.run([sys.executable, "-c", CODE], check=True)


def test_unknown_attribute():
    import pluribus

    assert "aggregate" in dir(pluribus)
    assert not hasattr(pluribus, "aggregatee")
