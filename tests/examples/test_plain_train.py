"""The training script of examples/plain: real processes, the real policy."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

import lightning_core as lightning
from examples.plain import train
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.launch import Launch, launching
from research.examples import EXAMPLES
from research.outcomes import Published
from research.page import PAGE, RECORDS
from research.study import folder_of, publish, read
from tests.gateway.scripted import until

ROOT = Path(__file__).parents[2]


async def run(code: str) -> bytes:
    return await train.run_program((sys.executable, "-c", code), {"question": "?"}, os.environ)


async def test_the_program_reads_its_task_and_what_it_prints_comes_back() -> None:
    assert await run("import sys; print(sys.stdin.read())") == b'{"question": "?"}\n'


async def test_a_failure_is_an_error_with_the_end_of_what_the_program_said() -> None:
    code = "import sys; sys.exit('x' * 5000 + ' no such boat')"
    with pytest.raises(RuntimeError, match=r"ended with status 1: x+ no such boat$") as failed:
        await run(code)
    assert len(str(failed.value)) < 2 * train.TAIL


async def test_a_cancelled_program_is_gone_with_everything_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    child = "import time; time.sleep(60)"
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"open({str(note)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.replace({str(note)!r} + '.new', {str(note)!r})\n"
        "time.sleep(60)\n"
    )
    running = asyncio.create_task(run(code))
    await until(note.exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for pid in map(int, note.read_text().split()):
        await until(partial(is_gone, pid))


async def test_what_a_program_leaves_behind_ends_with_it() -> None:
    child = "import time; time.sleep(60)"
    nowhere = "stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    code = (
        f"import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {child!r}], {nowhere}).pid)\n"
    )
    await until(partial(is_gone, int(await run(code))))


def is_gone(pid: int) -> bool:
    """Whether no living process has that id."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of the script."""
    place = tmp_path_factory.mktemp("plain")
    small = lightning.GRPO(group_size=4, tasks_per_step=4)
    settings = {"steps": 1, "algorithm": small, "folder": place / "seed0", "progress": False}
    with pytest.MonkeyPatch.context() as patch, launching(Launch(settings)):
        patch.chdir(place)
        patch.setattr(sys, "argv", ["train.py", "--held-out-tasks", "6"])
        train.main()
    return place / "seed0"


def test_the_script_trains_both_roles(finished: Path) -> None:
    calls, questions = asyncio.run(recorded(finished))
    assert {agent for agent, _ in calls} == {"writer", "rewriter"}
    assert all(questions[rollout] in prompt for (_, rollout), prompt in calls.items())


def test_its_results_are_published(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "research/results").mkdir(parents=True)
    (tmp_path / PAGE).write_text("# Results\n")
    monkeypatch.chdir(tmp_path)
    study = EXAMPLES["plain"]
    folder = folder_of(study, study.variants[0], 0)
    folder.parent.mkdir(parents=True)
    folder.symlink_to(finished)
    publish(study, read(study, study.variants, 1))
    page = PAGE.read_text()
    run = Published.read(RECORDS / "plain.json").variants["as it is"]["seed0"]
    summary = json.loads((finished / "summary.json").read_text())
    assert run.summary.model_dump(mode="json") == summary
    assert (len(run.rewards), run.rollouts) == (1, [16])
    assert set(run.extra) == {"before", "after"}
    assert f"| seed0 | {summary['before']['sampled']:.3f} | {summary['after']['sampled']:.3f} |" in page
    plot = "![training reward of every run](results-plain.png)"
    assert page.endswith(f"<!-- end of plain table -->\n\n{plot}\n")
    assert (tmp_path / "research/results/results-plain.png").read_bytes().startswith(b"\x89PNG")


async def recorded(folder: Path) -> tuple[dict[tuple[str, str], str], dict[str, str]]:
    """The prompt of a call of each agent in each rollout, and the question of each rollout."""
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        rollouts = await store.find_rollouts("seed0", split="train")
        of_rollout = await store.get_calls([rollout.id for rollout in rollouts])
    calls = {
        (call.agent, name): str(call.request["messages"][-1]["content"])
        for name, made in of_rollout.items()
        for call in made
        if call.trained
    }
    return calls, {rollout.id: str(rollout.task.input["question"]) for rollout in rollouts}


def test_the_program_knows_nothing_of_the_project_and_gets_its_addresses_from_one_function() -> None:
    program, script = ((ROOT / "examples/plain" / name).read_text() for name in ("agent.py", "train.py"))
    assert "lightning" not in program.lower()
    assert script.count("lightning.environment(") == 2
    assert script.count("agents=[") == 1
