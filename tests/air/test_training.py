"""AIR in a run: given once, read back as it is stored, switched by a flag, shown."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest
from typer.testing import CliRunner

import lightning_core as lightning
from lightning_core.air.rulebook import rule_lines, rule_numbers
from lightning_core.cli.app import app
from lightning_core.cli.rollouts import open_run
from lightning_core.errors import ConfigError
from lightning_core.experience.transitions import to_trajectory
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Reward, Rollout, Status, Task
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.trainer.batch import add_automatic
from lightning_core.trainer.launch import Launch, launching
from lightning_core.trainer.parts import make_rulebook
from tests.air.records import ROLLOUT, asks, call, run

SCRIPT = """
from tests.air.test_training import fit

if __name__ == "__main__":
    fit(None)
"""
TASKS = [{"question": f"List the boats with speed above {n}."} for n in range(6)]
CUT = "air:cut_by_length"


async def solve(task: lightning.Task) -> float:
    """One call, which is cut after its first token."""
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent("writer"):
            reply = await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": str(task.input["question"])}],
                max_completion_tokens=1,
            )
    return float(len(reply.choices[0].message.content or "") % 4)


def fit(folder: Path | None, **settings: Any) -> None:
    given: dict[str, Any] = {"steps": 2, "resume": False, **settings}
    lightning.Trainer(
        model="tiny",
        algorithm=lightning.GRPO(group_size=3, tasks_per_step=2),
        folder=folder,
        progress=False,
        **given,
    ).fit(solve, train=TASKS, validation=TASKS[:1])


def read(folder: Path) -> tuple[list[Rollout], dict[str, list[Reward]], list[dict[str, float]]]:
    async def all_of_it() -> Any:
        async with open_run(folder) as (store, run_id):
            rollouts = await store.find_rollouts(run_id)
            rewards = await store.get_rewards([rollout.id for rollout in rollouts])
            return rollouts, rewards, [entry.values for entry in await store.list_metrics(run_id)]

    return asyncio.run(all_of_it())


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("air") / "run"
    fit(folder, air=True)
    return folder


def test_each_training_rollout_has_its_rewards_and_the_metrics_count_them(judged: Path) -> None:
    rollouts, rewards, metrics = read(judged)
    assert {rollout.split for rollout in rollouts} == {"train", "validation"}
    for rollout in rollouts:
        sources = Counter(reward.source for reward in rewards[rollout.id])
        assert sources == ({"app": 1, CUT: 1} if rollout.split == "train" else {"app": 1}), sources
    for values in metrics:
        assert values["air/cut_by_length"] == values["rollouts"] == 6
        assert values["air/sql_error"] == 0
        assert values["air_reward"] == pytest.approx(-0.1)


def test_a_step_that_is_read_again_after_a_kill_is_not_rewarded_again(judged: Path, tmp_path: Path) -> None:
    """Without its last checkpoint the run stands where a kill after the rewards would have left it."""
    folder = tmp_path / judged.name
    shutil.copytree(judged, folder)
    shutil.rmtree(folder / "checkpoints" / "step-000002")
    before = read(folder)[1]
    fit(folder, air=True, resume=True, steps=3)
    rollouts, after, metrics = read(folder)
    assert {name: after[name] for name in before} == before
    assert [values["air/cut_by_length"] for values in metrics] == [6, 6, 6]
    assert all(len(after[rollout.id]) == 2 for rollout in rollouts if rollout.split == "train")


@pytest.mark.parametrize("air", [None, False])
def test_switched_off_nothing_is_given_and_nothing_counted(tmp_path: Path, air: bool | None) -> None:
    fit(tmp_path / "run", air=air, steps=1)
    _, rewards, metrics = read(tmp_path / "run")
    assert {reward.kind for of_one in rewards.values() for reward in of_one} == {"final"}
    assert not [name for values in metrics for name in values if name.startswith("air")]


async def test_a_rollout_is_rewarded_once_and_one_of_an_evaluation_or_that_failed_never() -> None:
    rulebook = make_rulebook(True, load_plugins([]))
    assert rulebook is not None
    store = MemoryStore()
    rollouts = [
        ROLLOUT.model_copy(update={"id": "a"}),
        ROLLOUT.model_copy(update={"id": "b"}),
        ROLLOUT.model_copy(update={"id": "held-out", "split": "validation"}),
        ROLLOUT.model_copy(update={"id": "failed", "reward": None, "status": Status.FAILED}),
        ROLLOUT.model_copy(update={"id": "not yet judged", "reward": None}),
    ]
    names = [rollout.id for rollout in rollouts]
    await store.enqueue(
        [Rollout(id=i, run_id="run", task=Task(input={}), group_id="g", step=0) for i in names]
    )
    await store.lease("worker", 9, 60.0)
    failed = run(error="KeyError: 1", error_type="raised", result=None)
    calls = {name: [call(1, asks(), rollout_id=name)] for name in names}
    await store.add_events([failed.model_copy(update={"rollout_id": name}) for name in names])

    async def give(which: list[Rollout]) -> Counter[str]:
        known = await store.get_rewards(names)
        returned = await add_automatic(store, rulebook, which, calls, known)
        stored = await store.get_rewards(names)
        assert returned == stored
        return Counter(name for name in names for _ in stored[name])

    assert await give(rollouts[:1]) == {"a": 1}
    assert await give(rollouts) == {"a": 1, "b": 1, "not yet judged": 1}
    assert await give(rollouts) == {"a": 1, "b": 1, "not yet judged": 1}


def test_off_and_on_train_on_the_same_calls_and_differ_in_rewards_alone() -> None:
    calls = [call(1, asks()), call(2, text="done")]
    rulebook = make_rulebook(True, load_plugins([]))
    assert rulebook is not None
    given = rulebook.rewards(ROLLOUT, calls, [run(error="KeyError: 1", error_type="raised", result=None)])
    off, on = to_trajectory(ROLLOUT, calls, []), to_trajectory(ROLLOUT, calls, given)
    assert [t.reward for t in on.transitions] == [-0.1, 0.0]
    assert [t.reward for t in off.transitions] == [0.0, 0.0]
    assert [(t.key, t.prompt_ids, t.completion_ids) for t in on.transitions] == [
        (t.key, t.prompt_ids, t.completion_ids) for t in off.transitions
    ]
    assert (on.reward, on.intermediate, off.intermediate) == (off.reward, -0.1, 0.0)


def test_a_rule_that_nobody_registered_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'sql_eror'.*did you mean 'sql_error'"):
        fit(tmp_path / "run", air=lightning.AIR(rules={"sql_eror": -0.1}))
    assert not (tmp_path / "run" / "run.json").exists()


def test_the_flag_switches_on_what_was_off_and_leaves_a_table_of_one_s_own(tmp_path: Path) -> None:
    own = lightning.AIR(rules={"cut_by_length": -0.4})
    for name, air, flag, expected in (
        ("a", None, True, -0.1),
        ("b", own, True, -0.4),
        ("c", own, False, None),
    ):
        with launching(Launch({} if flag is None else {"air": flag})):
            fit(tmp_path / name, air=air, steps=1)
        assert read(tmp_path / name)[2][0].get("air_reward") == (expected and pytest.approx(expected)), name


def command(*arguments: object) -> str:
    """Returns the command's output, run in this process: another one would import torch once more."""
    done = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "160"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_has_a_flag_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "job.py").write_text(SCRIPT)
    for value, expected in (("true", True), ("false", False)):
        folder = tmp_path / value
        command("train", tmp_path / "job.py", "--folder", folder, "--steps", 1, "--set", f"air={value}")
        assert ("air_reward" in read(folder)[2][0]) is expected


def test_show_has_a_table_of_the_rules_and_each_reward_with_its_reason(judged: Path) -> None:
    shown = command("show", judged)
    assert "automatic intermediate rewards" in shown
    assert re.search(r"cut_by_length\s+│\s+12 │\s+-1.20 │\s+100% │\s+1.00 │\s+1.00", shown), shown
    concerned = next(name for name, given in read(judged)[1].items() if any(r.source == CUT for r in given))
    tree = command("show", judged, "--rollout", concerned)
    assert "intermediate reward -0.100  by air:cut_by_length: the reply reached its greatest length" in tree


def test_the_numbers_of_a_run_by_hand() -> None:
    def reward(rollout: str, rule: str, value: float) -> Reward:
        source = f"air:{rule}"
        return Reward(rollout_id=rollout, attempt=1, value=value, kind="intermediate", source=source)

    rollouts = [ROLLOUT.model_copy(update={"id": f"r{step}", "step": step}) for step in range(10)]
    rewards = {rollout.id: [Reward(rollout_id=rollout.id, attempt=1, value=1.0)] for rollout in rollouts}
    rewards["r0"] += [reward("r0", "cold", -0.1), reward("r0", "cold", -0.1)]
    rewards["r9"] += [reward("r9", "cold", -0.1), reward("r9", "wet", -0.2)]
    cold, wet = rule_lines(rollouts, rewards)
    assert (cold.rule, cold.count, cold.total, cold.share) == ("cold", 3, pytest.approx(-0.3), 0.2)
    assert (cold.first, cold.last) == (2 / 5, 1 / 5)
    assert (wet.rule, wet.count, wet.first, wet.last) == ("wet", 1, 0.0, 1 / 5)
    numbers = rule_numbers(["cold", "dry"], rewards)
    assert numbers == {"air/cold": 3, "air/dry": 0, "air/wet": 1, "air_reward": pytest.approx(-0.05)}
    assert rule_lines([], {}) == []
