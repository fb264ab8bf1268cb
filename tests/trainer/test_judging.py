"""Judging in a run: scores become rewards once, survive a stop, and teach."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import openai
import pytest

import lightning_core as lightning
from lightning_core.algorithms.base import Algorithm, Phase
from lightning_core.backends.base import Batch
from lightning_core.credit.base import group_by_id
from lightning_core.errors import ConfigError, TrainingError
from lightning_core.experience.returns import with_final
from lightning_core.judge.judge import Judge
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Choice, Reward, Rollout, Status, Task, Trajectory
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.judging import TRIES, Judging, check_judge
from lightning_core.trainer.parts import resolve_phases
from tests.backends.models import save_model
from tests.build import make_call
from tests.judge.reading import Lines, ReadingJudge, judging, status


def number_said(lines: Lines) -> float:
    return float(lines[-1]["text"])


def rollout(name: str, group: str = "g", **fields: Any) -> Rollout:
    given = {"status": Status.SUCCEEDED, "attempts": 1, **fields}
    return Rollout(
        id=name, run_id="run", task=Task(id=f"task-{group}", input={}), group_id=group, step=0, **given
    )


def call(rollout_id: str, said: str) -> Call:
    return make_call(
        f"call-{rollout_id}",
        rollout_id=rollout_id,
        agent="writer",
        request={"messages": [{"role": "user", "content": "a number"}]},
        choices=[Choice(message={"role": "assistant", "content": said})],
    )


class Step:
    """Finished rollouts of one step in a real store, and a folder, to be judged."""

    def __init__(self, path: Path, rollouts: list[tuple[Rollout, str]], **options: Any) -> None:
        self.path = path
        self.store = MemoryStore()
        self.rollouts = [one for one, _ in rollouts]
        self.said = {one.id: said for one, said in rollouts}
        self.options = options

    async def fill(self) -> None:
        """Put the rollouts into the store as a runner leaves them."""
        queued = [one.model_copy(update={"status": Status.QUEUED, "attempts": 0}) for one in self.rollouts]
        await self.store.enqueue([one.model_copy(update={"reward": None}) for one in queued])
        for attempt in await self.store.lease("w", len(queued), 60.0):
            [own] = [one for one in self.rollouts if one.id == attempt.rollout.id]
            await self.store.add_call(call(own.id, self.said[own.id]))
            error = "broke" if own.status is Status.FAILED else None
            await self.store.finish(attempt, reward=own.reward, error=error)

    async def judge(
        self, server: ReadingJudge, **options: Any
    ) -> tuple[list[Rollout], dict[str, list[Reward]]]:
        judge = lightning.Judge(**{"model": "m", "base_url": server.url, **self.options, **options})
        ids = [one.id for one in self.rollouts]
        with RunFolder(self.path / "run", resume=(self.path / "run").exists()) as folder:
            found = await self.store.find_rollouts("run")
            rewards = await Judging(judge, self.store, folder).score(
                found, await self.store.get_calls(ids), await self.store.get_rewards(ids)
            )
        return [with_final(one, rewards[one.id]) for one in found], rewards

    async def stored(self) -> dict[str, list[float]]:
        """Returns the judge's rewards, by rollout."""
        rewards = await self.store.get_rewards([one.id for one in self.rollouts])
        return {
            name: [one.value for one in given if one.source == "judge"] for name, given in rewards.items()
        }


async def step(path: Path, rollouts: list[tuple[Rollout, str]], **options: Any) -> Step:
    made = Step(path, rollouts, **options)
    await made.fill()
    return made


async def test_scores_are_stored_as_final_rewards_and_count(tmp_path: Path) -> None:
    made = await step(tmp_path, [(rollout("a"), "0.25"), (rollout("b", reward=9.0), "0.75")])
    with judging(number_said) as server:
        judged, rewards = await made.judge(server)
    assert [one.reward for one in judged] == [0.25, 0.75]
    [given] = rewards["a"]
    assert (given.kind, given.value, given.source, given.reason) == (
        "final",
        0.25,
        "judge",
        "rule of 1 lines",
    )
    assert await made.store.get_rewards(["a", "b"]) == rewards


async def test_the_weight_mixes_the_judge_s_score_with_the_app_s_own_reward(tmp_path: Path) -> None:
    made = await step(
        tmp_path, [(rollout("a", reward=1.0), "0.5"), (rollout("b", reward=-1.0), "1.0")], weight=0.25
    )
    with judging(number_said) as server:
        judged, _ = await made.judge(server)
    assert [one.reward for one in judged] == [0.25 * 0.5 + 0.75 * 1.0, 0.25 * 1.0 - 0.75 * 1.0]


async def test_of_a_group_that_was_judged_in_part_no_score_is_weighed_twice(tmp_path: Path) -> None:
    said = [(rollout("a", reward=1.0), "0.5"), (rollout("b", reward=0.0), "0.25")]
    made = await step(tmp_path, said, weight=0.5)
    await made.store.add_rewards([Reward(rollout_id="a", attempt=1, value=0.75, source="judge")])
    with judging(number_said) as server:
        judged, _ = await made.judge(server)
    assert [one.reward for one in judged] == [0.75, 0.125]


async def test_equal_transcripts_are_shown_once_and_failed_rollouts_never(tmp_path: Path) -> None:
    penalised = rollout("p", status=Status.FAILED, reward=-1.0)
    said = [(rollout("a"), "0.5"), (rollout("b"), "0.25"), (rollout("c"), "0.5"), (penalised, "1.0")]
    made = await step(tmp_path, said)
    with judging(number_said) as server:
        judged, _ = await made.judge(server)
    assert [one.reward for one in judged] == [0.5, 0.25, 0.5, -1.0]
    [body] = server.asked
    shown = [each[-1]["text"] for each in server.transcripts(body).values()]
    assert sorted(shown) == ["0.25", "0.5"]


async def test_what_was_judged_is_not_asked_again(tmp_path: Path) -> None:
    made = await step(tmp_path, [(rollout("a"), "0.25"), (rollout("b"), "0.75")])
    with judging(number_said) as server:
        first, _ = await made.judge(server)
        again, _ = await made.judge(server)
    assert first == again
    assert len(server.asked) == 1
    assert await made.stored() == {"a": [0.25], "b": [0.75]}


async def test_an_answer_survives_in_the_folder_what_the_store_did_not_get(tmp_path: Path) -> None:
    """The trainer was killed between the answer and the store."""
    said = [(rollout("a"), "0.25"), (rollout("b"), "0.75")]
    with judging(number_said) as server:
        await (await step(tmp_path, said)).judge(server)
        made = await step(tmp_path, said)
        judged, _ = await made.judge(server)
    assert [one.reward for one in judged] == [0.25, 0.75]
    assert len(server.asked) == 1
    [kept] = (tmp_path / "run" / "judge").iterdir()
    assert sorted(one["score"] for one in json.loads(kept.read_text())["scores"]) == [0.25, 0.75]


async def test_groups_that_come_to_the_same_question_ask_it_once(tmp_path: Path) -> None:
    said = [(rollout(f"{g}{i}", g), f"0.{i}") for g in "xyz" for i in range(2)]
    made = await step(tmp_path, said)
    with judging(number_said, delay=0.2) as server:
        judged, _ = await made.judge(server)
    assert [one.reward for one in judged] == [0.0, 0.1] * 3
    assert len(server.asked) == 1


async def test_a_score_counts_where_the_clock_of_a_worker_is_ahead(tmp_path: Path) -> None:
    made = await step(tmp_path, [(rollout("a"), "0.25"), (rollout("b"), "0.75")])
    ahead = Reward(rollout_id="a", attempt=1, value=0.9, created_at=time.time() + 60)
    await made.store.add_rewards([ahead])
    with judging(number_said) as server:
        judged, _ = await made.judge(server)
    assert [one.reward for one in judged] == [0.25, 0.75]


async def test_another_rubric_or_model_is_another_question(tmp_path: Path) -> None:
    said = [(rollout("a"), "0.25"), (rollout("b"), "0.75")]
    with judging(number_said) as server:
        for options in ({}, {"rubric": "shorter is better"}, {"model": "larger"}):
            await (await step(tmp_path, said)).judge(server, **options)
    assert len(server.asked) == 3


async def test_a_question_is_made_outside_the_event_loop(tmp_path: Path) -> None:
    """Long dialogues take their time, and the gateway answers requests meanwhile."""
    threads: list[str] = []

    def rubric(task: Task) -> str:
        threads.append(threading.current_thread().name)
        return "shorter is better"

    made = await step(tmp_path, [(rollout("a"), "0.25"), (rollout("b"), "0.75")], rubric=rubric)
    with judging(number_said) as server:
        await made.judge(server)
    assert threads
    assert threading.current_thread().name not in threads


async def test_a_judge_that_is_down_stops_the_run_by_the_group_s_name_and_loses_nothing(
    tmp_path: Path,
) -> None:
    said = [(rollout(f"{g}{i}", g), f"0.{i}{n}") for n, g in enumerate("xyz") for i in range(2)]
    made = await step(tmp_path, said)
    plain, overloaded = ReadingJudge(number_said).judge, status(503, "overloaded")

    def fault(body: dict[str, Any]) -> Any:
        return overloaded(body) if "0.01" in json.dumps(body) else plain(body)

    with judging(number_said, *[fault] * (2 + TRIES)) as server:
        with pytest.raises(
            TrainingError, match=r"judge 'm' at http.*group 'y' \(task 'task-y'\).*then resume"
        ):
            await made.judge(server)
        assert {name for name, given in (await made.stored()).items() if given} == {"x0", "x1", "z0", "z1"}
        judged, _ = await made.judge(server)
    assert [one.reward for one in judged] == [0.0, 0.1, 0.01, 0.11, 0.02, 0.12]
    assert len(server.asked) == 2 + TRIES + 1


async def test_a_transcript_over_the_budget_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = await step(tmp_path, [(rollout("a"), "a" * 500), (rollout("b"), "b")], budget=100)
    with judging(lambda lines: 0.5) as server:
        await made.judge(server)
    assert "group g: 109 characters of its transcripts are left out before the judge" in caplog.text


async def test_without_a_judge_everything_stays_as_it_was(tmp_path: Path) -> None:
    rewards: dict[str, list[Reward]] = {"a": []}
    with RunFolder(tmp_path / "run", resume=False) as folder:
        done = [rollout("a")]
        assert await Judging(None, MemoryStore(), folder).score(done, {}, rewards) == rewards


# a whole run ----------------------------------------------------------------------------------
def lower_case(lines: Lines) -> float:
    """The hidden kind: the share of small letters in what the writer said."""
    text = lines[-1]["text"]
    return sum(letter.islower() for letter in text) / max(1, len(text))


class Kept(lightning.LocalBackend):
    """Keeps the trajectories of every batch."""

    def __init__(self, model: Path, trained: list[Trajectory]) -> None:
        super().__init__(model, learning_rate=3e-3)
        self.trained = trained

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        self.trained.extend(batch.trajectories)
        return await super().update(batch, algorithm)


class App:
    """An app that says something and gives no reward at all."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.trained: list[Trajectory] = []

    async def solve(self, task: lightning.Task) -> None:
        async with openai.AsyncOpenAI(api_key="none") as client:
            with lightning.agent("writer"):
                reply = await client.chat.completions.create(
                    model="policy",
                    messages=[{"role": "user", "content": str(task.input["question"])}],
                    max_completion_tokens=8,
                )
        self.said.append(reply.choices[0].message.content or "")


GROUP, TASKS, STEPS = 8, 2, 5
QUESTIONS = [{"question": f"boats {number}"} for number in range(TASKS)]


def fit(app: App, model: Path, folder: Path, server: ReadingJudge, **settings: Any) -> Any:
    trainer = lightning.Trainer(
        **{
            "agents": ["writer"],
            "judge": lightning.Judge(model="m", base_url=server.url, api_key="sk-of-the-judge"),
            "algorithm": lightning.GRPO(group_size=GROUP, tasks_per_step=TASKS, credit="uniform", entropy=0),
            "backend": Kept(model, app.trained),
            "folder": folder,
            "progress": False,
            **settings,
        }
    )
    return trainer.fit(app.solve, train=QUESTIONS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model", "qwen3")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[tuple[App, Path, ReadingJudge]]:
    """A run that was stopped by its judge at the fourth, and then resumed."""
    folder = tmp_path_factory.mktemp("judged") / "run"
    app = App()
    plain = ReadingJudge(lower_case).judge
    with judging(lower_case, *[plain] * (3 * TASKS), *[status(500)] * (TASKS * TRIES)) as server:
        with pytest.raises(TrainingError, match="gave no scores for group 'run-t3-"):
            fit(app, model, folder, server, steps=STEPS)
        assert len(app.said) == 4 * TASKS * GROUP
        fit(app, model, folder, server, steps=STEPS, resume=True)
        yield app, folder, server


def test_what_the_judge_ranks_higher_is_what_the_update_makes_more_likely(
    learnt: tuple[App, Path, ReadingJudge],
) -> None:
    """Advantages are (score - mean) / deviation of the group, in every batch before and after the stop."""
    app, folder, _ = learnt
    quality = {
        one.rollout_id: lower_case([{"text": one.choices[0].message.get("content") or ""}])
        for one in asyncio.run(_calls(folder))
    }
    groups = group_by_id(app.trained)
    assert {name.split("-")[1] for name in groups} == {f"t{step}" for step in range(STEPS)}
    for group in groups.values():
        scores = [quality[each.rollout_id] for each in group]
        assert len(scores) == GROUP
        advantages = [each.transitions[0].advantage for each in group]
        assert advantages == pytest.approx([(q - fmean(scores)) / pstdev(scores) for q in scores])


async def _calls(folder: Path) -> list[Call]:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        ids = [one.id for one in await store.find_rollouts(folder.name)]
        return [one for part in (await store.get_calls(ids)).values() for one in part]


def _batches(values: list[float]) -> list[list[float]]:
    size = TASKS * GROUP
    return [values[start : start + size] for start in range(0, len(values), size)]


def test_a_resumed_run_makes_no_rollout_and_asks_no_question_twice(
    learnt: tuple[App, Path, ReadingJudge],
) -> None:
    app, folder, server = learnt
    assert len(app.said) == STEPS * TASKS * GROUP
    failed = TASKS * TRIES
    assert len(server.asked) <= STEPS * TASKS + failed
    rewards = asyncio.run(_rewards(folder))
    assert len(rewards) == STEPS * TASKS * GROUP
    assert all([one.source for one in given] == ["judge"] for given in rewards.values())


async def _rewards(folder: Path) -> dict[str, list[Reward]]:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        return await store.get_rewards([one.id for one in await store.find_rollouts(folder.name)])


def test_the_metrics_show_the_judge_s_scores(learnt: tuple[App, Path, ReadingJudge]) -> None:
    app, folder, _ = learnt

    async def metrics() -> list[float]:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            return [entry.values["reward"] for entry in await store.list_metrics(folder.name)]

    quality = [lower_case([{"text": said}]) for said in app.said]
    assert asyncio.run(metrics()) == pytest.approx([fmean(each) for each in _batches(quality)])


def test_the_judge_s_calls_and_key_are_nowhere_in_the_run(learnt: tuple[App, Path, ReadingJudge]) -> None:
    app, folder, server = learnt
    found = asyncio.run(_calls(folder))
    assert {one.agent for one in found} == {"writer"}
    assert len(found) == len(app.said)
    assert server.keys == ["Bearer sk-of-the-judge"] * len(server.keys)
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    assert not [path for path in files if b"sk-of-the-judge" in path.read_bytes()]


def test_groups_of_one_give_a_judge_nothing_to_compare() -> None:
    judge = Judge(model="m", base_url="http://127.0.0.1:1/v1")
    with pytest.raises(ConfigError, match="'ppo' has groups of one"):
        check_judge(judge, resolve_phases([Phase(lightning.PPO(), 1)], load_plugins([])))
    check_judge(judge, resolve_phases([Phase(lightning.GRPO(), 1)], load_plugins([])))


def test_a_judge_that_can_not_be_asked_is_refused_before_any_rollout(tmp_path: Path) -> None:
    async def solve(task: Task) -> None:
        raise AssertionError("it was run")

    judge = Judge(model="m", base_url="http://host:port/v1")
    with pytest.raises(ConfigError, match="'http://host:port/v1' is no URL"):
        lightning.Trainer(model="tiny", judge=judge, folder=tmp_path / "run", steps=1, progress=False).fit(
            solve, train=[{"q": 1}]
        )
