"""A trainer on a cluster is killed in the midst of its rollouts or of an update, and resumed: no rollout is
lost, none counted twice, and nothing of Ray or vLLM stays behind."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

import psutil

from lightning_core.records.types import Status
from lightning_core.stores.sqlite import SqliteStore
from tests.jobs import begun
from tests.verl.job import GROUP_SIZE, STALENESS, TASKS_PER_STEP
from tests.verl.test_backend_killed import command_of

ROLLOUTS = TASKS_PER_STEP * GROUP_SIZE
STEPS = 3
END_SECONDS = 180.0
"""Workers, servers and engines end at once; Ray's two agents try to tell its dead head for a minute first."""
JOB = Path(__file__).with_name("job.py")


def kill(job: subprocess.Popen[str], after: int) -> tuple[int, list[psutil.Process]]:
    """Kill it once so many rollouts have ended; returns how many had ended by then, and what it started."""
    assert job.stdout is not None
    ended = 0
    while ended < after:  # vLLM writes there too
        line = job.stdout.readline()
        assert line, "it ended by itself"
        ended += line.endswith("rollout\n")
    beneath = psutil.Process(job.pid).children(recursive=True)
    assert any("EngineCore" in command_of(each) for each in beneath)
    job.kill()
    job.wait()
    return ended + job.stdout.read().count("rollout\n"), beneath


@pytest.mark.timeout(2700)
async def test_a_killed_trainer_is_resumed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    # At any rollout of the second step: before, during or after the first update.
    after = ROLLOUTS + random.randint(1, ROLLOUTS)
    with begun(JOB, said, folder, STEPS) as job:
        ended, beneath = kill(job, after)
    with begun(JOB, said, folder, STEPS) as resumed:
        ended += resumed.communicate()[0].count("rollout\n")
    assert resumed.returncode == 0, (after, said.read_text()[-4000:])
    assert not psutil.wait_procs(beneath, END_SECONDS)[1]
    assert ended >= ROLLOUTS * STEPS
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        assert run.status == "finished"
        planned = await store.find_rollouts(run.id, split="train")
        assert Counter(r.step for r in planned) == dict.fromkeys(range(STEPS), ROLLOUTS), after
        assert {r.status for r in planned} == {Status.SUCCEEDED}, after
        calls = await store.get_calls([r.id for r in planned])
        for rollout in planned:
            done = [call for call in calls[rollout.id] if call.status == "completed"]
            assert Counter(call.agent for call in done) == {"writer": 1, "critic": 1}, after
            assert {rollout.step - (call.policy_version or 0) for call in done} <= {0, STALENESS}, after
        metrics = await store.list_metrics(run.id)
        assert [m.values["policy_version"] for m in metrics] == [1, 2, 3], after
        assert {m.values["rollouts"] for m in metrics} == {ROLLOUTS}, after
        assert max(m.values["staleness_max"] for m in metrics) == STALENESS, after
        fresh = [m.values for m in metrics if m.values["staleness_max"] == 0]
        assert fresh, after  # the first step's
        assert all(values["logprob_gap_max"] < 1e-4 for values in fresh), after
