"""The console's cost, and the pictures of its pages.

python -m benchmarks.console speed                 # a store of 100,000 calls: processor time, memory, waiting
python -m benchmarks.console training              # a training with an open page in every other step, drawn
python -m benchmarks.console pictures runs/demo    # each page of that run, and of the runs beside it

Processor time is the console's own, as the kernel counts it, so a busy machine changes it little; what a
person waits for is wall time. Needs Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from shutil import which
from statistics import fmean, median
from typing import Any, Final

import httpx
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from benchmarks.intervals import mean_of
from benchmarks.processes import children, cpu_seconds, rss_bytes
from lightning_core.credit.whole import uniform
from lightning_core.insight.why import CREDIT, Method
from lightning_core.records.types import (
    Call,
    Choice,
    Credited,
    Metrics,
    Reward,
    Rollout,
    Run,
    Status,
    Task,
    ToolEvent,
)
from lightning_core.stores.sqlite import SqliteStore

RUN: Final = "long"
GROUP, GROUPS, PER_ROLLOUT = 8, 8, 3
"""Rollouts of a task, tasks of a step, calls of a rollout."""
AGENTS: Final = ("planner", "writer", "checker")
REPLY: Final = 40
"""Tokens of a reply."""
ASKED: Final = 5
"""Times that each answer is asked for."""
TRAINED: Final = ("examples/words/train.py", "--steps", "22")
BEGUN: Final = 2
"""Steps at the start that are not counted: in them the console and the browser start."""
LARGEST: Final = 80_000
"""Bytes of a picture."""
OUT: Final = Path("docs/pictures")


def main() -> None:
    """Measure, or take pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "training", "pictures"))
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--calls", type=int, default=100_000)
    given = parser.parse_args()
    match given.what:
        case "speed":
            measure_speed(given.calls)
        case "training":
            measure_training()
        case "pictures":
            take_pictures(given.run)


@contextmanager
def serving(what: str) -> Iterator[tuple[str, int]]:
    """The printed address of a console, and its process."""
    command = [sys.executable, "-m", "lightning_core.cli", "console", what]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield process.stderr.readline().strip(), process.pid
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def opening(address: str, **given: Any) -> Iterator[Page]:
    """A page in Chromium."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(**given)
        page.set_default_timeout(120_000)
        page.goto(address)
        yield page
        browser.close()


# a long run -----------------------------------------------------------------------------------
async def fill(url: str, calls: int) -> int:
    """A run of so many calls, credited as a trainer does; returns its steps."""
    chance = random.Random(0)
    steps = calls // (GROUP * GROUPS * PER_ROLLOUT)
    method = Method(uniform).written()
    async with SqliteStore(url) as store:
        await store.put_run(Run(id=RUN, status="finished", config={CREDIT: [method]}))
        for step in range(steps):
            rollouts = [_rollout(step, place, chance) for place in range(GROUP * GROUPS)]
            await store.enqueue(rollouts)
            ended = [one for one in rollouts if one.reward is not None]
            await store.add_rewards([_final(one) for one in ended])
            made = [_call(one, turn, chance) for one in rollouts for turn in range(PER_ROLLOUT)]
            await asyncio.gather(*(store.add_call(one) for one in made))
            await store.add_events([_tool(one) for one in rollouts])
            await store.add_credited(
                [Credited(rollout_id=str(o.rollout_id), attempt=1, call_id=o.id, weight=1.0) for o in made]
            )
            await store.put_metrics(_metrics(step, chance))
    return steps


def _rollout(step: int, place: int, chance: random.Random) -> Rollout:
    group = f"{RUN}-t{step}-{place // GROUP}"
    failed = chance.random() < 0.02
    return Rollout(
        id=f"{group}-{place % GROUP}",
        run_id=RUN,
        task=Task(input={"question": f"How many orders did customer {place // GROUP} of {step} place?"}),
        group_id=group,
        step=step,
        place=f"{place // GROUP}-{place % GROUP}",
        status=Status.FAILED if failed else Status.SUCCEEDED,
        attempts=1,
        reward=None if failed else float(chance.random() < 0.5),
        error="RuntimeError: the database is away\n  at app.py:12 in solve" if failed else None,
        finished_at=float(step),
    )


def _final(rollout: Rollout) -> Reward:
    return Reward(rollout_id=rollout.id, attempt=1, value=rollout.reward or 0.0, id="final")


def _call(rollout: Rollout, turn: int, chance: random.Random) -> Call:
    words = ["select", "count", "(", "*", ")", "from", "orders", "where", "customer", "="]
    said = " ".join(chance.choices(words, k=REPLY))
    return Call(
        id=f"c{turn}",
        rollout_id=rollout.id,
        attempt=1,
        agent=AGENTS[turn % len(AGENTS)],
        trained=turn != 2,
        policy_version=rollout.step,
        started_at=rollout.step + turn / 10,
        ended_at=rollout.step + turn / 10 + 0.1,
        request={"messages": [{"role": "user", "content": f"{rollout.task.input['question']} {said}"}]},
        prompt_ids=list(range(60)),
        choices=[
            Choice(
                completion_ids=list(range(REPLY)),
                logprobs=[-chance.random() for _ in range(REPLY)],
                message={"role": "assistant", "content": said},
            )
        ],
    )


def _tool(rollout: Rollout) -> ToolEvent:
    about = {"rollout_id": rollout.id, "attempt": 1, "agent": AGENTS[1], "call_id": "c1", "name": "run_sql"}
    times = {"started_at": rollout.step + 0.2, "ended_at": rollout.step + 0.25}
    return ToolEvent.model_validate({"id": "t", "arguments": "{}", "result": "3", **about, **times})


def _metrics(step: int, chance: random.Random) -> Metrics:
    names = (
        "reward",
        "entropy",
        "kl_reference",
        "clip_share",
        "grad_norm",
        "loss",
        "tokens",
        "staleness_mean",
    )
    seconds = {"step_seconds": 4.0, "collect_seconds": 2.0, "update_seconds": 1.5, "publish_seconds": 0.2}
    agents = {f"agent/{name}/{each}": 64.0 for name in AGENTS for each in ("calls", "completion_tokens")}
    drawn = {name: chance.random() for name in names}
    return Metrics(run_id=RUN, step=step, values={"rollouts": 64.0, **drawn, **seconds, **agents})


# how fast it answers --------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Line:
    """One figure."""

    what: str
    figure: str
    goal: str = ""


def measure_speed(calls: int) -> None:
    """Print a table of Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        steps = asyncio.run(fill(url, calls))
        size = Path(folder, "store.db").stat().st_size / 1e6
        print(f"{calls:,} calls in {steps:,} steps, {size:,.0f} MB", flush=True)
        began = time.perf_counter()
        with serving(url) as (address, process):
            client = httpx.Client(base_url=address.partition("/?")[0], timeout=600.0, trust_env=False)
            lines = [*_first_page(client, address, process, began), *_answers(client, process, steps)]
            lines.append(Line("memory after all of them", f"{rss_bytes(process) / 1e6:.0f} MB", "250 MB"))
            lines += _in_the_browser(address, url, steps)
            lines.append(Line("memory at the end", f"{rss_bytes(process) / 1e6:.0f} MB", "250 MB"))
    print("| what | measured | goal |\n|---|---|---|")
    for line in lines:
        print(f"| {line.what} | {line.figure} | {line.goal} |")


def _first_page(client: httpx.Client, address: str, process: int, began: float) -> Iterator[Line]:
    client.get(address)
    for path in ("/", "/assets/app.js", "/assets/uplot.js", "/api/runs", f"/api/run?run={RUN}"):
        client.get(path).raise_for_status()
    wall = time.perf_counter() - began
    yield Line(
        "first page, from the command on", f"{cpu_seconds(process):.2f} s CPU, {wall:.1f} s", "3 s CPU, 5 s"
    )


def _answers(client: httpx.Client, process: int, steps: int) -> Iterator[Line]:
    rollout = f"{RUN}-t{steps // 2}-0-0"
    for what, path in (
        ("tick", f"run?since={steps}"),
        ("run", "run?"),
        ("list of runs", "runs?"),
        ("newest rollouts", "rollouts?"),
        ("worst rollouts", "rollouts?order=worst"),
        ("most surprising of a step", f"rollouts?order=surprising&step={steps // 2}&split=train"),
        ("failed rollouts", "rollouts?status=failed"),
        ("rollouts with an agent", f"rollouts?agent={AGENTS[0]}"),
        ("rollouts with words that none has", "rollouts?text=nowhere"),
        ("one rollout, with why", f"rollout?id={rollout}"),
        ("why: a step", f"step?step={steps // 2}"),
        ("what if", f"whatif?step={steps // 2}&credit=relevance"),
        ("time", "time?"),
        ("compare", f"compare?with={RUN}"),
        ("advice", "advice?"),
        ("models", "models?"),
    ):
        cost = _cpu(process, lambda path=path: client.get(f"/api/{path}&run={RUN}").raise_for_status())  # type: ignore[misc]
        yield Line(what, f"{cost * 1000:.0f} ms CPU", "100 ms")


def _cpu(process: int, ask: Callable[[], object]) -> float:
    """Processor seconds of one, the mean of several after the first."""
    ask()
    before = cpu_seconds(process)
    for _ in range(ASKED):
        ask()
    return (cpu_seconds(process) - before) / ASKED


def _in_the_browser(address: str, url: str, steps: int) -> Iterator[Line]:
    with opening(address, viewport={"width": 1280, "height": 800}) as page:
        page.locator("figure.chart canvas").first.wait_for()
        waited = [_new_step(page, url, steps + number) for number in range(5)]
        yield Line(
            "a new step, from the store to the screen",
            f"{median(waited):.1f} s, most {max(waited):.1f} s",
            "3 s",
        )
        for what, place, sign in (
            ("run", "", "figure.chart canvas"),
            ("rollouts", "/rollouts", "table.rollouts tbody tr"),
            ("a rollout", f"/rollout/{RUN}-t{steps // 2}-0-0", "button.step"),
            ("why", f"/why?step={steps // 2}", "td"),
            ("time", "/time", ".shares"),
        ):
            page.goto("about:blank")
            began = time.perf_counter()
            page.goto(f"{address.partition('/?')[0]}/#/{RUN}{place}")
            page.locator(sign).first.wait_for()
            yield Line(f"page: {what}", f"{time.perf_counter() - began:.1f} s", "")


def _new_step(page: Page, url: str, step: int) -> float:
    """Seconds from a step's record in the store to its number on the page."""
    _elsewhere(lambda: asyncio.run(_put(url, step)))
    began = time.perf_counter()
    page.wait_for_function(
        "n => document.querySelector('.tiles').innerText.replaceAll(',', '').includes(n)", arg=str(step + 1)
    )
    return time.perf_counter() - began


async def _put(url: str, step: int) -> None:
    async with SqliteStore(url) as store:
        await store.put_metrics(_metrics(step, random.Random(step)))


def _elsewhere(do: Callable[[], Any]) -> Any:
    """In a thread without a loop: Playwright's runs in this one."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()


# what it costs a training ---------------------------------------------------------------------
def measure_training() -> None:
    """Train once. In one step of every two, drawn, console and browser are stopped."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "run")
        command = [sys.executable, "-m", "lightning_core.cli", "train", *TRAINED, "--folder", str(folder)]
        trainer = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        while not (folder / "run.json").exists():
            time.sleep(0.05)
        with serving(str(folder)) as (address, _), opening(address):
            roots = [each for each in children(os.getpid()) if each != trainer.pid]
            watched, used = _elsewhere(lambda: asyncio.run(_watch_in_turns(trainer, folder, roots)))
        seconds = asyncio.run(_step_seconds(folder))
    pairs = range(BEGUN, len(watched) - 1, 2)
    open_, closed = ([seconds[k + (watched[k] != state)] for k in pairs] for state in (True, False))
    found = mean_of([math.log(one / other) for one, other in zip(open_, closed, strict=True)])
    low, middle, high = (f"{math.expm1(each):+.1%}" for each in (found.low, found.value, found.high))
    print(
        f"{len(pairs)} pairs of steps of {fmean(closed):.1f} s: with an open page {middle} ({low} to {high})"
    )
    opened = sum(one for one, state in zip(seconds[BEGUN:], watched[BEGUN:], strict=False) if state)
    print(f"console and browser use {used / opened:.1%} of a core while the page is open")


async def _watch_in_turns(
    trainer: subprocess.Popen[bytes], folder: Path, roots: Sequence[int]
) -> tuple[list[bool], float]:
    """Whether the page was open in each step, and the processor seconds of console and browser."""
    chance, watched = random.Random(0), [True] * BEGUN
    watchers, before = [each for root in roots for each in (root, *_beneath(root))], 0.0
    async with SqliteStore(f"sqlite:///{folder}/store.db") as store:
        while trainer.poll() is None:
            await asyncio.sleep(0.1)
            if not await store.list_metrics(folder.name, since=len(watched) - 1):
                continue
            if len(watched) == BEGUN:
                before = sum(map(cpu_seconds, roots))
            watched.append(not watched[-1] if len(watched) % 2 else chance.random() < 0.5)
            _signal(watchers, signal.SIGCONT if watched[-1] else signal.SIGSTOP)
    _signal(watchers, signal.SIGCONT)
    if trainer.returncode:
        raise RuntimeError(f"the training ended with {trainer.returncode}")
    return watched, sum(map(cpu_seconds, roots)) - before


def _signal(processes: Sequence[int], signal_: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal_)


def _beneath(process: int) -> list[int]:
    """All that it has started, and what those have started."""
    return [each for child in children(process) for each in (child, *_beneath(child))]


async def _step_seconds(folder: Path) -> list[float]:
    async with SqliteStore(f"sqlite:///{folder}/store.db") as store:
        return [each.values["step_seconds"] for each in await store.list_metrics(folder.name)]


# pictures -------------------------------------------------------------------------------------
def take_pictures(run: Path, schemes: Sequence[str] = ("light",), width: int = 1280) -> None:
    """Write each page of a run as `console-PAGE.webp`. Of the runs beside it, Compare shows the newest."""
    OUT.mkdir(parents=True, exist_ok=True)
    with serving(str(run.parent)) as (address, _):
        for scheme in schemes:
            with opening(address, viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
                base = f"{address.partition('/?')[0]}/#/{run.name}"
                page.goto(f"{base}/why?step=0")
                page.locator("td .peers a").first.click()
                page.locator(".why").first.wait_for()
                _take(page, "rollout")
                for name, place, sign in (
                    ("run", "", "figure.chart canvas"),
                    ("rollouts", "/rollouts?order=worst&split=train", "table.rollouts tbody tr"),
                    ("why", "/why?step=0&scale=none", "section [role=status]"),
                    ("time", "/time", ".shares"),
                    ("models", "/models", "table"),
                    ("sandbox", "/sandbox", "form"),
                    ("compare", "/compare", "main h1"),
                ):
                    page.goto(base + place)
                    page.locator(sign).first.wait_for()
                    _take(page, name)


def _take(page: Page, name: str) -> None:
    """As good as fits."""
    page.wait_for_timeout(700)
    picture = Image.open(BytesIO(page.screenshot()))
    for quality in (90, 80, 70, 60):
        file = BytesIO()
        picture.save(file, "webp", quality=quality, method=6)
        if file.tell() <= LARGEST:
            break
    (OUT / f"console-{name}.webp").write_bytes(file.getvalue())
    print(f"console-{name}.webp: {file.tell() / 1000:.0f} kB")


if __name__ == "__main__":
    main()
