"""`show` and `runs` of what has not come to an end, and of evaluations: against records made by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lightning_core.records.types import Metrics, Run
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.folder import RunFolder
from tests.build import make_rollouts
from tests.trainer.test_report import evaluate

STEP = {
    "reward": 0.25,
    "step_seconds": 2.0,
    "rollouts": 4.0,
    "agent/writer/calls": 4.0,
    "agent/writer/trained": 1.0,
    "agent/writer/reward": 0.25,
    "agent/checker/calls": 3.0,
}


def write(path: Path, *, steps: int, **run: str) -> None:
    """Record a run in that folder: an evaluation, the steps, and rollouts that no worker has begun."""

    async def record() -> None:
        with RunFolder(path, resume=False) as folder:
            folder.write_address(None)
            async with SqliteStore(folder.store_url) as store:
                await store.put_run(Run.model_validate({"id": path.name, **run}))
                await evaluate(store, 0, [1.0, 0.5], {"checker": [0.0, 0.5]}, run=path.name)
                for step in range(steps):
                    await store.put_metrics(Metrics(run_id=path.name, step=step, values=STEP))
                await store.enqueue(make_rollouts(5, "waiting", run_id=path.name))

    asyncio.run(record())


def test_a_run_that_goes_on_is_shown_as_far_as_it_has_come(call, tmp_path):
    write(tmp_path / "r", steps=2)
    status, said = call("show", tmp_path / "r")
    assert status == 0, said
    lines = [line.replace("│", " ").split() for line in said.splitlines()]
    assert ["all", "2", "0.75", "0.75"] in lines
    assert ["agent", "checker", "2", "0.25", "0.25"] in lines
    assert ["writer", "yes", "8", "0", "0.25", "→", "0.25", "0%", "0"] in lines
    assert "2 steps in 4 s, evaluations in 0 s" in said
    assert "not finished: these are the figures so far" in said
    assert "the newest 4 of 4" in said
    assert "waiting" not in said


def test_before_the_first_step_the_held_out_reward_is_shown(call, tmp_path):
    write(tmp_path / "r", steps=0)
    said = call("show", tmp_path / "r")[1]
    assert "held-out reward after 0 updates" in said
    assert "No update: held-out reward 0.75 (greedy, 2 tasks)" in said


def test_evaluations_have_one_value_and_runs_says_where_they_are(call, tmp_path):
    for name in ("evaluation-1/0-tiny", "evaluation-2/0-tiny", "evaluation-2/1-a"):
        write(tmp_path / "runs" / name, steps=0, status="finished")
    newest = tmp_path / "runs" / "evaluation-2"
    hint = f"more runs, such as those of evaluations, in 2 folders: agentlightning runs {newest}"
    assert hint in call("runs", tmp_path / "runs")[1]
    write(tmp_path / "runs" / "trained", steps=2)
    said = call("runs", tmp_path / "runs")[1]
    assert hint in said
    assert "0-tiny" not in said
    listed = [line.split()[:4] for line in call("runs", newest)[1].splitlines()]
    assert [line for line in listed if line[1:2] == ["finished"]] == [
        ["1-a", "finished", "0", "0.75"],
        ["0-tiny", "finished", "0", "0.75"],
    ]
