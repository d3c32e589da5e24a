"""Without Flower its module says what to install, and nothing else needs it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
sys.modules["flwr"] = None
import pluribus.federated.server
from pluribus.core.errors import MissingExtraError
try:
    import pluribus.federated.flower
except MissingExtraError as error:
    assert "pip install 'pluribus[flower]' (in a clone: pip install '.[flower]')" in str(error), error
else:
    raise AssertionError("imported without Flower")
"""


def test_a_sentence_that_names_the_extra():
    subprocess.run([sys.executable, "-c", CODE], check=True)
