"""Stored values as rows of relational tables, and back: each table's columns are written down once, here.

Statements hold marks such as `{bytes}`, in whose place each database has its own words, and `?` for an
argument.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from lightning_core.records.types import (
    Alert,
    Call,
    Credited,
    Event,
    Member,
    Metrics,
    Record,
    ResourceVersion,
    Reward,
    Rollout,
    RolloutCount,
    Run,
    Status,
)
from lightning_core.stores.deltas import BLOCK, Body, Recent, longest_prompts, wholes
from lightning_core.stores.packing import (
    Prompt,
    dump_json,
    pack_choices,
    pack_ids,
    plain,
    unpack_choices,
    unpack_prompt,
)
from lightning_core.stores.rules import event_id
from lightning_core.texts.json_text import load_json

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Record)
Row = tuple[Any, ...]
Dialect = Mapping[str, str]
"""A database's own words for the marks in SQL: its types, locks and clock."""
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_CODECS: Mapping[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = MappingProxyType(
    {
        "json": ("bytes", dump_json, load_json),
        "model": ("bytes", lambda model: dump_json(model.model_dump()), load_json),
        "status": ("text", str, Status),
        "remark": ("text", plain, str),
    }
)
"""The column of a field that is not kept as it is, what makes the column, and what the field."""


class Table(Generic[T]):
    """A table whose columns are fields of one type."""

    def __init__(
        self, name: str, kind: Callable[..., T], columns: str, key: str = "", *, own: str = "{serial}"
    ) -> None:
        """`columns`: the name of each and its type, with "?" if it may be NULL. They begin with those of the
        `key`, if rows are replaced by it. `own`: columns that no field has."""
        names, kinds = zip(*(column.split() for column in columns.split(", ")), strict=True)
        self._kind, self._fields = kind, [one.strip('"') for one in names]
        self._get = attrgetter(*self._fields)
        self._codecs = [
            (place, *_CODECS[found][1:])
            for place, one in enumerate(kinds)
            if (found := one.removesuffix("?")) in _CODECS
        ]
        self.name, self.columns, self.key = name, ", ".join(names), key
        others = [one for one in names if one not in key.split(", ")]
        self.replaced = ", ".join(f"{one} = excluded.{one}" for one in others)
        """The columns that a row replaces in another with its key."""
        self.insert = f"INSERT INTO {name} ({self.columns}) VALUES ({', '.join('?' * len(names))})"
        self.add = f"{self.insert} ON CONFLICT ({key}) DO NOTHING"
        """The statement that adds a row, unless there is one with its key."""
        self.upsert = f"{self.insert} ON CONFLICT ({key}) DO UPDATE SET {self.replaced}"
        """The statement that adds a row, or replaces that with its key."""
        unique = f", UNIQUE ({key})" if key else ""
        declared = ", ".join(map(_declared, names, kinds))
        self.create = f"CREATE TABLE {name} ({own}, {declared}{unique})"

    def row(self, value: T) -> Row:
        row = list(self._get(value))
        for place, encode, _ in self._codecs:
            row[place] = None if row[place] is None else encode(row[place])
        return tuple(row)

    def value(self, row: Row) -> T:
        """From its columns, in their order; what follows them is left out."""
        fields = dict(zip(self._fields, row, strict=False))
        for place, _, decode in self._codecs:
            if row[place] is not None:
                fields[self._fields[place]] = decode(row[place])
        return self._kind(**fields)

    def values(self, rows: Iterable[Row]) -> list[T]:
        """From the rows of one attempt."""
        return list(map(self.value, rows))

    def pack(self, value: T) -> bytes:
        """All of it in one piece, for a database without columns."""
        return dump_json(value.model_dump())

    def unpack(self, packed: bytes) -> T:
        return self._kind(**load_json(packed))

    def unpacked(self, packed: Iterable[bytes]) -> list[T]:
        """From the pieces of one attempt."""
        return list(map(self.unpack, packed))


def _declared(name: str, kind: str) -> str:
    bare = kind.removesuffix("?")
    column = _CODECS[bare][0] if bare in _CODECS else bare
    return f"{name} {{{column}}}" + ("" if kind.endswith("?") else " NOT NULL")


ROLLOUTS = Table(
    "rollouts",
    Rollout,
    "id text, run_id text, task model, group_id text, step int, split text, sampling model, priority int,"
    " max_attempts int, status status, attempts int, reward float?, error text?, created_at float,"
    " finished_at float?, policy_version int?, prompt_versions json, place text?, retry int",
    "id",
    own="{order}, worker {text}, lease_until {float}",
)
REWARDS = Table(
    "rewards",
    Reward,
    "rollout_id text, attempt int, value float, kind text, agent text?, call_id text?, source text,"
    " reason remark?, created_at float, id text?",
)
RUNS = Table(
    "runs",
    Run,
    "id text, config json, folder text?, status text, created_at float, provenance json, secret text",
    "id",
)
RESOURCES = Table(
    "resources",
    ResourceVersion,
    "run_id text, name text, version int, kind text, uri text?, parent int?, author text, metrics json,"
    " created_at float, chosen_at float?",
    "run_id, name, version",
)
METRICS = Table("metrics", Metrics, 'run_id text, step int, "values" json, created_at float', "run_id, step")
MEMBERS = Table(
    "members",
    Member,
    "run_id text, role text, name text, url text?, data json, started_at float, seen_at float",
    "run_id, role, name",
)
ALERTS = Table(
    "alerts",
    Alert,
    "run_id text, id text, rule text, level text, message remark, step int?, created_at float",
    "run_id, id",
)


_LOST = "its record, or that of an earlier call it goes on from, is damaged: restore the store from a copy"
_HEAD = ("agent", "trained", "dialect", "model", "temperature", "policy_version", "status")


class _Calls(Table[Call]):
    """A call outside any rollout has rollout_id '' and attempt 0, as NULL never equals NULL in a key.

    A row has the body of its call whole, or as a delta (`deltas.py`).
    """

    _head = attrgetter(*_HEAD)

    def row(self, value: Call) -> Row:
        return (
            value.rollout_id or "",
            value.attempt or 0,
            value.id,
            *self._head(value),
            plain(value.error),
            value.started_at,
            value.ended_at,
            dump_json(value.request),
            pack_ids(value.prompt_ids),
            *pack_choices(value.choices),
            value.response_id,
            value.endpoint,
            value.grammar,
            value.policy,
        )

    def value(self, row: Row, prompt: Prompt | None = None) -> Call:
        """`prompt`: as unpacked, if it has been."""
        fields = dict(zip(self._fields, row[:13], strict=False))
        fields |= {"rollout_id": row[0] or None, "attempt": row[1] or None}
        call = Call(
            **fields,
            choices=unpack_choices(row[15], row[16], row[17]),
            response_id=row[18],
            endpoint=row[19],
            grammar=row[20],
            policy=row[21] if len(row) > 21 else None,  # Redis keeps old rows as they are
        )
        request = load_json(row[13])
        if not isinstance(request, dict):
            raise ValueError("its request is no object")
        if prompt is None and row[14] is not None:
            prompt = unpack_prompt(row[14])
        return call.with_read(request, *(prompt or (None, None)))

    def values(self, rows: Iterable[Row]) -> list[Call]:
        """From the rows of one attempt. A damaged call is there as one that failed, and the log names it."""
        given, found, lost = list(rows), [], []
        stored = {row[2]: self.body(row) for row in given}
        whole = wholes(stored, stored)
        longest, unpacked = longest_prompts(stored, whole), dict[int, Prompt]()
        for row in given:
            try:
                body, prompt = whole[row[2]], None
                if body.prompt_ids is not None:
                    holds, count = longest[row[2]], len(body.prompt_ids) // 4
                    if id(holds) not in unpacked:
                        unpacked[id(holds)] = unpack_prompt(holds)
                    listed, packed = unpacked[id(holds)]
                    prompt = listed[:count], packed[:count]
                found.append(self.value(self.with_body(row, body), prompt))
            except (ValueError, TypeError, KeyError):
                found.append(self._lost(row))
                lost.append(row[2])
        if lost:
            log.warning(
                "rollout %s: the store lost the calls %s: %s", row[0], ", ".join(map(repr, lost)), _LOST
            )
        return found

    def _lost(self, row: Row) -> Call:
        """A call whose body is lost, as one that failed. Raises ValueError if nothing is."""
        fields = dict(zip(self._fields, (row[0] or None, row[1] or None, *row[2:9]), strict=False))
        times = {"started_at": row[11], "ended_at": row[12]}
        return Call(**fields, **times, status="failed", error=_LOST, response_id=row[18], endpoint=row[19])

    def body(self, row: Row) -> Body:
        return Body(row[13], row[14], row[16])

    def with_body(self, row: Row, body: Body) -> Row:
        return (*row[:13], body.request, body.prompt_ids, row[15], body.completion_ids, *row[17:])

    def has_completed(self, row: Row) -> bool:
        return bool(row[9] == "completed")

    def shortened(self, row: Row, recent: Recent, read: Callable[[Sequence[str]], Mapping[str, Body]]) -> Row:
        """A row as it is to be stored; see `Recent.stored`."""
        if len(row[13]) < BLOCK:
            return row
        own = self.body(row)
        body = recent.stored((row[0], row[1]), row[2], own, read, is_base=self.has_completed(row))
        return row if body is own else self.with_body(row, body)

    def pack(self, value: Call) -> bytes:
        return self.pack_row(self.row(value))

    def pack_row(self, row: Row) -> bytes:
        parts = row[13:18]
        lengths = [None if part is None else len(part) for part in parts]
        head = dump_json([*row[:13], *row[18:], lengths])
        return b"".join((b"%d:" % len(head), head, *filter(None, parts)))

    def unpack(self, packed: bytes) -> Call:
        return self.value(self.unpack_row(packed))

    def unpacked(self, packed: Iterable[bytes]) -> list[Call]:
        return self.values(map(self.unpack_row, packed))

    def unpack_row(self, packed: bytes) -> Row:
        at = packed.index(b":") + 1
        end = at + int(packed[: at - 1])
        *head, lengths = load_json(packed[at:end])
        parts: list[bytes | None] = []
        for length in lengths:
            at, end = end, end + (length or 0)
            parts.append(None if length is None else packed[at:end])
        return (*head[:13], *parts, *head[13:])


CALLS = _Calls(
    "calls",
    Call,
    "rollout_id text, attempt int, id text, agent text, trained bool, dialect text, model text,"
    " temperature float, policy_version int?, status text, error text?, started_at float, ended_at float,"
    " request bytes, prompt_ids bytes?, choices bytes, completion_ids bytes, logprobs bytes,"
    " response_id text?, endpoint text?, grammar text?, policy text?",
    "rollout_id, attempt, id",
)


class _Events(Table[Event]):
    def row(self, value: Event) -> Row:
        key = (value.rollout_id, value.attempt, value.kind, event_id(value))
        return (*key, value.started_at, self.pack(value))

    def value(self, row: Row) -> Event:
        return self.unpack(row[5])

    def unpack(self, packed: bytes) -> Event:
        return _EVENT.validate_python(load_json(packed))


EVENTS = _Events(
    "events",
    _EVENT.validate_python,
    "rollout_id text, attempt int, kind text, id text, started_at float, body bytes",
    "rollout_id, attempt, kind, id",
)
CREDITED = Table(
    "credited",
    Credited,
    "rollout_id text, attempt int, call_id text, choice int, advantage float?, value float?, weight float",
    "rollout_id, attempt, call_id, choice",
)
TABLES: tuple[Table[Any], ...] = (
    *(RUNS, ROLLOUTS, CALLS, REWARDS, EVENTS, CREDITED),
    *(RESOURCES, METRICS, MEMBERS, ALERTS),
)
SCHEMA = (
    *(table.create for table in TABLES),
    # A page is read from one of these, so it costs the same however many rollouts there are. No two begin
    # alike: else PostgreSQL might read one and sort, while it knows little of the table.
    "CREATE INDEX rollouts_of_run ON rollouts (run_id, seq)",
    "CREATE INDEX rollouts_of_step ON rollouts (step, run_id, seq)",
    "CREATE INDEX rollouts_of_split ON rollouts (split, run_id, seq)",
    "CREATE INDEX rollouts_of_status ON rollouts (status, run_id, seq)",
    # This begins as the first does: PostgreSQL reads it once it has analysed the table, as it does by itself.
    "CREATE INDEX rollouts_by_reward ON rollouts (run_id, reward, seq) WHERE reward IS NOT NULL",
    # These hold only what `lease` looks for, so it costs the same however many rollouts have ended.
    "CREATE INDEX rollouts_queued ON rollouts (priority DESC, seq) WHERE status = 'queued'",
    "CREATE INDEX rollouts_queued_of_run ON rollouts (run_id, priority DESC, seq) WHERE status = 'queued'",
    "CREATE INDEX rollouts_leased ON rollouts (lease_until) WHERE status = 'running'",
    "CREATE INDEX rollouts_held ON rollouts (worker) WHERE status = 'running'",
    "CREATE INDEX rewards_of_attempt ON rewards (rollout_id, attempt, seq)",
    "CREATE UNIQUE INDEX rewards_by_id ON rewards (rollout_id, attempt, id) WHERE id IS NOT NULL",
)
"""`seq` is the order of arrival."""
COUNT = (
    "SELECT step, split, status, count(*), count(reward), coalesce(sum(reward), 0.0) FROM rollouts"
    " WHERE run_id = ? GROUP BY step, split, status ORDER BY step, split, status"
)


def to_count(row: Row) -> RolloutCount:
    """From a row of `COUNT`."""
    return RolloutCount(**dict(zip(RolloutCount.model_fields, row, strict=True)))
