"""Phases: several algorithms in turn over one run, which may be stopped and resumed in any of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import openai
import pytest
from rich.console import Console

import lightning_core as lightning
from lightning_core.backends.base import Batch
from lightning_core.errors import ConfigError, TaskError, UnknownAgentError, UnsupportedError
from lightning_core.records.types import Metrics, Rollout
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.display import Display
from lightning_core.trainer.report import terminal_curve
from lightning_core.trainer.summary import Summary

TASKS = [{"question": f"List the boats with speed above {n}."} for n in range(8)]
DEMONSTRATIONS = [
    {
        "messages": [{"role": "user", "content": task["question"]}],
        "reply": f"SELECT name FROM boats WHERE speed > {n}",
        "agent": "writer",
    }
    for n, task in enumerate(TASKS)
]
PHASES = [
    lightning.Phase(lightning.SFT(demonstrations=DEMONSTRATIONS, batch_size=3), steps=2),
    lightning.Phase(lightning.SFT(group_size=3, tasks_per_step=2), steps=1),
    lightning.Phase(lightning.DPO(group_size=3, tasks_per_step=2, epochs=2), steps=2),
    lightning.Phase(lightning.GRPO(group_size=3, tasks_per_step=2, kl=0.1), steps=2),
]
STEPS = 7


class Lettered(lightning.LocalBackend):
    """The local backend, which keeps a note of the phase each update was for, and on which demonstrations."""

    def __init__(self) -> None:
        super().__init__("tiny", dtype="float32", learning_rate=1e-3)
        self.updates: list[tuple[int, str, tuple[str, ...]]] = []

    async def update(self, batch: Batch, algorithm: Any) -> dict[str, float]:
        taught = tuple(t.rollout_id for t in batch.trajectories if t.rollout_id.startswith("demonstration"))
        self.updates.append((batch.step, algorithm.name, taught))
        return await super().update(batch, algorithm)


turns = itertools.cycle([0.0, 0.5, 1.0])


async def solve(task: lightning.Task) -> float:
    """One call; the rewards are such that in no group of three all are equal."""
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent("writer"):
            await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": str(task.input["question"])}],
                max_completion_tokens=5,
            )
    return next(turns)


def fit(
    folder: Path,
    *,
    train: list = TASKS[:6],
    validation: list = (),
    phases: Sequence[Any] = PHASES,
    **settings,
) -> tuple[Summary, Lettered]:
    backend = settings.pop("backend", None) or Lettered()
    trainer = lightning.Trainer(
        agents=["writer"],
        algorithm=phases,
        backend=backend,
        folder=folder,
        progress=False,
        **settings,
    )
    return trainer.fit(solve, train=train, validation=validation), backend


async def read(folder: Path) -> tuple[list[Metrics], list[Rollout]]:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        return await store.list_metrics(run.id), await store.find_rollouts(run.id)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary, Lettered]:
    """A run of all phases without a stop, evaluated before and after."""
    folder = tmp_path_factory.mktemp("phases") / "run"
    return folder, *fit(folder, validation=TASKS[6:])


def test_each_phase_makes_its_own_updates(whole):
    _, summary, backend = whole
    assert [(step, name) for step, name, _ in backend.updates] == [
        (0, "sft"), (1, "sft"), (2, "sft"), (3, "dpo"), (4, "dpo"), (5, "grpo"), (6, "grpo"),
    ]  # fmt: skip
    assert [(phase.algorithm, phase.first) for phase in summary.phases] == [
        ("sft", 0), ("sft", 2), ("dpo", 3), ("grpo", 5),
    ]  # fmt: skip
    assert summary.steps == STEPS
    assert summary.rollouts == 5 * 2 * 3
    assert summary.agents["writer"].trained


def test_demonstrations_ask_for_no_rollouts_and_have_no_reward(whole):
    folder, _, backend = whole
    metrics, rollouts = asyncio.run(read(folder))
    assert {rollout.step for rollout in rollouts if rollout.split == "train"} == {2, 3, 4, 5, 6}
    for entry in metrics[:2]:
        assert entry.values["demonstrations"] == 3
        assert entry.values["agent/writer/transitions"] == 3
        assert entry.values.keys().isdisjoint({"reward", "rollouts", "failures", "staleness_mean"})
    assert all("reward" in entry.values for entry in metrics[2:])
    first, second = (set(taught) for _, _, taught in backend.updates[:2])
    assert len(first) == len(second) == 3
    assert first.isdisjoint(second), "a pass uses each demonstration once"


def test_a_later_phase_is_compared_with_the_policy_that_it_began_with(whole):
    folder, _, _ = whole
    assert sorted(path.name for path in (folder / "references").iterdir()) == ["step-000003", "step-000005"]
    metrics, _ = asyncio.run(read(folder))
    assert metrics[5].values["kl_reference"] < 1e-6


def test_a_run_that_is_stopped_in_every_phase_is_the_run_that_was_not(whole, tmp_path):
    names = []
    for steps in (1, 4, 6, STEPS):
        summary, backend = fit(tmp_path / "run", steps=steps, resume=steps > 1)
        names += backend.updates
    uninterrupted = whole[2].updates
    assert names == uninterrupted
    assert summary.phases == whole[1].phases
    stopped, _ = asyncio.run(read(tmp_path / "run"))
    straight, _ = asyncio.run(read(whole[0]))
    assert [entry.step for entry in stopped] == list(range(STEPS))
    for step in (0, 1):  # without sampling nothing is left to chance
        assert stopped[step].values["loss"] == pytest.approx(straight[step].values["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("phases", "named"),
    [
        ([*PHASES[:2], lightning.Phase(lightning.RLOO(group_size=3, tasks_per_step=2), steps=4)], "phases"),
        ([lightning.Phase(PHASES[0].algorithm, steps=1), *PHASES[1:3], PHASES[3], PHASES[3]], "phases"),
        (
            [
                lightning.Phase(lightning.SFT(demonstrations=DEMONSTRATIONS[1:], batch_size=3), steps=2),
                *PHASES[1:],
            ],
            "demonstrations",
        ),
    ],
)
def test_a_run_is_not_resumed_with_other_phases(whole, phases, named):
    with pytest.raises(ConfigError, match=rf"differ from before: .*{named}"):
        fit(whole[0], phases=phases, validation=TASKS[6:], resume=True)


def test_the_phases_are_shown_and_marked(whole):
    folder, summary, _ = whole
    console = Console(file=StringIO(), width=200)
    display = Display(enabled=True, steps=STEPS, console=console)
    display.report(summary, folder, "", "")
    assert "phases: sft steps 1 to 2, sft steps 3 to 3, dpo steps 4 to 5, grpo steps 6 to 7" in (
        console.file.getvalue()
    )
    assert json.loads((folder / "summary.json").read_text())["phases"][2] == {"algorithm": "dpo", "first": 3}
    metrics, _ = asyncio.run(read(folder))
    assert terminal_curve(metrics[:3]) == "", "one step with a reward is no curve"
    assert "reward" in terminal_curve(metrics)


def test_without_the_libraries_of_plots_what_to_install_is_shown(whole, tmp_path, monkeypatch):
    _, summary, _ = whole
    monkeypatch.setitem(sys.modules, "plotext", None)
    console = Console(file=StringIO(), width=200)
    Display(enabled=True, steps=STEPS, console=console).report(summary, tmp_path, terminal_curve([]), "")
    assert console.file.getvalue().count("pip install 'agent-lightning-core[plots]'") == 2


def test_a_run_on_demonstrations_alone_needs_no_tasks_and_evaluates_all_the_same(tmp_path):
    phases = lightning.SFT(demonstrations=DEMONSTRATIONS, batch_size=100)
    summary, backend = fit(tmp_path / "run", train=[], validation=TASKS[6:], phases=phases, steps=2)
    assert [len(taught) for _, _, taught in backend.updates] == [8, 8]
    assert summary.before is not None
    assert summary.after is not None
    assert summary.rollouts == 0


@pytest.mark.parametrize(
    ("phases", "error", "words"),
    [
        ([lightning.SFT(), lightning.GRPO()], ConfigError, "Phase"),
        ([], ConfigError, "at least one step"),
        ([lightning.Phase(lightning.GRPO(), steps=0)], ConfigError, "at least one step"),
        ([lightning.Phase("grop", steps=1)], ConfigError, "grop"),
        (
            lightning.SFT(demonstrations=[{**DEMONSTRATIONS[0], "agent": "critic"}]),
            TaskError,
            "demonstration 0 is of agent 'critic'",
        ),
        (
            lightning.SFT(demonstrations=[*DEMONSTRATIONS, {**DEMONSTRATIONS[0], "reply": "boats " * 9000}]),
            TaskError,
            "demonstration 8 can't be used: .*context",
        ),
    ],
)
def test_phases_that_can_not_be_honoured_are_refused_at_start(tmp_path, phases, error, words):
    with pytest.raises(error, match=words):
        fit(tmp_path / "run", phases=phases)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_backend_that_can_not_encode_is_refused_by_name(tmp_path):
    class Bare(Lettered):
        name = "bare"
        encode = None

    with pytest.raises(UnsupportedError, match="'bare'"):
        fit(tmp_path / "run", backend=Bare())


def test_agents_are_checked_at_the_first_step_that_has_rollouts(tmp_path):
    phases = [
        lightning.Phase(lightning.SFT(demonstrations=[{**DEMONSTRATIONS[0], "agent": None}]), steps=1),
        lightning.Phase("grpo", steps=1),
    ]
    trainer = lightning.Trainer(
        agents=["writr"], algorithm=phases, backend=Lettered(), folder=tmp_path / "run", progress=False
    )
    with pytest.raises(UnknownAgentError, match="'writer'"):
        trainer.fit(solve, train=TASKS[:2])
