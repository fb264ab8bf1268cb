"""Finding and changing rollouts in Redis: each function is the steps of an operation.

The rules say what a rollout is afterwards. It is read, the rule is applied, and the result is written if the
rollout is still what was read; if not, it is read again. So every change costs two round trips, and more
only where two change the same rollout at once.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from lightning_core.stores import redis_rows, rules
from lightning_core.stores.notifications import QUEUE, QUEUED, Topic, cancelled_of, finished_of
from lightning_core.stores.packing import load_json
from lightning_core.stores.redis_connection import Commands, RedisLink, Steps
from lightning_core.stores.redis_rows import Row, load_appended, text
from lightning_core.stores.redis_scripts import FIELDS
from lightning_core.types import Attempt, Call, Reward, Rollout, RolloutCount, Split, Status

T = TypeVar("T")
MOST = 1000
"""So many are read, or changed, in one round trip."""
MOST_ADDED = 5000
"""So many are added in one step of the server."""
Rule = Callable[[Row, float], Rollout | None]
"""The rollout after a change at that time; None if it stays as it is."""


@dataclass(slots=True)
class Change:
    """Commands that are carried out together, if the rollouts they are about are still as they were read."""

    versions: dict[str, str] = field(default_factory=dict)
    """By state key; "" for a rollout that is not stored."""
    commands: list[Sequence[Any]] = field(default_factory=list)

    def words(self) -> list[Any]:
        """As the script COMMIT takes them."""
        words: list[Any] = [len(self.versions)]
        for key, version in self.versions.items():
            words += (key, version)
        words.append(len(self.commands))
        for command in self.commands:
            words += (len(command), *command)
        return words


class Rollouts:
    """The rollouts under one prefix."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._prefix = link.url.prefix

    def key(self, kind: str, *parts: object) -> str:
        return self._prefix + ":".join((kind, *map(str, parts)))

    def script(self, name: str, *words: Any) -> tuple[Any, ...]:
        """The command that runs a script."""
        return ("EVALSHA", self._link.scripts[name], 0, *words)

    def commit(self, changes: Iterable[Change]) -> tuple[Any, ...]:
        return self.script("commit", *(word for change in changes for word in change.words()))

    # reading ------------------------------------------------------------------------------
    def read(
        self, rollout_ids: Sequence[str], more: Commands | None = None
    ) -> Steps[tuple[float, dict[str, Row], list[Any]]]:
        """The server's time, those of the rollouts that are stored, by id, and the answers to `more`."""
        commands: Commands = [("TIME",)]
        for rollout_id in rollout_ids:
            commands.append(("HMGET", self.key("rollout", rollout_id), *FIELDS))
            commands.append(("GET", self.key("body", rollout_id)))
        last = len(commands)
        clock, *answers = yield [*commands, *(more or ())]
        found = map(redis_rows.to_row, rollout_ids, answers[: last - 1 : 2], answers[1 : last - 1 : 2])
        return to_time(clock), {row.rollout.id: row for row in found if row is not None}, answers[last - 1 :]

    def read_all(self, rollout_ids: Sequence[str]) -> Steps[list[Row]]:
        """Those of any number of rollouts that are stored, in that order."""
        rows: list[Row] = []
        for at in range(0, len(rollout_ids), MOST):
            some = rollout_ids[at : at + MOST]
            _, found, _ = yield from self.read(some)
            rows += (found[name] for name in some if name in found)
        return rows

    def page(
        self,
        run_id: str,
        wanted: Mapping[str, int | str],
        after: str | None,
        limit: int | None,
        newest: bool,
    ) -> Steps[list[Rollout]]:
        """Rollouts of a run, from the list of the first thing they are wanted by; so many in each round trip
        as are still missing."""
        key = self.list_of(run_id, *next(iter(wanted.items()), ()))
        low, high = "-inf", "+inf"
        if after is not None:
            ((run, place),) = yield [("HMGET", self.key("rollout", after), "r", "n")]
            if run is None or text(run) != run_id:
                raise rules.unknown_after(after, run_id)
            low = "(" + place.decode()
        found: list[Rollout] = []
        while limit is None or len(found) < limit:
            most = MOST if limit is None else min(MOST, limit - len(found))
            way = ("ZREVRANGEBYSCORE", key, high, low) if newest else ("ZRANGEBYSCORE", key, low, high)
            (names,) = yield [(*way, "LIMIT", 0, most)]
            rows = yield from self.read_all([text(name) for name in names])
            fits = (row.rollout for row in rows)
            found += (one for one in fits if all(getattr(one, k) == v for k, v in wanted.items()))
            if len(names) < most:
                break
            if newest:
                high = "(" + rows[-1].place
            else:
                low = "(" + rows[-1].place
        return found[::-1] if newest else found

    def list_of(self, run_id: str, *what: object) -> str:
        """The key of the list of a run's rollouts, or of those with one step, status or split."""
        return self.key("of", *(what or ("run",)), run_id)

    def count(self, run_id: str) -> Steps[list[RolloutCount]]:
        """How many rollouts there are of each step, split and status, and their rewards."""
        groups: defaultdict[tuple[int, Split, Status], list[float | None]] = defaultdict(list)
        low = "-inf"
        while True:
            (names,) = yield [("ZRANGEBYSCORE", self.list_of(run_id), low, "+inf", "LIMIT", 0, MOST)]
            keys = [self.key("rollout", text(name)) for name in names]
            states = (yield [("HMGET", key, "t", "l", "s", "o", "n") for key in keys]) if keys else []
            for step, split, status, outcome, _ in states:
                reward = load_json(outcome)[0] if outcome else None
                groups[int(step), split.decode(), Status(status.decode())].append(reward)
            if len(names) < MOST:
                return [rules.counted(*group, rewards) for group, rewards in sorted(groups.items())]
            low = "(" + states[-1][-1].decode()

    # changing -----------------------------------------------------------------------------
    def change(self, rollout_ids: Iterable[str], rule: Rule, request: str) -> Steps[list[Rollout]]:
        """Change those of the rollouts that the rule changes, many at a time; returns them, changed.

        An earlier try of the same request is counted in: what it did is found by the request's name.
        """
        pending = list(dict.fromkeys(rollout_ids))
        changed: list[Rollout] = []
        while pending:
            now, found, _ = yield from self.read(pending[:MOST])
            changed += (row.rollout for row in found.values() if row.request == request)
            others = (row for row in found.values() if row.request != request)
            pairs = [(row, after) for row in others if (after := rule(row, now)) is not None]
            (answers,) = yield [self.commit(self.put(row, after, request) for row, after in pairs)]
            written = [answer >= 0 for answer in answers]
            changed += (after for (_, after), done in zip(pairs, written, strict=True) if done)
            missed = [after.id for (_, after), done in zip(pairs, written, strict=True) if not done]
            pending = missed + pending[MOST:]
        return changed

    def put(self, before: Row, after: Rollout, request: str) -> Change:
        """Keep a rollout that no worker holds (any more), and tell those who wait for it."""
        key = self.key("rollout", after.id)
        change = Change({key: before.version})
        state = {"s": after.status.value, "m": after.max_attempts, "o": redis_rows.outcome(after)}
        state |= {"q": request, "w": "", "u": ""}
        change.commands.append(("HSET", key, *chain.from_iterable(state.items())))
        queues = (self.key("queue"), self.key("queue", after.run_id))
        if before.rollout.status is Status.RUNNING:
            change.commands.append(("ZREM", self.key("leases"), after.id))
            change.commands.append(("SREM", self.key("held", before.worker), after.id))
        if before.rollout.status is Status.QUEUED:
            change.commands += (("ZREM", queue, before.member) for queue in queues)
        if after.status is not before.rollout.status:
            lists = (self.list_of(after.run_id, "status", one.status) for one in (before.rollout, after))
            change.commands.append(("ZREM", next(lists), after.id))
            change.commands.append(("ZADD", next(lists), before.place, after.id))
        if after.status is Status.QUEUED:
            change.commands += (("ZADD", queue, -after.priority, before.member) for queue in queues)
            change.commands.append(self.publish(QUEUE))
        elif after.status.finished:
            change.commands.append(self.publish(finished_of(after.id)))
        if after.status is Status.CANCELLED and before.worker:
            change.commands.append(self.publish(cancelled_of(before.worker)))
        return change

    def publish(self, topic: Topic) -> tuple[Any, ...]:
        kind, name = topic
        return ("PUBLISH", self._link.url.channels + kind, name)

    # the operations on the queue ----------------------------------------------------------
    def enqueue(self, rollouts: Sequence[Rollout], request: str) -> Steps[int]:
        """Add those whose id is new, each id once; in steps, as the server does nothing else meanwhile."""
        new = 0
        for at in range(0, len(rollouts), MOST_ADDED):
            words: list[Any] = [self._prefix, self._link.url.channels + QUEUED, request]
            for one in rollouts[at : at + MOST_ADDED]:
                words += (one.id, one.run_id, one.status.value, one.attempts, one.max_attempts)
                words += (redis_rows.outcome(one), -one.priority, one.step, one.split)
                words.append(redis_rows.body(one))
            (added,) = yield [self.script("enqueue", *words)]
            new += int(added)
        return new

    def lease(
        self, queue: str, worker: str, limit: int, seconds: float, request: str, tries: int
    ) -> Steps[list[Attempt]]:
        while True:
            words = (self._prefix, queue, worker, limit, repr(seconds), request, tries)
            ((kind, found),) = yield [self.script("lease", *words)]
            if kind == b"taken":
                taken = (redis_rows.to_row(text(name), state, body) for name, state, body in found)
                rows = sorted(filter(None, taken), key=lambda row: (-row.rollout.priority, row.place))
                return [row.attempt() for row in rows]
            yield from self.change([text(name) for name in found], _expired, request + "/late")

    def heartbeat(self, attempts: Sequence[Attempt], seconds: float) -> Steps[list[Attempt]]:
        pending, held = list(attempts), []
        while pending:
            now, found, _ = yield from self.read([attempt.rollout.id for attempt in pending])
            rows = [found.get(attempt.rollout.id) for attempt in pending]
            pairs = [
                (attempt, row)
                for attempt, row in zip(pending, rows, strict=True)
                if row is not None and rules.holds(attempt, row.rollout)
            ]
            if not pairs:
                break
            (answers,) = yield [self.commit(self._extend(row, now + seconds) for _, row in pairs)]
            done = zip(pairs, answers, strict=True)
            held += [row.attempt(now + seconds) for (_, row), answer in done if answer >= 0]
            pending = [attempt for (attempt, _), answer in zip(pairs, answers, strict=True) if answer < 0]
        return held

    def finish(
        self, attempt: Attempt, reward: float | None, error: str | None, request: str
    ) -> Steps[Rollout]:
        name = attempt.rollout.id
        rewards = self.key("rewards", attempt.number, name)
        neither = reward is None and error is None
        while True:
            now, found, more = yield from self.read([name], [("HVALS", rewards)] if neither else [])
            given = rules.last_final(load_appended(Reward, more[0]), attempt.number) if neither else None
            before = found[name].rollout if name in found else None
            after = rules.finished(attempt, before, reward=reward, error=error, given=given, now=now)
            if after is before:
                return after
            change = self.put(found[name], after, request)
            if reward is not None:
                final = redis_rows.dump(rules.final_reward(after, reward, now))
                change.commands.append(("APPEND", rewards, "final", request, final))
            ((answer,),) = yield [self.commit([change])]
            if answer >= 0:
                return after

    def add_call(self, call: Call, now: int, *, running: bool) -> Steps[None]:
        while True:
            name, number = call.rollout_id or "", call.attempt or 0
            words = (self._prefix, name, number, call.id, int(running), redis_rows.pack_call(call, now))
            (answer,) = yield [self.script("call", *words)]
            if answer == b"stored":
                return
            if answer == b"taken":
                call = rules.under_own_id(call)
            else:
                _, found, _ = yield from self.read([name])
                rules.check_running(call, found[name].rollout if name in found else None)

    def add_rewards(self, rewards: Sequence[Reward], request: str, *, running: bool) -> Steps[None]:
        kept: dict[tuple[str, str], Reward] = {}
        for one, name in zip(rewards, redis_rows.reward_fields(rewards, request), strict=True):
            kept.setdefault((self.key("rewards", one.attempt, one.rollout_id), name), one)
        about = list({reward.rollout_id for reward in rewards}) if running else []
        while True:
            _, found, known = yield from self.read(about, [("HEXISTS", *place) for place in kept])
            change = Change()
            for (place, one), stored in zip(kept.items(), known, strict=True):
                if stored:
                    continue
                row = found.get(one.rollout_id)
                if running:
                    rules.check_running(one, None if row is None else row.rollout)
                if row is not None:
                    change.versions[self.key("rollout", one.rollout_id)] = row.version
                change.commands.append(("APPEND", *place, request, redis_rows.dump(one)))
            ((answer,),) = yield [self.commit([change])]
            if answer >= 0:
                return

    def _extend(self, row: Row, until: float) -> Change:
        key = self.key("rollout", row.rollout.id)
        lasts = f"{until:.6f}"
        extended = ("HSET", key, "u", lasts), ("ZADD", self.key("leases"), lasts, row.rollout.id)
        return Change({key: row.version}, list(extended))


def _expired(row: Row, now: float) -> Rollout | None:
    if row.rollout.status is not Status.RUNNING or row.until > now:
        return None
    return rules.expired(row.rollout, row.worker, now)


def to_time(clock: Sequence[bytes]) -> float:
    """The answer of TIME, as Unix seconds."""
    return int(clock[0]) + int(clock[1]) / 1e6


def queue_of(run_id: str | None) -> str:
    """The key of a run's queue, or that of all, without the prefix."""
    return "queue" if run_id is None else f"queue:{run_id}"


def firsts(values: Iterable[T], key: Callable[[T], object]) -> list[T]:
    """Of several with one key the first."""
    found: dict[object, T] = {}
    for value in values:
        found.setdefault(key(value), value)
    return list(found.values())


def request_name() -> str:
    """The name of one operation, by which its second try finds what the first did."""
    return os.urandom(8).hex()
