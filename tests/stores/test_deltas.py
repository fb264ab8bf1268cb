"""Long calls are stored once: what a conversation takes, that it comes back whole, what a damage costs."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from psycopg.sql import SQL, Identifier

from benchmarks.stores.conversation import calls, measure
from benchmarks.stores.sites import SITES
from lightning_core.errors import LeaseLostError
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Choice, Rollout, Task
from lightning_core.stores import deltas
from lightning_core.stores.base import Store
from lightning_core.stores.rows import CALLS, Row
from lightning_core.trainer.parts import open_store

SHARED = ("sqlite", "postgres", "redis")


async def leased(store: Store, *names: str) -> None:
    """Rollouts whose first attempt runs."""
    await store.enqueue(
        [Rollout(id=name, run_id="run", task=Task(input={}), group_id="g", step=0) for name in names]
    )
    await store.lease("w", len(names), 600.0)


async def found(store: Store, name: str = "r") -> list[Call]:
    return (await store.get_calls([name]))[name]


def changed(call: Call, **fields: object) -> Call:
    return Call.model_validate({**call.model_dump(), **fields})


# laws of every store --------------------------------------------------------------------------
async def test_a_conversation_comes_back_as_it_was_recorded_one_by_one_and_at_once(store: Store) -> None:
    await leased(store, "r", "at once")
    talk, other = calls("r", deltas.MOST_RELATED + 8, new=40), calls("r", 12, new=90, reply=5)
    others = [changed(one, id=f"other {one.id}", agent="critic", trained=False) for one in other]
    for number, call in enumerate(talk):
        await store.add_call(call, running=True)
        if number < len(others):
            await store.add_call(others[number])
    assert await found(store) == sorted([*talk, *others], key=lambda call: call.started_at)
    together = [changed(one, rollout_id="at once") for one in talk]
    await asyncio.gather(*(store.add_call(call) for call in together))
    assert await found(store, "at once") == together


async def test_whatever_changes_between_two_calls_comes_back(store: Store) -> None:
    await leased(store, "r")
    first, second, third, *_ = calls("r", 3)
    messages: Any = third.request["messages"]
    odd = "\u00e9\U0001f600" * 4000
    several = [Choice(index=n, completion_ids=[n, 7], logprobs=[-0.5, -1.0]) for n in (0, 1)]
    given = [
        first,
        second,
        changed(third, id="summary", request={**third.request, "messages": [messages[0], messages[-1]]}),
        changed(third, id="no ids", prompt_ids=None, choices=[]),
        changed(third, id="no prompt", prompt_ids=[]),
        changed(third, id="other tools", request={**third.request, "tools": []}),
        changed(third, id="odd", request={"messages": [*messages, odd + "\u00e8"]}, choices=several),
        changed(third, id="odder", request={"messages": [*messages, odd + "\u00e9", None]}),
        changed(third, id="same"),
        changed(third, id="shorter", request={"messages": messages[:1]}, prompt_ids=[5]),
        changed(third, id="failed", status="failed", choices=[], error="gone"),
    ]
    for call in given:
        await store.add_call(call)
    assert await found(store) == given


async def test_a_long_call_that_is_sent_again_is_stored_once_and_another_under_its_id_too(
    store: Store,
) -> None:
    await leased(store, "r")
    first, second, third = calls("r", 3)
    tried = changed(second, status="failed", choices=[])
    for call in (first, tried, second, third):
        await store.add_call(call)
    another = changed(third, prompt_ids=[1, 2], started_at=9.0, ended_at=10.0)
    for call in (second, third, another, another, tried, third):
        await store.add_call(call)
    *before, last = await found(store)
    assert before == [first, second, third]
    assert (last.prompt_ids, last.request) == ([1, 2], third.request)


async def test_a_call_that_was_refused_is_the_base_of_none(store: Store) -> None:
    await leased(store, "r", "q")
    first, second, third = calls("r", 3)
    await store.cancel(["r"])
    for call in (first, second):
        with pytest.raises(LeaseLostError):
            await store.add_call(call, running=True)
    await asyncio.gather(
        *(store.add_call(call, running=call is not third) for call in (first, second, third)),
        return_exceptions=True,
    )
    assert await found(store) == [third]


# what it takes --------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", SHARED)
def test_a_conversation_of_sixty_calls_takes_its_new_words(kind: str) -> None:
    """Its requests and prompts are 18.8 MiB as they are sent."""
    with SITES[kind]() as site:
        talk = asyncio.run(measure(site))
    assert 0.6 < talk.mib <= 1.5


# what lies in the store -----------------------------------------------------------------------
class Place:
    """A store that several may open, and its rows of calls as they lie there."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url

    def open(self) -> Store:
        return open_store(self.url, load_plugins())

    def rows(self) -> dict[str, Row]:
        if self.kind == "redis":
            with redis.Redis.from_url(self.url.partition("?")[0]) as client:
                values: Any = client.hgetall(self._key).values()
            rows = [CALLS.unpack_row(value.partition(b":")[2]) for value in values]
        else:
            rows = self._ask(f"SELECT {CALLS.columns} FROM calls ORDER BY seq")
        return {row[2]: row for row in rows}

    def put(self, row: Row) -> None:
        """In place of the row of its id."""
        if self.kind == "redis":
            with redis.Redis.from_url(self.url.partition("?")[0]) as client:
                client.hset(self._key, row[2], b"1:" + CALLS.pack_row(row))
        else:
            mark = "?" if self.kind == "sqlite" else "%b"
            self._ask(
                f"UPDATE calls SET request = {mark}, prompt_ids = {mark} WHERE id = {mark}",
                *row[13:15],
                row[2],
            )

    def set_version(self, version: int) -> None:
        """Make it a store of an earlier version, whose calls had no policy."""
        if self.kind == "redis":
            with redis.Redis.from_url(self.url.partition("?")[0]) as client:
                client.set(self.url.partition("prefix=")[2] + "schema", version)
        else:
            table = "schema_version" if self.kind == "sqlite" else "migrations"
            self._ask("ALTER TABLE calls DROP COLUMN policy")
            self._ask(f"UPDATE {table} SET version = {version}")

    @property
    def _key(self) -> str:
        return self.url.partition("prefix=")[2] + "calls:r:1"

    def _ask(self, statement: str, *values: object) -> list[Row]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as other, other:
                return other.execute(statement, values).fetchall()
        url, _, schema = self.url.rpartition("schema=")
        with psycopg.connect(url[:-1], autocommit=True) as connection:
            connection.execute(SQL("SET search_path = {}").format(Identifier(schema)))
            cursor: Any = connection.execute(statement, values, binary=True)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=SHARED)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind = request.param
    return Place(
        kind,
        f"sqlite:///{tmp_path / 'runs.db'}" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url"),
    )


def is_delta(row: Row) -> bool:
    return deltas.base_of(CALLS.body(row)) is not None


async def test_two_who_write_in_turn_and_one_who_comes_later_store_one_conversation(place: Place) -> None:
    talk = calls("r", 14)[4:]
    async with place.open() as one, place.open() as other:
        await leased(one, "r")
        for number, call in enumerate(talk[:8]):
            await (one, other)[number % 2].add_call(call)
    async with place.open() as later:
        for call in talk[8:]:
            await later.add_call(call)
        assert await found(later) == talk
    stored = place.rows()
    assert {name for name, row in stored.items() if not is_delta(row)} == {"c4", "c5", "c12"}


async def test_a_chain_is_read_where_no_body_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "MOST_BYTES", 0)
    talk = calls("r", 10)[4:]
    async with place.open() as store:
        await leased(store, "r")
        for call in talk:
            await store.add_call(call)
        assert await found(store) == talk
    stored = place.rows()
    bases = [deltas.base_of(CALLS.body(stored[call.id])) for call in talk]
    assert bases == [None, *(call.id for call in talk[:-1])]


async def test_calls_of_one_family_are_read_into_one_memory(place: Place) -> None:
    talk = calls("r", deltas.MOST_RELATED + 8)
    ids = talk[-1].prompt_ids or []
    edited = [*ids[:-100], 40_000, *ids[-99:]]
    ids_changed = changed(talk[-1], id="edited", prompt_ids=edited, started_at=98.0, ended_at=99.0)
    no_ids = changed(talk[-1], id="no ids", prompt_ids=None, choices=[], started_at=99.0, ended_at=100.0)
    async with place.open() as store:
        await leased(store, "r")
        for call in (*talk, ids_changed, no_ids):
            await store.add_call(call)
        read = await found(store)
    assert read == [*talk, ids_changed, no_ids]
    assert all(type(call.prompt_ids) is list for call in read[:-1])
    packed = [call.packed_prompt for call in read]
    assert packed[-1] is None
    assert [ids.tolist() for ids in packed if ids is not None] == [call.prompt_ids for call in read[:-1]]
    memories = [id(ids.obj) for ids in packed if ids is not None]
    whole = sum(not is_delta(row) for row in place.rows().values())
    assert len(set(memories)) == whole + 1  # the one that was edited has its own
    assert memories[-1] not in memories[:-1]


async def test_a_call_with_other_ids_or_a_copy_has_no_memory_of_a_store(place: Place) -> None:
    async with place.open() as store:
        await leased(store, "r")
        for call in calls("r", 2):
            await store.add_call(call)
        *_, read = await found(store)
    assert read.packed_prompt is not None
    assert read.model_copy(update={"prompt_ids": [1, 2]}).packed_prompt is None
    for copied in (pickle.loads(pickle.dumps(read)), read.model_copy(deep=True)):
        assert copied == read
        assert copied.packed_prompt is None


def cut(request: bytes) -> bytes:
    return request[:-40]


def rewritten(request: bytes) -> bytes:
    """Other text of the same length, so that only a checksum can tell."""
    at = request.index(b"content") + 100
    return request[:at] + bytes(97 + (one + 1) % 26 if 97 <= one < 123 else one for one in request[at:])


def headless(request: bytes) -> bytes:
    return b"\0" + request


@pytest.mark.parametrize("harm", [cut, rewritten, headless])
async def test_a_damaged_row_loses_those_that_depend_on_it_by_name_and_the_rest_is_read(
    harm: Callable[[bytes], bytes], place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    talk = calls("r", deltas.MOST_RELATED + 8, new=100)
    async with place.open() as store:
        await leased(store, "r")
        for call in talk:
            await store.add_call(call)
        stored = place.rows()
        broken = max(n for n in range(len(talk)) if not is_delta(stored[f"c{n}"])) - 5
        assert broken > 0
        row = CALLS.body(stored[f"c{broken}"])
        place.put(CALLS.with_body(stored[f"c{broken}"], row._replace(request=harm(row.request))))
        with caplog.at_level(logging.WARNING):
            after = await found(store)
        lost = [call for call in after if call not in talk]
        assert [call.id for call in lost] == [f"c{n}" for n in range(broken, broken + 5)]
        assert [call for call in after if call in talk] == [*talk[:broken], *talk[broken + 5 :]]
        assert {(call.status, call.agent, call.trained, call.prompt_ids) for call in lost} == {
            ("failed", "coder", True, None)
        }
        assert all("is damaged" in (call.error or "") for call in lost)
        assert f"calls 'c{broken}', 'c{broken + 1}'" in caplog.text
        going_on = changed(talk[-1], id="next", started_at=99.0, ended_at=100.0)
        await store.add_call(going_on)
        assert (await found(store))[-1] == going_on


async def test_a_family_of_calls_is_never_larger_than_what_a_damage_may_cost(place: Place) -> None:
    """Also where many go on from one call."""
    first, *_ = calls("r", 1)
    many = [changed(first, id=f"b{n}", prompt_ids=[*(first.prompt_ids or ()), n]) for n in range(70)]
    async with place.open() as store:
        await leased(store, "r")
        for call in (first, *many):
            await store.add_call(call)
    stored = [CALLS.body(row) for row in place.rows().values()]
    assert [deltas.base_of(one) for one in stored].count(None) == 3


@pytest.mark.parametrize(
    "harm", [{"prompt_ids": b"12345"}, {"request": b"[]"}, {"request": b"{"}], ids=["ids", "list", "half"]
)
async def test_a_damaged_whole_call_is_lost_alone(
    harm: dict[str, bytes], place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = calls("r", 2)
    second = changed(second, request={"messages": []})  # short: stored whole
    async with place.open() as store:
        await leased(store, "r")
        for call in (first, second):
            await store.add_call(call)
        row = place.rows()["c1"]
        place.put(CALLS.with_body(row, CALLS.body(row)._replace(**harm)))
        with caplog.at_level(logging.WARNING):
            kept, lost = await found(store)
    assert kept == first
    assert (lost.id, lost.status, lost.prompt_ids) == ("c1", "failed", None)
    assert "calls 'c1'" in caplog.text


@pytest.mark.parametrize("back", [1, 2])
async def test_calls_of_the_versions_before_are_read_and_gone_on_from(place: Place, back: int) -> None:
    old, new = calls("r", 2), [changed(each, policy="checker") for each in calls("r", 4)[2:]]
    async with place.open() as store:
        await leased(store, "r")
        for call in old:
            await store.add_call(call)
    for call in old:  # as they were stored then
        place.put(CALLS.row(call)[:-1])
    place.set_version({"sqlite": 11, "postgres": 8, "redis": 8}[place.kind] - back)
    async with place.open() as store:
        assert await found(store) == old
        for call in new:
            await store.add_call(call)
        assert await found(store) == [*old, *new]
