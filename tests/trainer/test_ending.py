"""How a run ends: with its best version exported, and early once its held-out tasks are solved."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

import lightning_core as lightning
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.stores.versions import find_current
from lightning_core.trainer.summary import Summary, exported_note
from tests.trainer.versioned import TASKS

HELD_OUT = 2
EVALUATION = 2 * HELD_OUT
"""Rollouts of an evaluation: each task sampled and greedy."""


def fit(folder: Path, held_out: list[float], equal_from: int | None = None, **settings: Any) -> Summary:
    """Train; `held_out` are the rewards of the evaluations in turn; the last one repeats. The rewards of
    training differ, but not from update `equal_from` on."""
    counts: Counter[str] = Counter()

    async def solve(task: lightning.Task) -> float:
        async with openai.AsyncOpenAI(api_key="none") as client:
            await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": str(task.input["question"])}],
                max_completion_tokens=3,
            )
        begun = counts[task.split]
        counts[task.split] += 1
        if task.split == "train":
            return 0 if equal_from is not None and begun >= 2 * equal_from else begun % 2
        return held_out[min(begun // EVALUATION, len(held_out) - 1)]

    given: dict[str, Any] = {
        "model": "tiny",
        "algorithm": lightning.GRPO(group_size=2, tasks_per_step=1),
        "folder": folder,
        "progress": False,
        **settings,
    }
    return lightning.Trainer(**given).fit(solve, train=TASKS[:4], validation=TASKS[4 : 4 + HELD_OUT])


def test_a_run_ends_once_two_evaluations_in_a_row_solve_every_held_out_task(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    summary = fit(folder, [0, 1, 0, 1, 1], steps=6, evaluate_every=1, checkpoint_every=3)
    assert (summary.steps, summary.exported) == (4, 4)
    assert summary.after is not None
    assert (summary.after.step, summary.after.greedy) == (4, 1.0)
    assert [each.step for each in summary.between] == [1, 2, 3]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000004"]
    again = fit(folder, [0], steps=6, evaluate_every=1, checkpoint_every=3, resume=True)
    assert (again.steps, again.after) == (4, summary.after)


def test_a_run_ends_after_so_many_updates_in_a_row_without_a_signal(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = {"steps": 9, "stop_when_stuck": 3, "checkpoint_every": 4}
    summary = fit(folder, [0.5], equal_from=2, **settings)
    assert summary.steps == 5  # two updates with a signal, three without
    assert summary.after is not None
    assert (summary.after.step, summary.after.greedy) == (5, 0.5)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000005"]
    assert fit(folder, [0.5], equal_from=0, **settings, resume=True).steps == 5
    on = fit(folder, [0.5], equal_from=0, **(settings | {"stop_when_stuck": None}), resume=True)
    assert on.steps == 9


def test_a_phase_without_a_signal_does_not_end_the_phases_after_it(tmp_path: Path) -> None:
    grpo = lightning.GRPO(group_size=2, tasks_per_step=1)
    phases = [lightning.Phase(grpo, steps=3), lightning.Phase(grpo, steps=4)]
    summary = fit(tmp_path / "run", [0.5], equal_from=0, stop_when_stuck=2, algorithm=phases)
    assert summary.steps == 5  # the two first of the last phase


@dataclass(kw_only=True, eq=False)
class Paying(lightning.LocalBackend):
    """The local backend, as if each update cost 100 tokens at a service."""

    ceiling: float

    @property
    def spent(self) -> dict[str, float]:
        return {"service_trained_tokens": 100.0 * self.policy_version}

    @property
    def ceiling_reached(self) -> str | None:
        trained = self.spent["service_trained_tokens"]
        return f"{trained:.0f} tokens of {self.ceiling}" if trained >= self.ceiling else None


def test_a_run_ends_in_order_when_its_ceiling_is_reached_and_goes_on_with_a_higher_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"

    def pay(ceiling: int, **settings: Any) -> Summary:
        backend = Paying("tiny", ceiling=ceiling)
        given = {"model": None, "backend": backend, "steps": 4, "checkpoint_every": 3}
        return fit(folder, [0.5], **given, **settings)

    summary = pay(150, progress=True)
    assert (summary.steps, summary.spent) == (2, {"service_trained_tokens": 200.0})
    assert (summary.exported, summary.after) == (2, None)
    assert "it was not evaluated" in str(exported_note(summary))
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000002"]
    said = " ".join(capfd.readouterr().err.split())
    assert "ended after 2 of 4 updates: 200 tokens of 150" in said
    assert "200 service tokens" in said
    assert "tokens at the service: 200 trained" in said
    assert pay(200, resume=True) == summary
    whole = pay(400, resume=True, progress=True)
    assert (whole.steps, whole.spent, whole.after) == (4, {"service_trained_tokens": 400.0}, None)
    assert "not evaluated after the last update: 400 tokens of 400" in " ".join(
        capfd.readouterr().err.split()
    )
    evaluated = pay(401, resume=True).after
    assert evaluated is not None
    assert (evaluated.step, evaluated.greedy) == (4, 0.5)


@pytest.mark.parametrize("settings", [{"stop_when_solved": False}, {}])
def test_a_run_goes_on_where_it_is_told_to_or_rewards_have_no_known_top(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    held_out = [1.0] if settings else [1.0, 2.0]
    assert fit(tmp_path / "run", held_out, steps=3, evaluate_every=1, **settings).steps == 3


@pytest.mark.parametrize(("best", "wanted"), [(True, 2), (False, 3)])
def test_the_best_trained_version_is_exported_and_becomes_the_current_one(
    best: bool, wanted: int, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    summary = fit(folder, [0.9, 0.1, 0.75, 0.5], steps=3, evaluate_every=1, export_best=best)
    assert summary.exported == wanted

    async def current() -> tuple[float, Path]:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            found = find_current(await store.list_resources("run"))
        assert found is not None
        return found.metrics["step"], Path(str(found.uri))

    step, content = asyncio.run(current())
    assert step == wanted
    weights = [(each / "model.safetensors").read_bytes() for each in (folder / "policy", content / "model")]
    assert weights[0] == weights[1]
    card = (folder / "policy" / "README.md").read_text()
    said = {
        True: "update 2 of 3, the best on held-out tasks (greedy: 0.750, after the last 0.500).",
        False: "update 3 of 3, the last, as export_best=False asks.",
    }
    assert said[best] in card


def test_the_end_says_why_the_last_version_was_exported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    summary = fit(tmp_path / "run", [0.5], steps=2, progress=True)
    why = "after update 2 of 2, the last: no other was evaluated (evaluate_every=10 evaluates every tenth)."
    assert why in " ".join(capfd.readouterr().err.split())
    later = summary.model_copy(update={"settings": {**summary.settings, "evaluate_every": 4}})
    assert str(exported_note(later)).endswith("no other was evaluated (evaluate_every=4 comes later).")
    without = exported_note(summary.model_copy(update={"before": None, "after": None}))
    assert without == (
        "Exported after update 2 of 2, the last: without held-out tasks no version is known to be better."
    )
    best = fit(tmp_path / "other", [0.1, 0.2, 0.5], steps=2, evaluate_every=1)
    assert exported_note(best) == "Exported after update 2 of 2, the best on held-out tasks (greedy: 0.500)."
    assert best.after is not None
    worse = best.model_copy(update={"after": best.after.model_copy(update={"greedy": 0.1})})
    said = exported_note(worse)
    assert said is not None
    assert "the last (greedy: 0.100); the better one, after update 1 (greedy: 0.200)" in said


def test_evaluations_between_updates_are_made_where_nothing_says_how_many_there_are() -> None:
    assert [*lightning.Trainer().evaluations_between] == [10, 20, 30]
    assert [*lightning.Trainer(algorithm="grpo").evaluations_between] == [10, 20, 30]
    assert [*lightning.Trainer(steps=30).evaluations_between] == []
    assert [*lightning.Trainer(steps=6, evaluate_every=3).evaluations_between] == [3]
    phases = [lightning.Phase(lightning.GRPO(), 20)]
    assert [*lightning.Trainer(algorithm=phases).evaluations_between] == []
