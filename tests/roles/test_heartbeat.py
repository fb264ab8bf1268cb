"""Who is at work, as the store knows it, and what a person is told of it."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from lightning_core.cli.runs import member_table
from lightning_core.records.types import Member, Rollout, Task
from lightning_core.stores import heartbeat as signs
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import MISSING_SECONDS, Heartbeat, find_living, make_member
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.trainer.rollouts import RemoteWaiter, command_for


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with MemoryStore() as opened:
        yield opened


def rollout(name: str) -> Rollout:
    return Rollout(id=name, run_id="run", task=Task(input={}), group_id="g", step=0)


async def test_a_member_is_listed_while_it_plays_and_says_where_it_is(store: Store) -> None:
    async with Heartbeat(store, make_member("run", "runner", "one", slots=4)):
        (member,) = await find_living(store, "run", "runner")
        assert member.data.keys() == {"host", "pid", "slots"}
        assert await find_living(store, "run", "gateway") == []
    assert await store.list_members("run") == []


class Slow(MemoryStore):
    """Fails the first sign of life after the entry; carries out the next whatever becomes of who asked."""

    def __init__(self) -> None:
        super().__init__()
        self.signs = 0
        self.under_way = asyncio.Event()
        self.go = asyncio.Event()
        self.carried_out = asyncio.Event()

    async def put_member(self, member: Member) -> None:
        self.signs += 1
        if self.signs == 2:
            raise ValueError("a bug of the store")
        if self.signs == 1:
            await super().put_member(member)
        else:
            self._late = asyncio.create_task(self._put_late(member))
            await asyncio.shield(self._late)

    async def _put_late(self, member: Member) -> None:
        self.under_way.set()
        await self.go.wait()
        await super().put_member(member)
        self.carried_out.set()


async def test_signs_go_on_after_any_error_and_none_comes_after_the_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signs, "BEAT_SECONDS", 0.01)
    async with Slow() as store:
        async with asyncio.timeout(10), Heartbeat(store, make_member("run", "runner", "one")):
            await store.under_way.wait()
            asyncio.get_running_loop().call_later(0.05, store.go.set)
        await store.carried_out.wait()
        assert await store.list_members("run") == []


async def test_who_gave_no_sign_of_life_for_long_is_listed_and_not_among_the_living(store: Store) -> None:
    member = make_member("run", "runner", "[dead]")
    await store.put_member(member.model_copy(update={"seen_at": time.time() - 2 * MISSING_SECONDS}))
    assert await find_living(store, "run", "runner") == []
    console = Console(file=io.StringIO(), width=160)
    console.print(member_table(await store.list_members("run")))
    assert "[dead]" in console.file.getvalue()  # type: ignore[attr-defined]
    (told,) = re.findall(r"(\d+) s ago", console.file.getvalue())  # type: ignore[attr-defined]
    assert int(told) >= 2 * MISSING_SECONDS


async def test_a_person_is_told_whom_the_run_waits_for_and_when_they_come_and_go(store: Store) -> None:
    told: list[str] = []
    waiter = RemoteWaiter(
        store, "run", ["runner"], "sqlite:///runs.db", on_rollout=lambda rollout: None, on_note=told.append
    )
    await waiter.look()
    await waiter.look()
    async with Heartbeat(store, make_member("run", "runner", "one")):
        await waiter.look()
    await waiter.look()
    assert [words.partition(";")[0] for words in told] == [
        "waiting for a worker",
        "1 worker at work",
        "no worker is left",
    ]
    assert "--store sqlite:///runs.db" in told[0]


async def test_rollouts_that_others_run_are_told_of_one_by_one(store: Store) -> None:
    heard: list[str] = []
    waiter = RemoteWaiter(
        store, "run", ["runner"], "", on_rollout=lambda one: heard.append(one.id), on_note=lambda _: None
    )
    await store.enqueue([rollout("a"), rollout("b")])
    waiting = asyncio.create_task(waiter.wait(["a", "b"]))
    for attempt in await store.lease("one", 2, 60.0):
        await store.finish(attempt, reward=1.0)
    assert [one.id for one in await waiting] == ["a", "b"]
    assert heard == ["a", "b"]


def test_the_command_that_is_told_does_not_tell_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["my train.py"])
    told = command_for("runner", "postgresql://me:secret@db.local/runs?schema=a")
    assert told == ("agentlightning worker 'my train.py' --store 'postgresql://me@db.local/runs?schema=a'")
