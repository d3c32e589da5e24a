"""What the README and the docs show is run as it stands."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]


def blocks(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_python_blocks_run(page, tmp_path):
    """In one process for a page, in order, in an empty folder that holds the files that the README names."""
    import numpy as np
    from safetensors.numpy import save_file

    import pluribus.rules  # noqa: F401 - registers the rules before the registry is copied
    from pluribus.core import registry

    for name in "abc":
        save_file({"w": np.ones(3, np.float32)}, tmp_path / f"{name}.safetensors")
    before, known = Path.cwd(), dict(registry._REGISTRY)
    os.chdir(tmp_path)
    try:
        scope: dict[str, object] = {"__name__": "docs"}
        for number, block in enumerate(blocks(page)):
            exec(compile(block, f"{page}, block {number}", "exec", dont_inherit=True), scope)
    finally:
        os.chdir(before)
        registry._REGISTRY.clear()
        registry._REGISTRY.update(known)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith(("http://", "https://")):
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_pages_written_from_the_code_are_current():
    """`python docs/make.py` writes them. Pictures are only there: their last digit is the processor's."""
    made = runpy.run_path(str(ROOT / "docs" / "make.py"))["pages"]()
    stale = [
        str(path.relative_to(ROOT))
        for path, text in made.items()
        if not path.exists() or (path.suffix == ".md" and path.read_text(encoding="utf-8") != text)
    ]
    assert not stale, "run `python docs/make.py`"
