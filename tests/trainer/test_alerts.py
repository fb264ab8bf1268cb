"""A real run that is spoilt on purpose says so: at once, in its store, and to whom it may concern."""

from __future__ import annotations

import asyncio
import io
import shutil
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from rich.console import Console

import lightning_core as lightning
from examples.sql.execution import describe_schema, open_database
from examples.sql.prompts import write_prompt
from examples.sql.tasks import load_tasks
from lightning_core.alerts.watch import Finding, Scene
from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch
from lightning_core.cli.runs import list_alerts, show_run
from lightning_core.records.types import Alert, Call, Member, Metrics, Rollout, Run, Task
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from lightning_core.trainer import observers
from lightning_core.trainer.display import Display, alert_line
from lightning_core.trainer.observers import InFlight, read_space
from lightning_core.trainer.plan import RolloutPlan
from tests.trainer.watching import fit, grpo

GOOD = 5
"""Steps before the weights are spoilt."""


class Spoilt(lightning.LocalBackend):
    """Has a learning rate a thousand times too large, from one step on."""

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        if batch.step >= GOOD:
            self._started.optimizer.learning_rate = 0.4
        return await super().update(batch, algorithm)


def read(folder: Path) -> tuple[Run, list[Alert], list[Metrics]]:
    async def reading() -> Any:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            run = await store.find_run(folder.name)
            return run, await store.list_alerts(folder.name), await store.list_metrics(folder.name)

    found: tuple[Run, list[Alert], list[Metrics]] = asyncio.run(reading())
    return found


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Alert]]:
    """The folder of a run that collapsed, and what its user was told meanwhile."""
    folder = tmp_path_factory.mktemp("runs") / "collapsed"
    told: list[Alert] = []

    async def solve(task: lightning.Task) -> float:
        with open_database(task.input["database"]) as connection:
            schema = describe_schema(connection)
        async with openai.AsyncOpenAI(api_key="none") as client:
            with lightning.agent("writer"):
                reply = await client.chat.completions.create(
                    model="policy",
                    messages=write_prompt(schema, task.input["question"]),  # type: ignore[arg-type]
                    max_completion_tokens=20,
                )
        text = reply.choices[0].message.content or ""
        return (1 - len(text) / 500) if text.startswith("SELECT") else 0.0  # lengths keep groups unequal

    lightning.Trainer(
        agents=["writer"],
        algorithm=grpo(credit="uniform"),
        backend=Spoilt("tiny"),
        steps=2 * GOOD + 2,
        folder=folder,
        progress=False,
        checkpoint_every=20,
        alerts=lightning.Alerts(on_alert=told.append),
    ).fit(solve, train=load_tasks("train", folder.parent / "sql", limit=6))
    return folder, told


def test_a_run_that_collapses_says_so_once_with_what_to_do(collapsed):
    folder, told = collapsed
    _, alerts, metrics = read(folder)
    rewards = [entry.values["reward"] for entry in metrics]
    assert min(rewards[:GOOD]) > 0.5 > max(rewards[GOOD + 3 :]), rewards
    collapse = [alert for alert in alerts if alert.rule == "reward_collapse"]
    assert [(alert.level, alert.run_id) for alert in collapse] == [("critical", "collapsed")]
    assert "learning rate" in collapse[0].message
    assert sorted(alert.id for alert in told) == sorted(alert.id for alert in alerts)


def test_the_entropy_of_a_step_is_that_of_all_that_was_sampled(collapsed):
    entropies = [entry.values["entropy"] for entry in read(collapsed[0])[2]]
    assert all(0 <= entropy < 12 for entropy in entropies)
    assert len(set(entropies)) > 1


def test_alerts_are_shown_with_the_run_and_listed(collapsed, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    folder, _ = collapsed
    asyncio.run(show_run(folder))
    asyncio.run(list_alerts(folder))
    shown, listed = capsys.readouterr().out.split("trained on-policy")
    for said in (shown, listed):
        assert "critical: after step" in said
        assert "reward_collapse: the mean reward of 5 steps fell from" in said
    assert "versions  python" in shown


def test_the_display_shows_an_alert_at_once():
    console = Console(file=io.StringIO(), width=200)
    Display(enabled=True, steps=3, console=console).alert(
        Alert(run_id="r", id="a", rule="zero_variance", message="10 of 10 [equal]", step=4)
    )
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said.strip() == "warning: after step 5, zero_variance: 10 of 10 [equal]"
    assert "after" not in alert_line(Alert(run_id="r", id="a", rule="x", message="m")).plain


def high(scene: Scene) -> list[Finding]:
    """Finds every step."""
    return [Finding(f"step {scene.step}")] if scene.history else []


def test_a_resumed_run_does_not_tell_what_it_told(tmp_path):
    setting = lightning.Alerts(rules={"high": high})
    for steps, resume in ((1, False), (2, True)):
        fit(tmp_path / "run", grpo(), steps=steps, resume=resume, alerts=setting)
    assert [alert.id for alert in read(tmp_path / "run")[1] if alert.rule == "high"] == ["high/step-0"]


def test_what_a_user_s_function_does_wrong_is_logged_and_with_alerts_off_nothing_is_told(tmp_path, caplog):
    async def post(alert: Alert) -> None:
        raise OSError("no network")

    fit(tmp_path / "on", grpo(), steps=1, alerts=lightning.Alerts(rules={"high": high}, on_alert=post))
    assert "on_alert failed for 'high/step-0': OSError('no network')" in caplog.text
    fit(tmp_path / "off", grpo(), steps=1, alerts=False)
    assert read(tmp_path / "off")[1] == []


def test_a_worker_that_fell_silent_is_found_while_a_step_goes_on(tmp_path, monkeypatch):
    told = asyncio.Event()
    loop: list[asyncio.AbstractEventLoop] = []

    def on_alert(alert: Alert) -> None:
        if alert.id.startswith("stuck_worker/runner/w2"):
            loop[0].call_soon_threadsafe(told.set)

    async def solve(task: lightning.Task) -> float:
        """Ends when the alert was told, so the step can't end before."""
        if not loop:
            loop.append(asyncio.get_running_loop())
            async with SqliteStore(f"sqlite:///{tmp_path / 'run' / 'store.db'}") as store:
                await store.put_member(
                    Member(run_id="run", role="runner", name="w2", seen_at=time.time(), data={"host": "far"})
                )
        async with openai.AsyncOpenAI(api_key="none") as client:
            with lightning.agent("writer"):
                await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": "?"}], max_completion_tokens=2
                )
        await told.wait()
        return 0.0

    monkeypatch.setattr(observers, "LOOK_SECONDS", 0.05)
    setting = lightning.Alerts(rules={"stuck_worker": {"seconds": 0.0}}, on_alert=on_alert)
    fit(tmp_path / "run", grpo(), solve, steps=1, alerts=setting)
    (alert,) = [each for each in read(tmp_path / "run")[1] if "w2" in each.id]
    assert "runner 'w2' on far was last seen" in alert.message
    assert alert.step is None


async def test_long_rollouts_are_compared_with_others_of_their_step(monkeypatch):
    monkeypatch.setattr(observers, "LONG", 0.0)
    async with MemoryStore() as store:
        rollouts = [
            Rollout(id=f"r{n}", run_id="r", task=Task(id="t", input={}), group_id="g", step=3 - n // 6)
            for n in range(8)
        ]
        await store.enqueue(rollouts)
        first, *others = await store.lease("w", 8, 60, run_id="r")
        for place, attempt in enumerate(others):
            began = time.time() - place
            call = Call(
                id="c",
                agent="a",
                rollout_id=attempt.rollout.id,
                attempt=1,
                trained=True,
                started_at=began,
                ended_at=began,
            )
            await store.add_call(call)
            await store.finish(attempt, reward=1.0)
        look = InFlight(store, "r")
        running, ended = await look.look()
        again, _ = await look.look()
    assert list(running) == [f"{first.rollout.id} (attempt 1)"]
    assert again[f"{first.rollout.id} (attempt 1)"] >= running[f"{first.rollout.id} (attempt 1)"]
    assert sorted(round(seconds) for seconds in ended) == list(range(7))


def test_the_disk_is_read_with_its_checkpoints(tmp_path):
    for name, size in (("step-000001", 300), ("step-000002", 500)):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "weights").write_bytes(b"0" * size)
    space = read_space(3, tmp_path)
    assert (space.step, space.checkpoints, space.largest) == (3, 800, 500)
    assert 0 < space.free <= shutil.disk_usage(tmp_path).total


async def test_a_resumed_run_knows_its_last_rewards_and_no_rate_of_rollouts_that_were_there():
    console = Console(file=io.StringIO(), width=200)
    values = {"reward": 0.5, "collect_seconds": 1.0, "agent/a/completion_tokens": 70.0}
    before = [Metrics(run_id="r", step=step, values={"reward": 0.25}) for step in range(7)]
    with Display(enabled=True, steps=9, console=console) as display:
        display.start(Run(id="r"), before)
        for step in (7, 8):
            await display.step_ended(Metrics(run_id="r", step=step, values=values))
        said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "step 8 of 9  training reward 0.5 (mean of 5 steps 0.3)" in said
    assert "step 9 of 9  training reward 0.5 (mean of 5 steps 0.35)  70 tok/s" in said


async def test_without_a_terminal_each_step_is_a_line():
    console = Console(file=io.StringIO(), width=200)
    with Display(enabled=True, steps=2, console=console) as display:
        display.start(Run(id="r"), [])
        for step, reward in enumerate([0.25, 0.75]):
            values = {"reward": reward, "collect_seconds": 1.0}
            await display.step_ended(Metrics(run_id="r", step=step, values=values))
        said = console.file.getvalue()  # type: ignore[attr-defined]
    assert [line.split("  ")[0] for line in said.splitlines() if line.startswith("step")] == [
        "step 1 of 2",
        "step 2 of 2",
    ]
    assert "training reward 0.25  " in said
    assert "training reward 0.75 (mean of 2 steps 0.5)  " in said


def test_without_a_terminal_an_evaluation_says_that_it_begins_and_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = Console(file=io.StringIO(), width=200)
    tasks = [Task(id=f"t{n}", input={}, split="validation") for n in range(2)]
    rollouts = RolloutPlan("r", 0).evaluate(tasks)
    with Display(enabled=True, steps=2, console=console) as display:
        display.start(Run(id="r"), [])
        display.collecting("evaluation", rollouts)
        display.rollout_ended(rollouts[0])
        monkeypatch.setattr("lightning_core.trainer.display.TOLD_SECONDS", 0.0)  # as if they had passed
        display.rollout_ended(rollouts[1])
        display.rollout_ended(rollouts[2])
        said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line for line in said if "rollouts" in line] == [
        "after step 0: evaluation begins, 4 rollouts",
        "evaluation: 2 of 4 rollouts have ended",
        "evaluation: 3 of 4 rollouts have ended",
    ]
