"""A run is killed in its second step, and its server too: nothing is lost, and none trained twice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("tinker", reason="Tinker's client lives in an environment of its own: make test-tinker")
pytest.importorskip("skyrl", reason="its server lives in an environment of its own: make test-tinker")

from lightning_core.records.types import Status
from lightning_core.stores.sqlite import SqliteStore
from research.tinker.server import Server
from tests.jobs import begun
from tests.tinker.job import GROUP_SIZE, TASKS_PER_STEP

ROLLOUTS = TASKS_PER_STEP * GROUP_SIZE
STEPS = 2
JOB = Path(__file__).with_name("job.py")


@pytest.mark.timeout(3600)
async def test_a_killed_run_goes_on_at_a_server_that_was_killed_too(server: Server, tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    after = ROLLOUTS + random.randint(1, ROLLOUTS - 1)
    with begun(JOB, said, server.url, folder, STEPS) as job:
        assert job.stdout is not None
        for _ in range(after):
            assert job.stdout.readline() == "rollout\n", said.read_text()[-4000:]
        job.kill()
    server.kill()
    server.start()
    with begun(JOB, said, server.url, folder, STEPS) as resumed:
        resumed.communicate()
    assert resumed.returncode == 0, (after, said.read_text()[-4000:])
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        assert run.status == "finished"
        planned = await store.find_rollouts(run.id, split="train")
        assert Counter(r.step for r in planned) == dict.fromkeys(range(STEPS), ROLLOUTS), after
        assert {r.status for r in planned} == {Status.SUCCEEDED}, after
        calls = await store.get_calls([r.id for r in planned])
        for rollout in planned:
            done = [call for call in calls[rollout.id] if call.status == "completed"]
            assert [(c.agent, c.policy_version) for c in done] == [("writer", rollout.step)], after
        metrics = await store.list_metrics(run.id)
    assert [m.values["policy_version"] for m in metrics] == [1, 2], after
    assert all(m.values["logprob_gap_max"] < 1e-4 for m in metrics), after
    assert metrics[1].values["service_sampled_tokens"] > metrics[0].values["service_sampled_tokens"] > 0
    assert (folder / "policy" / "model.safetensors").is_file()
