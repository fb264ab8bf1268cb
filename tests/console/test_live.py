"""A page that is open while a run goes on shows each new step, and its curves are not drawn again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lightning_core.records.types import Metrics, Run
from lightning_core.stores.sqlite import SqliteStore
from tests.console.conftest import JOB, command, opening, serving

STEPS = 4
SECONDS = 240_000.0
"""In which a run must have ended, in milliseconds; machines may be busy."""


def test_steps_appear_while_the_run_goes_on(browser: Any, tmp_path: Path) -> None:
    folder, opened = tmp_path / "live", tmp_path / "opened"
    training = subprocess.Popen(
        command("train", str(JOB), "--folder", str(folder), "--steps", str(STEPS)),
        env=os.environ | {"WAIT_FOR": str(opened)},
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
            opened.touch()
            canvas = page.locator("figure.chart", has_text="Reward").first.locator("canvas")
            canvas.wait_for(timeout=SECONDS)
            canvas.evaluate("one => { one.kept = true }")
            page.locator("summary").click()
            page.locator(".tiles a").first.focus()
            while STEPS not in seen:
                assert training.poll() in (None, 0)
                seen.add(shown_steps(page))
                page.wait_for_timeout(200)
            page.locator(".tiles .status.finished").wait_for(timeout=SECONDS)
            assert min(seen) == 0
            assert canvas.evaluate("one => one.kept")
            assert page.locator("details[open] .facts").first.is_visible()
            assert page.evaluate("document.activeElement.closest('.tiles') !== null")
            assert page.locator("#live").inner_text() == "finished"
    finally:
        training.terminate()
        training.wait()
    assert os.path.isfile(folder / "summary.json")


def test_the_console_opens_a_run_once_its_trainer_says_how(tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    training = subprocess.Popen(
        command("train", str(JOB), "--folder", str(folder)),
        env=os.environ | {"WAIT_FOR": str(tmp_path / "never")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert training.stderr is not None
        lines = iter(training.stderr.readline, "")
        said = next(line for line in lines if "agentlightning console" in line)
        assert said.split()[-1] == str(folder)
        with serving(str(folder)) as address:
            assert address.startswith("http://127.0.0.1:")
    finally:
        training.kill()
        training.communicate()


def test_a_run_of_thousands_of_steps_shows_how_many_there_were(browser: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    put(url, *range(2000))
    with serving(url) as address, opening(browser, f"{address}#/long") as page:
        page.locator(".tiles").wait_for()
        assert shown_steps(page) == 2000
        assert page.locator(".tiles").inner_text().endswith("33 min 20 s")
        put(url, 2000)
        page.get_by_text("33 min 21 s").wait_for()
        assert shown_steps(page) == 2001


def put(url: str, *steps: int) -> None:
    """Record these steps of a run, of a second each. In a thread without a loop: the browser's runs here."""

    async def record() -> None:
        async with SqliteStore(url) as store:
            await store.put_run(Run(id="long", status="running"))
            for step in steps:
                values = {"reward": step % 7 / 7, "step_seconds": 1.0}
                await store.put_metrics(Metrics(run_id="long", step=step, values=values))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, record()).result()


def shown_steps(page: Any) -> int:
    tile = page.locator(".tiles div", has=page.locator("dt", has_text="step")).first
    return int(tile.locator("dd").inner_text().split()[0].replace(",", ""))
