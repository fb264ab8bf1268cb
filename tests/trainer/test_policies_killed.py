"""`kill -9` between two policies of a run, at chosen points, then resume: nothing of either is lost."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from tests.faults.check import check_weights
from tests.trainer import job
from tests.trainer.test_crash import Trial, check

POINTS = {
    "in the update of the first policy": job.Several(loss=3),
    "in the update of the second, when the first has its new weights": job.Several(loss=4),
    "before the second policy is saved": job.Several(saved="policies/b/checkpoints/step-000002"),
    "between the saves of the two": job.Several(saved="run/checkpoints/step-000002"),
}
"""Deaths in the second of three steps."""


def die_and_resume(folder: Path) -> None:
    """Run the job to each of its deaths, keep what the death left, and resume."""
    for name in ("openai", "lightning_core.backends.local", "lightning_core.trainer.trainer"):
        importlib.import_module(name)
    for number, point in enumerate(POINTS.values()):
        run = folder / str(number) / "run"
        status = job.fork_fit(run, point, steps=3, fate=None)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"{point}: the job ended by itself, with status {status}")
        shutil.copytree(run, run.with_name("left"))
        if job.fork_fit(run, job.Several(), steps=3, fate=None) != 0:
            raise SystemExit(f"{point}: the resumed job failed")


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deaths")
    process = multiprocessing.get_context("spawn").Process(target=die_and_resume, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == 0
    return folder


@pytest.mark.parametrize("point", POINTS)
def test_a_death_between_two_policies_loses_nothing_of_either(deaths: Path, point: str) -> None:
    place = deaths / str(list(POINTS).index(point))
    left = {policy: saved(place / "left", policy) for policy in (None, "b")}
    first, both = {"step-000001"}, {"step-000001", "step-000002"}
    assert left[None].keys() == first
    assert left["b"].keys() == (both if point == "between the saves of the two" else first)
    for policy in (None, "b"):
        after = saved(place / "run", policy)
        assert after.keys() == {*both, "step-000003"}
        assert after["step-000001"] == left[policy]["step-000001"]
    if left["b"].keys() == both:  # the update that was saved is made once more, from the same calls
        kept = (each / "policies/b/checkpoints/step-000002/model" for each in (place / "left", place / "run"))
        check_weights(*kept)
    asyncio.run(check(Trial(job.Several(), kills=1, least=3, folder=place / "run")))


def saved(run: Path, policy: str | None) -> dict[str, dict[str, bytes]]:
    """The files of a policy's checkpoints, by step."""
    kept = (run / "policies" / policy if policy else run) / "checkpoints"
    return {
        step.name: {str(f.relative_to(step)): f.read_bytes() for f in sorted(step.rglob("*")) if f.is_file()}
        for step in kept.glob("step-*")
    }
