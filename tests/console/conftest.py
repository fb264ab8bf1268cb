"""A finished run, a console over it as a user starts it, and a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import pytest

JOB = Path(__file__).parent / "job.py"
CHROMIUM = which("chromium")
STEPS = 3
WAITED = 120_000.0
"""Milliseconds that a browser may take on a busy machine; a test asserts no time."""


def command(*given: str) -> list[str]:
    return [sys.executable, "-m", "lightning_core.cli", *given]


@contextmanager
def serving(what: str, *given: str) -> Iterator[str]:
    """The address that the command prints, while it serves."""
    process = subprocess.Popen(command("console", what, *given), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield process.stderr.readline().strip()
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    subprocess.run(command("train", str(JOB), "--folder", str(folder)), check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def address(finished: Path) -> Iterator[str]:
    with serving(str(finished), "--reward", f"{JOB}:turned") as printed:
        yield printed


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. Without it these tests are skipped, except where it must be (`REQUIRE_CHROMIUM=1`).

    For one file: while Playwright is there its event loop runs in this thread, and no test can run another.
    """
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        assert not os.environ.get("REQUIRE_CHROMIUM"), "no chromium: apt-get install chromium"
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@contextmanager
def opening(browser: Any, address: str, **given: Any) -> Iterator[Any]:
    """A page at an address. Afterwards nothing has been asked of another host, and no script has failed."""
    with browser.new_context(**given) as context:
        page = context.new_page()
        page.set_default_timeout(WAITED)
        asked: list[str] = []
        problems: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.goto(address)
        yield page
        base = address.partition("?")[0]
        assert [url for url in asked if not url.startswith((base, "data:"))] == []
        assert problems == []
