"""Which backend a problem gets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pluribus.core import kernels
from pluribus.core.errors import MissingExtraError, RuleError


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("PLURIBUS_KERNELS", raising=False)
    kernels._compiled.cache_clear()
    yield
    kernels._compiled.cache_clear()


def test_small_problems_stay_plain():
    assert kernels.select(kernels.WORTH_COMPILING - 1) is kernels.plain


def test_large_problems_are_compiled(monkeypatch):
    pytest.importorskip("numba", reason="numba is not installed: pip install 'pluribus[fast]'")
    assert kernels.select(kernels.WORTH_COMPILING).NAME == kernels.backend() == "compiled"
    monkeypatch.setenv("PLURIBUS_KERNELS", "plain")
    assert kernels.backend() == "plain"
    monkeypatch.setenv("PLURIBUS_KERNELS", "compiled")
    assert kernels.select(1).NAME == "compiled"


def test_without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert kernels.select(kernels.WORTH_COMPILING) is kernels.plain
    assert kernels.backend() == "plain"
    monkeypatch.setenv("PLURIBUS_KERNELS", "compiled")
    with pytest.raises(MissingExtraError, match=r"pip install 'pluribus\[fast\]'"):
        kernels.select(1)


def test_an_unknown_choice(monkeypatch):
    monkeypatch.setenv("PLURIBUS_KERNELS", "fast")
    with pytest.raises(RuleError, match="auto, plain or compiled, not 'fast'"):
        kernels.select(1)


def test_numba_is_not_imported_before_it_is_needed():
    code = "import sys; from pluribus.core import kernels; kernels.select(1000); print('numba' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize("n", [1, 2, 10, 100, 1000, 10**6])
@pytest.mark.parametrize("itemsize", [4, 8])
def test_tile_size(n, itemsize):
    size = kernels.tile_size(n, itemsize)
    assert size & (size - 1) == 0
    assert size >= 2048
    assert size == 2048 or n * size * itemsize <= 1 << 25
