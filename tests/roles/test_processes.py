"""Trainer and workers as processes of their own, killed while they work."""

from __future__ import annotations

from pathlib import Path

from tests.roles.company import Company


def test_workers_and_trainer_may_be_killed_and_started_anew(tmp_path: Path) -> None:
    with Company(tmp_path, f"sqlite:///{tmp_path / 'runs.db'}") as company:
        early = company.work("one", HANGS="1")  # before the trainer
        trainer = company.train("--elsewhere", "runner")
        company.until(lambda: len(company.seen) == 4, early, trainer)
        early.kill()
        early.wait()
        workers = [company.work(name) for name in ("one", "two")]  # the first gives back what it held
        company.until(company.steps, trainer, *workers)
        trainer.kill()
        trainer.wait()
        steps = company.steps() + 2
        resumed = company.train("--elsewhere", "runner", "--resume", "--steps", steps)
        assert [process.wait() for process in (resumed, *workers)] == [0, 0, 0], company.said()
        company.check(steps)
