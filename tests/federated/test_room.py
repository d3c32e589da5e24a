"""The room as a whole: light to import, and every public name is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pluribus import federated

HEAVY = "numpy sklearn scipy torch numba click rich jinja2 safetensors"
CODE = f"""
import sys
import pluribus.federated
found = [m for m in {HEAVY.split()!r} if m in sys.modules]
assert found in ([], ["numpy"]), found
"""


def test_importing_the_room_brings_nothing_heavy():
    subprocess.run([sys.executable, "-c", CODE], check=True)


@pytest.mark.parametrize("name", federated.__all__)
def test_public_names(name):
    assert name in dir(federated)
    assert getattr(federated, name) is not None


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'experimentt'"):
        federated.experimentt  # noqa: B018
