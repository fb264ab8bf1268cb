"""Stored values as rows of relational tables, and back: each table's columns are written down once, here.

`CREATE` and all statements hold marks such as `{bytes}`, in whose place each database has its own words, and
`?` for an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from lightning_core.stores.packing import (
    dump_json,
    load_json,
    pack_choices,
    pack_ids,
    plain,
    unpack_choices,
    unpack_ids,
)
from lightning_core.stores.rules import event_id
from lightning_core.types import (
    Alert,
    Call,
    Event,
    Member,
    Metrics,
    ResourceVersion,
    Reward,
    Rollout,
    RolloutCount,
    Run,
    Status,
)

T = TypeVar("T")
Row = tuple[Any, ...]
Dialect = Mapping[str, str]
"""What a database writes in place of the marks: its types, locks and clock."""
Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""What makes a column of a field, and the field of the column."""
JSON: Codec = (dump_json, load_json)
REMARK: Codec = (plain, str)
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class Table(Generic[T]):
    """A table whose columns are fields of one type, some of them encoded."""

    def __init__(
        self, name: str, kind: Callable[..., T], columns: str, key: str = "", **codecs: Codec
    ) -> None:
        """`columns` begin with those of the `key`, if rows are replaced by it."""
        self.name, self.columns, self.key = name, columns, key
        self._kind = kind
        self._fields = [column.strip('"') for column in columns.split(", ")]
        self._get = attrgetter(*self._fields)
        self._codecs = [(self._fields.index(field), codec) for field, codec in codecs.items()]

    def row(self, value: T) -> Row:
        row = list(self._get(value))
        for place, (encode, _) in self._codecs:
            row[place] = None if row[place] is None else encode(row[place])
        return tuple(row)

    def value(self, row: Row) -> T:
        """From its columns, in their order; what follows them is left out."""
        fields = dict(zip(self._fields, row, strict=False))
        for place, (_, decode) in self._codecs:
            if row[place] is not None:
                fields[self._fields[place]] = decode(row[place])
        return self._kind(**fields)

    @property
    def insert(self) -> str:
        """The statement that adds a row."""
        marks = ", ".join("?" * len(self._fields))
        return f"INSERT INTO {self.name} ({self.columns}) VALUES ({marks})"

    @property
    def upsert(self) -> str:
        """The statement that adds a row, or replaces that with its key."""
        return f"{self.insert} ON CONFLICT ({self.key}) DO UPDATE SET {self.replaced}"

    @property
    def replaced(self) -> str:
        """What a row changes of that with its key."""
        others = self.columns.removeprefix(f"{self.key}, ").split(", ")
        return ", ".join(f"{column} = excluded.{column}" for column in others)


def _model(value: Any) -> bytes:
    return dump_json(value.model_dump())


ROLLOUTS = Table(
    "rollouts",
    Rollout,
    "id, run_id, task, group_id, step, split, sampling, priority, max_attempts, status, attempts, reward,"
    " error, created_at, finished_at, policy_version",
    task=(_model, load_json),
    sampling=(_model, load_json),
    status=(str, Status),
)
REWARDS = Table(
    "rewards",
    Reward,
    "rollout_id, attempt, value, kind, agent, call_id, source, reason, created_at, id",
    reason=REMARK,
)
RUNS = Table(
    "runs",
    Run,
    "id, config, folder, status, created_at, provenance, secret",
    "id",
    config=JSON,
    provenance=JSON,
)
RESOURCES = Table(
    "resources",
    ResourceVersion,
    "run_id, name, version, kind, uri, parent, author, metrics, created_at, chosen_at",
    "run_id, name, version",
    metrics=JSON,
)
METRICS = Table("metrics", Metrics, 'run_id, step, "values", created_at', "run_id, step", values=JSON)
MEMBERS = Table(
    "members",
    Member,
    "run_id, role, name, url, data, started_at, seen_at",
    "run_id, role, name",
    data=JSON,
)
ALERTS = Table(
    "alerts",
    Alert,
    "run_id, id, rule, level, message, step, created_at",
    "run_id, id",
    message=REMARK,
)


class _Calls(Table[Call]):
    """A call outside any rollout has rollout_id '' and attempt 0, as NULL never equals NULL in a key."""

    _head = attrgetter(
        *("agent", "trained", "dialect", "model", "temperature", "policy_version", "status"),
    )

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
        )

    def value(self, row: Row) -> Call:
        fields = dict(zip(self._fields, row[:14], strict=False))
        fields |= {"rollout_id": row[0] or None, "attempt": row[1] or None, "request": load_json(row[13])}
        return Call(
            **fields,
            prompt_ids=unpack_ids(row[14]),
            choices=unpack_choices(row[15], row[16], row[17]),
            response_id=row[18],
            endpoint=row[19],
        )


CALLS = _Calls(
    "calls",
    Call,
    "rollout_id, attempt, id, agent, trained, dialect, model, temperature, policy_version, status, error,"
    " started_at, ended_at, request, prompt_ids, choices, completion_ids, logprobs, response_id, endpoint",
    "rollout_id, attempt, id",
)


class _Events(Table[Event]):
    def row(self, value: Event) -> Row:
        key = (value.rollout_id, value.attempt, value.kind, event_id(value))
        return (*key, value.started_at, dump_json(value.model_dump()))

    def value(self, row: Row) -> Event:
        return _EVENT.validate_python(load_json(row[5]))


EVENTS = _Events(
    "events",
    _EVENT.validate_python,
    "rollout_id, attempt, kind, id, started_at, body",
    "rollout_id, attempt, kind, id",
)

SCHEMA = (
    "CREATE TABLE runs ({serial}, id {text} NOT NULL UNIQUE, config {bytes} NOT NULL, folder {text},"
    " status {text} NOT NULL, created_at {float} NOT NULL, provenance {bytes} NOT NULL,"
    " secret {text} NOT NULL)",
    "CREATE TABLE rollouts ({order}, id {text} NOT NULL UNIQUE, run_id {text} NOT NULL,"
    " task {bytes} NOT NULL,"
    " group_id {text} NOT NULL, step {int} NOT NULL, split {text} NOT NULL, sampling {bytes} NOT NULL,"
    " priority {int} NOT NULL, max_attempts {int} NOT NULL, status {text} NOT NULL, attempts {int} NOT NULL,"
    " reward {float}, error {text}, created_at {float} NOT NULL, finished_at {float}, policy_version {int},"
    " worker {text}, lease_until {float}) {often_updated}",
    # A page is read from one of these, so it costs the same however many rollouts there are. No two begin
    # alike: else PostgreSQL might read one and sort, while it knows little of the table.
    "CREATE INDEX rollouts_of_run ON rollouts (run_id, seq)",
    "CREATE INDEX rollouts_of_step ON rollouts (step, run_id, seq)",
    "CREATE INDEX rollouts_of_split ON rollouts (split, run_id, seq)",
    "CREATE INDEX rollouts_of_status ON rollouts (status, run_id, seq)",
    # These hold only what `lease` looks for, so it costs the same however many rollouts have ended.
    "CREATE INDEX rollouts_queued ON rollouts (priority DESC, seq) WHERE status = 'queued'",
    "CREATE INDEX rollouts_queued_of_run ON rollouts (run_id, priority DESC, seq) WHERE status = 'queued'",
    "CREATE INDEX rollouts_leased ON rollouts (lease_until) WHERE status = 'running'",
    "CREATE INDEX rollouts_held ON rollouts (worker) WHERE status = 'running'",
    "CREATE TABLE calls ({serial}, rollout_id {text} NOT NULL, attempt {int} NOT NULL, id {text} NOT NULL,"
    " agent {text} NOT NULL, trained {bool} NOT NULL, dialect {text} NOT NULL, model {text} NOT NULL,"
    " temperature {float} NOT NULL, policy_version {int}, status {text} NOT NULL, error {text},"
    " started_at {float} NOT NULL, ended_at {float} NOT NULL, request {bytes} NOT NULL, prompt_ids {bytes},"
    " choices {bytes} NOT NULL, completion_ids {bytes} NOT NULL, logprobs {bytes} NOT NULL,"
    " response_id {text}, endpoint {text}, UNIQUE (rollout_id, attempt, id))",
    "CREATE TABLE rewards ({serial}, rollout_id {text} NOT NULL, attempt {int} NOT NULL,"
    " value {float} NOT NULL, kind {text} NOT NULL, agent {text}, call_id {text}, source {text} NOT NULL,"
    " reason {text}, created_at {float} NOT NULL, id {text})",
    "CREATE INDEX rewards_of_attempt ON rewards (rollout_id, attempt, seq)",
    "CREATE UNIQUE INDEX rewards_by_id ON rewards (rollout_id, attempt, id) WHERE id IS NOT NULL",
    "CREATE TABLE events ({serial}, rollout_id {text} NOT NULL, attempt {int} NOT NULL, kind {text} NOT NULL,"
    " id {text} NOT NULL, started_at {float} NOT NULL, body {bytes} NOT NULL,"
    " UNIQUE (rollout_id, attempt, kind, id))",
    "CREATE TABLE resources (run_id {text} NOT NULL, name {text} NOT NULL, version {int} NOT NULL,"
    " kind {text} NOT NULL, uri {text}, parent {int}, author {text} NOT NULL, metrics {bytes} NOT NULL,"
    " created_at {float} NOT NULL, chosen_at {float}, PRIMARY KEY (run_id, name, version))",
    'CREATE TABLE metrics (run_id {text} NOT NULL, step {int} NOT NULL, "values" {bytes} NOT NULL,'
    " created_at {float} NOT NULL, PRIMARY KEY (run_id, step))",
    "CREATE TABLE members (run_id {text} NOT NULL, role {text} NOT NULL, name {text} NOT NULL, url {text},"
    " data {bytes} NOT NULL, started_at {float} NOT NULL, seen_at {float} NOT NULL,"
    " PRIMARY KEY (run_id, role, name))",
    "CREATE TABLE alerts ({serial}, run_id {text} NOT NULL, id {text} NOT NULL, rule {text} NOT NULL,"
    " level {text} NOT NULL, message {text} NOT NULL, step {int}, created_at {float} NOT NULL,"
    " UNIQUE (run_id, id))",
)
"""`seq` is the order of arrival."""
COUNT = (
    "SELECT step, split, status, count(*), count(reward), coalesce(sum(reward), 0.0) FROM rollouts"
    " WHERE run_id = ? GROUP BY step, split, status ORDER BY step, split, status"
)


def to_count(row: Row) -> RolloutCount:
    """From a row of `COUNT`."""
    return RolloutCount(**dict(zip(RolloutCount.model_fields, row, strict=True)))
