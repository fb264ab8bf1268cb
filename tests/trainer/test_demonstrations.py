"""Demonstrations made of recorded calls: a hosted teacher's, in any dialect, or those of another run."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.errors import ConfigError, DataError
from lightning_core.records.types import Call, Choice, Rollout, Run, Task
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.folder import RunFolder
from tests.build import make_call

ASK = [{"role": "user", "content": "How many?"}]
TOOL = {"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}
ASKED = {"id": "call_1", "type": "function", "function": {"name": "count", "arguments": "{}"}}


def call(rollout: str, number: int, request: dict, message: dict, **changes) -> Call:
    """A call that was only seen: no token ids."""
    fields = {
        "rollout_id": rollout,
        "agent": "teacher",
        "trained": False,
        "endpoint": "https://api.example.com/v1",
        "request": request,
        "choices": [Choice(message={"role": "assistant", **message}, finish_reason="stop")],
    }
    return make_call(f"c{number}", at=float(number), **{**fields, **changes})


def calls_of(rollout: str) -> list[Call]:
    """One of each dialect, and some that can't be imitated."""
    said = {"content": f"two, says {rollout}"}
    cut = [Choice(message={"role": "assistant", "content": "two, sa"}, finish_reason="length")]
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    item = {"type": "function", "name": "count", "parameters": {"type": "object"}}
    return [
        call(rollout, 0, {"messages": ASK, "temperature": 0.3}, {**said, "refusal": None}),
        call(
            rollout, 1, {"messages": ASK, "tools": [TOOL], "tool_choice": "required"}, {"content": None},
            choices=[Choice(message={"content": None, "tool_calls": [ASKED]}, finish_reason="tool_calls")],
        ),
        call(
            rollout, 2, {"input": "How many?", "instructions": "Count.", "tools": [item]}, said,
            dialect="responses",
        ),
        call(
            rollout, 3, {"system": "Count.", "messages": ASK, "max_tokens": 9}, said, dialect="anthropic"
        ),
        call(rollout, 4, {"messages": ASK}, said, agent="other"),
        call(rollout, 5, {"messages": ASK}, said, choices=cut),
        call(rollout, 6, {"messages": image}, said),
        call(rollout, 7, {"messages": ASK}, said, status="cancelled"),
        call(rollout, 8, {"prompt": "How many?"}, said, dialect="completions"),
        call(rollout, 9, {"input": "x", "previous_response_id": "r"}, said, dialect="responses"),
    ]  # fmt: skip


async def record(url: str) -> None:
    """A run with a good rollout, a bad one, a failed one, and a good one of the validation split."""
    rewards = {"good": 1.0, "bad": 0.0, "failed": None, "held-out": 1.0}
    rollouts = [
        Rollout(
            id=name,
            run_id="run",
            task=Task(id="t", input={}),
            group_id="g",
            step=0,
            split="validation" if name == "held-out" else "train",
        )
        for name in rewards
    ]
    async with SqliteStore(url) as store:
        await store.put_run(Run(id="run"))
        await store.enqueue(rollouts)
        for attempt in await store.lease("worker", limit=9, seconds=600.0, run_id="run"):
            name = attempt.rollout.id
            for one in calls_of(name):
                await store.add_call(one)
            reward = rewards[name]
            error = "broken" if reward is None else None
            await store.finish(attempt, reward=reward, error=error)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    address = f"sqlite:///{tmp_path_factory.mktemp('store') / 'teacher.db'}"
    asyncio.run(record(address))
    return address


def test_calls_of_every_dialect_become_demonstrations(url):
    found = lightning.demonstrations(url, agents="teacher", least_reward=0.5)
    text = {"content": "two, says good"}
    system = {"role": "system", "content": "Count."}
    assert [(each.messages, each.reply, each.tools) for each in found] == [
        (ASK, text, None),
        (ASK, {"tool_calls": [ASKED]}, [TOOL]),
        ([system, *ASK], text, [TOOL]),
        ([system, *ASK], text, None),
    ]
    assert {each.agent for each in found} == {"teacher"}


def test_rollouts_are_chosen_by_reward_and_split_and_calls_by_agent(url):
    assert len(lightning.demonstrations(url)) == 10
    assert len(lightning.demonstrations(url, agents=["oth*"])) == 2
    (held_out,) = lightning.demonstrations(url, agents="other", split="validation")
    assert held_out.reply == {"content": "two, says held-out"}


async def test_inside_a_running_loop_it_works_the_same(url):
    assert len(lightning.demonstrations(url)) == 10


def test_what_can_not_be_imitated_is_counted_with_its_reason(url, caplog):
    with caplog.at_level(logging.INFO, logger="lightning_core"):
        lightning.demonstrations(url, least_reward=1.0)
    for reason in ("cancelled calls", "not whole", "image_url", "completions", "responses"):
        assert reason in caplog.text


def test_nothing_to_imitate_is_an_error_with_what_there_is(url):
    with pytest.raises(DataError, match=r"2 of 3 train rollouts .*'pupil'.*'other', 'teacher'"):
        lightning.demonstrations(url, agents="pupil")


def test_a_run_s_folder_is_a_source_too(url, tmp_path):
    with RunFolder(tmp_path / "run", resume=False) as folder:
        folder.write_address(url)
    assert len(lightning.demonstrations(tmp_path / "run")) == 10
    with pytest.raises(ConfigError, match="neither"):
        lightning.demonstrations(Path("nowhere"))


def test_recorded_demonstrations_are_what_sft_takes(url):
    taught = lightning.SFT(demonstrations=lightning.demonstrations(url), batch_size=4).learns_from
    assert taught is not None
    assert len(taught.rows) == 10
