"""Trainer and workers as processes of their own, killed while they work."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lightning_core.plugins import load_plugins
from lightning_core.records.types import Member
from lightning_core.trainer.parts import open_store
from tests.roles.run_processes import RunProcesses


def members(store: str) -> dict[str, Member]:
    """Who plays in the only run, by role and name."""

    async def read() -> dict[str, Member]:
        async with open_store(store, load_plugins()) as opened:
            (run,) = await opened.list_runs()
            return {f"{member.role} {member.name}": member for member in await opened.list_members(run.id)}

    return asyncio.run(read())


def test_workers_and_trainer_may_be_killed_and_started_anew(tmp_path: Path, postgres_url: str) -> None:
    with RunProcesses(tmp_path, postgres_url) as run:
        early = [run.work(name, HANGS="1") for name in ("one", "two")]  # before the trainer
        trainer = run.train("--set", "remote=runner")
        run.until(lambda: len(run.seen) == 8, *early, trainer)
        known, port = members(postgres_url), run.port()
        assert set(known) == {"trainer trainer", "gateway trainer", "runner one", "runner two"}
        assert known["gateway trainer"].url == f"http://127.0.0.1:{port}"
        early[0].kill()
        early[1].terminate()  # it gives back what it holds; the other one's successor does that for it
        assert [process.wait() for process in early] == [-9, 0]
        workers = [run.work("one"), run.work("three", "--set", "workers=2")]
        run.until(run.steps, trainer, *workers)
        trainer.kill()
        trainer.wait()
        steps = run.steps() + 2
        resumed = run.train("--set", "remote=runner", "--resume", "--steps", steps)
        assert [process.wait() for process in (resumed, *workers)] == [0, 0, 0], run.said()
        run.check(steps)
        assert run.port() == port
