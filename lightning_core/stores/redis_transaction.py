"""A transaction in a Redis server (a `queue.Transaction`): it reads, and keeps what is to be written.

A rollout is two keys: `rollout:ID` is a small hash of what changes, kept under 64 bytes a field, so that
Redis stores it in one piece; `body:ID` is the rest, written once. The queue of a run, and that of all, is a
sorted set by falling priority, and among equals by the place of arrival, with which each member begins; and
so are the rollouts of a run by reward. All
else is in hashes such as `calls:ID:ATTEMPT`, in which each value begins with its place of arrival.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import redis

from lightning_core.records.linking import under_own_id
from lightning_core.records.types import Call, Metrics, Record, Reward, Rollout, RolloutCount, Split, Status
from lightning_core.stores import queue, rules
from lightning_core.stores.deltas import Body, Recent, base_of, wholes
from lightning_core.stores.legacy import planned_at
from lightning_core.stores.notifications import QUEUE, Topic, finished_of
from lightning_core.stores.packing import dump_json
from lightning_core.stores.queue import Held, Page
from lightning_core.stores.redis_connection import Connection, RedisLink, read
from lightning_core.stores.rows import CALLS, METRICS, REWARDS, Row, Table
from lightning_core.texts.json_text import load_json

T = TypeVar("T", bound=Record)
MOST = 1000
"""So many rollouts are read in one step of the server, which does nothing else meanwhile."""
AT_ONCE = 100
"""Number of rollouts whose records are read in one request."""
CHANGING = {"id", "run_id", "status", "attempts", "max_attempts", "reward", "error", "finished_at"}
NEW = b"9999999999999999:"
"""In front of a value that has no place of arrival yet."""
Place = tuple[str, str]
"""Key and field of a record."""


class RedisConnection:
    """A connection, and the transaction that it is in (a `queue.Transaction`)."""

    def __init__(self, raw: Connection, link: RedisLink, number: int = 0) -> None:
        """`number`: of the connections that its driver makes to write."""
        self.raw, self.number = raw, number
        self.reads_first = False
        """Whether `enqueue` looks for what is known. At first it believes that all is new."""
        self._link = link
        self._prefix = link.url.prefix
        self._recent = Recent()
        self.begin()

    def begin(self) -> None:
        """Forget the last transaction."""
        self.topics: list[Topic] = []
        self.held: dict[str, Held | None] = {}
        self.queue: Iterator[Rollout] | None = None
        self._versions: dict[str, bytes] = {}
        """Versions of the rollouts that were read."""
        self._values: dict[Place, bytes | None] = {}
        """Records that were read, as they stand now."""
        self._checks: dict[Place, bytes] = {}
        """Records that must be as they were read; empty for those that were not there."""
        self._writes: list[tuple[Any, ...]] = []
        self._ahead: dict[tuple[str, ...], Any] = {}
        """Answers that were read ahead for operations that have not begun yet."""

    def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers to the commands, in one round trip."""
        if not commands:
            return []
        self.raw.send_packed_command(self.raw.pack_commands(commands))
        answers = [read(self.raw) for _ in commands]
        for refused in answers:
            if isinstance(refused, Exception):
                raise refused
        return answers

    def commit(self, *fence: Any) -> bool:
        """Write what is to be written, unless what was read has changed meanwhile. `fence`: the writer, the
        number of its connection, and of its transaction."""
        if not self._writes and not self.topics:
            return True
        words: list[Any] = [self._prefix, *fence, len(self._checks)]
        for place, value in self._checks.items():
            words += (*place, value)
        channels = self._link.url.channels
        told = [("tell", channels + kind, name) for kind, name in dict.fromkeys(self.topics)]
        for name, *given in (*self._writes, *told):
            words += (name, len(given), *given)
        answer = self._run("commit", *words)
        if answer == b"fenced":
            raise redis.ConnectionError("another connection writes in place of this one")
        return bool(answer == b"written")

    def tell(self, topics: Iterable[Topic]) -> None:
        self.topics += topics

    # rollouts -----------------------------------------------------------------------------
    def fetch(self, rollout_ids: Sequence[str]) -> dict[str, Held]:
        found = self._read(rollout_ids)
        for name in rollout_ids:
            self._check_version(name)
        return found

    def find(self, rollout_ids: Iterable[str]) -> dict[str, Rollout]:
        return {name: rollout for name, (rollout, _) in self._read(list(rollout_ids)).items()}

    def statuses(self, rollout_ids: Iterable[str]) -> dict[str, Status]:
        names = list(rollout_ids)
        answers = self.ask([("HGET", self._key("rollout", name), "s") for name in names])
        return {name: Status(one.decode()) for name, one in zip(names, answers, strict=True) if one}

    def page(self, page: Page) -> list[Rollout]:
        way = self._by_reward if page.order == "reward" else self._by_arrival
        found: list[Rollout] = []
        for names in way(page):
            rollouts = self.find(names).values()
            found += (one for one in rollouts if all(getattr(one, k) == v for k, v in page.wanted.items()))
            if page.limit is not None and len(found) >= page.limit:
                break
        found = found[: page.limit]
        return found[::-1] if page.newest else found

    def _by_arrival(self, page: Page) -> Iterator[list[str]]:
        """Ids of rollouts as a page has them, the first thing wanted of them looked up."""
        key = self._key("of", *next(iter(page.wanted.items()), ("run",)), page.run_id)
        low = "-inf" if page.after is None else "(" + self._arrived(page, page.after)
        high = "+inf" if page.before is None else "(" + self._arrived(page, page.before)
        most = min(MOST, page.limit or MOST)
        while True:
            way = ("ZREVRANGEBYSCORE", key, high, low) if page.newest else ("ZRANGEBYSCORE", key, low, high)
            (names,) = self.ask([(*way, "WITHSCORES", "LIMIT", 0, most)])
            yield [name.decode() for name in names[::2]]
            if len(names) < 2 * most:
                return
            low, high = (low, f"({int(names[-1])}") if page.newest else (f"({int(names[-1])}", high)

    def _by_reward(self, page: Page) -> Iterator[list[str]]:
        """The same, of a step or of the whole run."""
        key = self._key("of", "reward", page.run_id)
        (size,) = self.ask([("ZCARD", key)])
        first = 0 if page.after is None else self._rank(page, page.after) + 1
        end = size if page.before is None else self._rank(page, page.before)
        if "step" in page.wanted:
            of_step = self._key("of", "step", page.wanted["step"], page.run_id)
            (names,) = self.ask([("ZRANGE", of_step, 0, -1, "WITHSCORES")])
            ids = [name.decode() for name in names[::2]]
            members = (f"{int(at):016d}{name}" for name, at in zip(ids, names[1::2], strict=True))
            ranks = self.ask([("ZRANK", key, member) for member in members])
            placed = [(rank, name) for rank, name in zip(ranks, ids, strict=True) if rank is not None]
            chosen = sorted((one for one in placed if first <= one[0] < end), reverse=page.newest)
            yield [name for _, name in chosen]
            return
        most = min(MOST, page.limit or MOST)
        while first < end:
            low, high = (max(first, end - most), end) if page.newest else (first, min(first + most, end))
            (members,) = self.ask([("ZRANGE", key, low, high - 1)])
            yield [one[16:].decode() for one in (reversed(members) if page.newest else members)]
            first, end = (first, low) if page.newest else (high, end)

    def _arrived(self, page: Page, rollout_id: str) -> str:
        """Its place of arrival."""
        ((run, place),) = self.ask([("HMGET", self._key("rollout", rollout_id), "r", "n")])
        if run is None or run.decode() != page.run_id:
            raise rules.unknown_place(rollout_id, page.run_id, known=False)
        return str(place.decode())

    def _rank(self, page: Page, rollout_id: str) -> int:
        member = self._arrived(page, rollout_id) + rollout_id
        (rank,) = self.ask([("ZRANK", self._key("of", "reward", page.run_id), member)])
        if rank is None:
            raise rules.unknown_place(rollout_id, page.run_id, known=True)
        return int(rank)

    def count(self, run_id: str) -> list[RolloutCount]:
        groups: defaultdict[tuple[int, Split, Status], list[float | None]] = defaultdict(list)
        (names,) = self.ask([("ZRANGE", self._key("of", "run", run_id), 0, -1)])
        for some in parts_of(names, MOST):
            states = [("HMGET", self._key("rollout", name.decode()), "t", "l", "s", "j") for name in some]
            for step, split, status, changing in self.ask(states):
                groups[int(step), split.decode(), Status(status.decode())].append(load_json(changing)[1])
        return [rules.counted(*group, rewards) for group, rewards in sorted(groups.items())]

    def work(self, run_id: str | None) -> tuple[bool, float | None]:
        first = ("ZRANGE", self._key("leases"), 0, 0, "WITHSCORES")
        queued, lease, (now, more) = self.ask([("EXISTS", self._key(_queue(run_id))), first, ("TIME",)])
        seconds = float(lease[1]) - int(now) - int(more) / 1e6 if lease else None
        return bool(queued) or (seconds is not None and seconds <= 0), seconds

    def due(self, limit: int, run_id: str | None) -> list[Rollout]:
        while True:
            most = limit + len(self._writes)  # what the transaction takes out of the queue is still in it
            late, rows = self._run("read", self._prefix, _queue(run_id), most)
            if not late:
                return [rollout for rollout, _ in self._held(rows).values()]
            self._expire(rows)

    def leased_by(self, worker: str) -> list[str]:
        (names,) = self.ask([("SMEMBERS", self._key("held", worker))])
        return [name.decode() for name in names]

    def enqueue(self, rollouts: Sequence[Rollout]) -> Callable[[], int]:
        given: dict[str, Rollout] = {}
        for one in rollouts:
            given.setdefault(one.id, one)
        known = (
            queue.lock(self, given) if self.reads_first else {name for name in given if self.held.get(name)}
        )
        new = [one for name, one in given.items() if name not in known]
        for one in new:
            self._checks[f"rollout:{one.id}", "v"] = b""
            body = dump_json(one.model_dump(exclude=CHANGING))
            place = (one.id, one.run_id, -one.priority, one.step, one.split, body)
            self._writes.append(("new", *place, *_changing(one), "", ""))
        self.held |= {one.id: (one, None) for one in new}
        self.tell([QUEUE])
        return lambda: len(new)

    def put(self, rollouts: Sequence[Rollout], worker: str | None, seconds: float | None) -> None:
        lease = (worker or "", "" if seconds is None else repr(seconds))
        for one in rollouts:
            self._check_version(one.id)
            self._writes.append(("put", one.id, *_changing(one), *lease))

    def _read(self, rollout_ids: Sequence[str]) -> dict[str, Held]:
        found: dict[str, Held] = {}
        for some in parts_of(rollout_ids, MOST):
            found |= self._held(self._run("read", self._prefix, "", 0, *some)[1])
        return found

    def _held(self, rows: Iterable[Any]) -> dict[str, Held]:
        found: dict[str, Held] = {}
        for packed, state, body in rows:
            name = packed.decode()
            self._versions.setdefault(name, state[-1])
            found[name] = _rollout(name, state, body), state[4].decode() or None
        return found

    def _expire(self, rows: Iterable[Any]) -> None:
        """End leases that ran out, at once: the transaction then reads what is queued by that. If another did
        the same, this changes nothing."""
        other = RedisConnection(self.raw, self._link)
        late = [rules.expired(one, worker, time.time()) for one, worker in other._held(rows).values()]
        other.put(late, None, None)
        other.tell(finished_of(one.id) if one.status.finished else QUEUE for one in late)
        other.commit("", "", "")

    def _check_version(self, name: str) -> None:
        self._checks.setdefault((f"rollout:{name}", "v"), self._versions.get(name, b""))

    # what happened in them ----------------------------------------------------------------
    def put_call(self, call: Call, *, running: bool) -> None:
        while True:
            place, whole = place_of(CALLS, call), CALLS.row(call)
            known = self.values([place])[place]
            before = None if known is None else CALLS.unpack_row(_content(known))
            if before is None or not CALLS.has_completed(before):
                break
            if call.status != "completed" or self._whole(place, before) == whole:
                return
            call = under_own_id(call)
        if running:
            name = call.rollout_id or ""
            rules.check_running(call, queue.lock(self, [name]).get(name, (None, None))[0])
        read = partial(self._bodies, place[0])
        self._add(place, CALLS.pack_row(CALLS.shortened(whole, self._recent, read)))

    def _bodies(self, key: str, names: Sequence[str]) -> dict[str, Body]:
        """The bodies of completed calls of an attempt. No store changes these, so they are not checked."""
        (values,) = self.ask([("HMGET", self._key(key), *names)])
        given = {name: self._values.get((key, name)) or old for name, old in zip(names, values, strict=True)}
        rows = {name: CALLS.unpack_row(_content(value)) for name, value in given.items() if value}
        return {name: CALLS.body(row) for name, row in rows.items() if CALLS.has_completed(row)}

    def _whole(self, place: Place, row: Row) -> Row:
        """A completed call's row, whole."""
        body = CALLS.body(row)
        if base_of(body) is None:
            return row
        (names,) = self.ask([("HKEYS", self._key(place[0]))])
        bodies = self._bodies(place[0], [*(name.decode() for name in names), place[1]])
        return CALLS.with_body(row, wholes(bodies, [place[1]]).get(place[1], body))

    def add_rewards(self, rewards: Sequence[Reward]) -> None:
        self.add(REWARDS, rewards)
        for name in {one.rollout_id for one in rewards}:
            if self.held.get(name):  # a finish that is decided meanwhile must read them
                self._writes.append(("touch", name))

    def is_stored(self, reward: Reward) -> bool:
        place = place_of(REWARDS, reward)
        return self.values([place])[place] is not None

    def rewards(self, rollout_id: str, attempt: int) -> list[Reward]:
        key = f"rewards:{rollout_id}:{attempt}"
        (given,) = self.ask([("HVALS", self._key(key))])
        new = [
            value for (at, _), value in self._values.items() if at == key and value and value.startswith(NEW)
        ]
        return _unpacked(REWARDS, [*given, *new])

    def of_last_attempts(self, table: Table[T], rollout_ids: Sequence[str]) -> dict[str, list[T]]:
        found: dict[str, list[T]] = {}
        for some in parts_of(rollout_ids, AT_ONCE):
            answer = self._ahead.pop((table.name, *some), None)
            if answer is None:
                answer = self._run("last", self._prefix, table.name, *some)
            found |= {name: _unpacked(table, packed) for name, packed in zip(some, answer, strict=True)}
        return found

    def look_ahead(self, wanted: Iterable[tuple[Table[Any], Sequence[str]]]) -> None:
        """Read at once what several operations are about to read."""
        names = [(table.name, *ids) for table, ids in wanted if len(ids) <= AT_ONCE]
        self._ahead = dict(
            zip(names, self.ask([self._script("last", self._prefix, *one) for one in names]), strict=True)
        )

    # records ------------------------------------------------------------------------------
    def select(self, table: Table[T], **wanted: str) -> list[T]:
        key, field = _of_key(table, list(wanted.values()))
        whole = list(wanted) == table.key.split(", ")
        (packed,) = self.ask([("HGET", self._key(key), field) if whole else ("HVALS", self._key(key))])
        found = _unpacked(table, filter(None, [packed]) if whole else packed)
        return [one for one in found if all(getattr(one, name) == value for name, value in wanted.items())]

    def metrics(self, run_id: str, since: int | None, limit: int | None) -> list[Metrics]:
        key = self._key("metrics", run_id)
        (steps,) = self.ask([("HKEYS", key)])
        wanted = sorted(step for step in map(int, steps) if since is None or step >= since)[:limit]
        packed = self.ask([("HMGET", key, *wanted)])[0] if wanted else []
        return [METRICS.unpack(_content(one)) for one in packed if one is not None]

    def upsert(self, table: Table[T], records: Iterable[T]) -> None:
        for one in records:
            self._add(place_of(table, one), table.pack(one))

    def add(self, table: Table[T], records: Sequence[T]) -> Callable[[], int]:
        places = [place_of(table, one) for one in records]
        known = {place for place, value in self.values(places).items() if value is not None}
        new: dict[Place, T] = {}
        for place, one in zip(places, records, strict=True):
            if place not in known:
                new.setdefault(place, one)
        for place, one in new.items():
            self._add(place, table.pack(one))
        return lambda: len(new)

    def remove(self, table: Table[Any], *key: str) -> None:
        self._writes.append(("remove", *_of_key(table, key)))

    def values(self, places: Iterable[Place]) -> dict[Place, bytes | None]:
        """Returns the records at these places; no other writer may change them."""
        wanted = dict.fromkeys(places)
        missing = [place for place in wanted if place not in self._values]
        answers = self.ask([("HGET", self._key(key), field) for key, field in missing])
        for place, value in zip(missing, answers, strict=True):
            self._values[place], self._checks[place] = value, value or b""
        return {place: self._values[place] for place in wanted}

    def _add(self, place: Place, packed: bytes) -> None:
        self._writes.append(("add", *place, packed))
        self._values[place] = NEW + packed

    def _key(self, *parts: object) -> str:
        return self._prefix + ":".join(map(str, parts))

    def _run(self, script: str, *words: Any) -> Any:
        (answer,) = self.ask([self._script(script, *words)])
        return answer

    def _script(self, name: str, *words: Any) -> tuple[Any, ...]:
        """The command that runs a script."""
        return ("EVALSHA", self._link.scripts[name], 0, *words)


def _queue(run_id: str | None) -> str:
    return "queue" if run_id is None else f"queue:{run_id}"


def _changing(one: Rollout) -> tuple[Any, ...]:
    """Returns the changing fields of a rollout, as the scripts take them."""
    return (
        one.status.value,
        one.attempts,
        dump_json([one.max_attempts, one.reward, one.error, one.finished_at]),
        "" if one.reward is None else repr(one.reward),
    )


def _rollout(name: str, state: Sequence[bytes], body: bytes) -> Rollout:
    run, status, attempts, changing, *_ = state
    most, reward, error, finished_at = load_json(changing)
    fixed = load_json(body)
    if "place" not in fixed:
        fixed["place"], fixed["retry"] = planned_at(name, run.decode(), fixed["step"], fixed["split"])
    return Rollout(
        **fixed,
        id=name,
        run_id=run.decode(),
        status=Status(status.decode()),
        attempts=int(attempts),
        max_attempts=most,
        reward=reward,
        error=error,
        finished_at=finished_at,
    )


def place_of(table: Table[Any], record: Any) -> Place:
    if isinstance(record, Call):
        return f"calls:{record.rollout_id or ''}:{record.attempt or 0}", record.id
    if table is REWARDS:
        own = f"#{secrets.token_hex(8)}" if record.id is None else f"={record.id}"
        return f"rewards:{record.rollout_id}:{record.attempt}", own
    if table.name == "credited":
        return f"credited:{record.rollout_id}:{record.attempt}", f"{record.call_id}\0{record.choice}"
    if table.name == "events":
        own = f"{record.kind}:{rules.event_id(record)}"
        return f"events:{record.rollout_id}:{record.attempt}", own
    return _of_key(table, [getattr(record, name) for name in table.key.split(", ")])


def _of_key(table: Table[Any], key: Sequence[object]) -> Place:
    """Returns the place of a key or of its beginning: the records of a run are one hash, and the runs are
    another."""
    scope = 1 if ", " in table.key else 0
    return ":".join([table.name, *map(str, key[:scope])]), "\0".join(map(str, key[scope:]))


def _unpacked(table: Table[T], values: Iterable[bytes]) -> list[T]:
    """The records, in the order they came."""
    parts = sorted((one.split(b":", 1) for one in values), key=lambda pair: int(pair[0]))
    return table.unpacked(packed for _, packed in parts)


def _content(value: bytes) -> bytes:
    """A record, without its place of arrival."""
    return value.partition(b":")[2]


def parts_of(some: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    for at in range(0, len(some), most):
        yield some[at : at + most]
