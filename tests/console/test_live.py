"""A page that is open while a run goes on shows each new step, and its curves are not drawn again."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.console.conftest import JOB, command, opening, serving

STEPS = 4
SECONDS = 240_000.0
"""In which a run must have ended, in milliseconds; machines may be busy."""


def test_steps_appear_while_the_run_goes_on(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    training = subprocess.Popen(
        command("train", str(JOB), "--folder", str(folder), "--steps", str(STEPS)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (folder / "run.json").exists():
            assert training.poll() is None
            time.sleep(0.1)
        with serving(str(folder)) as address, opening(browser, address) as page:
            page.locator(".tiles").wait_for()
            assert page.locator(".status").first.inner_text() == "running"
            seen = {shown_steps(page)}
            canvas = page.locator("figure.chart", has_text="Reward").first.locator("canvas")
            canvas.wait_for(timeout=SECONDS)
            canvas.evaluate("one => { one.kept = true }")
            while STEPS not in seen:
                assert training.poll() in (None, 0)
                seen.add(shown_steps(page))
                page.wait_for_timeout(200)
            page.locator(".tiles .status.finished").wait_for(timeout=SECONDS)
            assert len(seen) > 1
            assert canvas.evaluate("one => one.kept")
            assert page.locator("#live").inner_text() == "live"
    finally:
        training.terminate()
        training.wait()
    assert os.path.isfile(folder / "summary.json")


def shown_steps(page: Any) -> int:
    tile = page.locator(".tiles div", has=page.locator("dt", has_text="step")).first
    return int(tile.locator("dd").inner_text().split()[0])
