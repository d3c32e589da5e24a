"""A browser that tells what its console said."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from report_samples import Visit


@pytest.fixture(scope="session")
def browser() -> str:
    """Path of a Chromium; without one the test is skipped, in CI it fails."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    reason = "no chromium, chromium-browser or google-chrome on the PATH to open the page with"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def visit(browser: str, tmp_path: Path) -> Callable[..., Visit]:
    """Open a page in a headless browser of its own, without a network, and read its document and console."""

    def open_page(html: str, *, size: str = "1100,900") -> Visit:
        number = len(list(tmp_path.glob("page*.html")))
        page = tmp_path / f"page{number}.html"
        page.write_text(html, encoding="utf-8")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        command += [f"--user-data-dir={tmp_path / f'profile{number}'}", f"--window-size={size}"]
        command += ["--virtual-time-budget=3000", "--enable-logging=stderr", "--v=0", "--dump-dom", page.as_uri()]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        console = [line for line in done.stderr.decode(errors="replace").splitlines() if ":CONSOLE" in line]
        return Visit(done.stdout.decode(), console)

    return open_page
