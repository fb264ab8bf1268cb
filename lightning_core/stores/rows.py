"""Stored values as rows of a relational schema, and back.

The columns of each table are written down once, here, in the order of the tuples.
"""

from __future__ import annotations

import sqlite3
from typing import Any

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
    Attempt,
    Call,
    Event,
    Member,
    Metrics,
    ResourceVersion,
    Reward,
    Rollout,
    RolloutCount,
    Run,
    Sampling,
    Status,
    Task,
)

Row = tuple[Any, ...]
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)

ROLLOUT = (
    "id, run_id, task, group_id, step, split, sampling, priority, max_attempts, status, attempts,"
    " reward, error, created_at, finished_at, policy_version"
)
CALL = (
    "rollout_id, attempt, id, agent, trained, dialect, model, temperature, policy_version, status, error,"
    " started_at, ended_at, request, prompt_ids, choices, completion_ids, logprobs, response_id,"
    " endpoint"
)
CALL_KEY = "rollout_id, attempt, id"
REPLACED_OF_CALL = ", ".join(f"{name} = excluded.{name}" for name in CALL.split(", ")[3:])
"""What a later try of a call changes."""
STATUS_OF_CALL = CALL.split(", ").index("status")
EVENT = "rollout_id, attempt, kind, id, started_at, body"
REWARD = "rollout_id, attempt, value, kind, agent, call_id, source, reason, created_at, id"
RUN = "id, config, folder, status, created_at, provenance, secret"
RESOURCE = "run_id, name, version, kind, uri, parent, author, metrics, created_at, chosen_at"
METRICS = "run_id, step, numbers, created_at"
MEMBER = "run_id, role, name, url, data, started_at, seen_at"
ALERT = "run_id, id, rule, level, message, step, created_at"


COUNT = (
    "SELECT step, split, status, count(*), count(reward), coalesce(sum(reward), 0.0) FROM rollouts"
    " WHERE run_id = {} GROUP BY step, split, status ORDER BY step, split, status"
)
"""The rows of `to_count`, for a run."""


def insert(table: str, columns: str, *, otherwise: str = "") -> str:
    """INSERT statement for rows of these columns; `otherwise` is "OR REPLACE" or "OR IGNORE"."""
    marks = ", ".join("?" * (columns.count(",") + 1))
    return f"INSERT {otherwise} INTO {table} ({columns}) VALUES ({marks})"


def of(table: str, columns: str) -> str:
    """The columns, each with the name of its table."""
    return ", ".join(f"{table}.{column.strip()}" for column in columns.split(","))


def attempt(rollout: Rollout, worker: str, lease_until: float) -> Attempt:
    return Attempt(rollout=rollout, number=rollout.attempts, worker=worker, lease_until=lease_until)


def rollout_row(rollout: Rollout) -> Row:
    return (
        rollout.id,
        rollout.run_id,
        dump_json(rollout.task.model_dump()),
        rollout.group_id,
        rollout.step,
        rollout.split,
        dump_json(rollout.sampling.model_dump()),
        rollout.priority,
        rollout.max_attempts,
        rollout.status.value,
        rollout.attempts,
        rollout.reward,
        rollout.error,
        rollout.created_at,
        rollout.finished_at,
        rollout.policy_version,
    )


def to_rollout(row: sqlite3.Row | Row) -> Rollout:
    """From the columns of `ROLLOUT`, in that order."""
    return Rollout(
        id=row[0],
        run_id=row[1],
        task=Task(**load_json(row[2])),
        group_id=row[3],
        step=row[4],
        split=row[5],
        sampling=Sampling(**load_json(row[6])),
        priority=row[7],
        max_attempts=row[8],
        status=Status(row[9]),
        attempts=row[10],
        reward=row[11],
        error=row[12],
        created_at=row[13],
        finished_at=row[14],
        policy_version=row[15],
    )


def to_count(row: Row) -> RolloutCount:
    step, split, status, count, rewarded, reward = row
    return RolloutCount(
        step=step, split=split, status=Status(status), count=count, rewarded=rewarded, reward=reward
    )


def call_row(call: Call) -> Row:
    return (
        call.rollout_id or "",
        call.attempt or 0,
        call.id,
        call.agent,
        call.trained,
        call.dialect,
        call.model,
        call.temperature,
        call.policy_version,
        call.status,
        plain(call.error),
        call.started_at,
        call.ended_at,
        dump_json(call.request),
        pack_ids(call.prompt_ids),
        *pack_choices(call.choices),
        call.response_id,
        call.endpoint,
    )


def to_call(row: Row) -> Call:
    """From the columns of `CALL`, in that order."""
    return Call(
        rollout_id=row[0] or None,
        attempt=row[1] or None,
        id=row[2],
        agent=row[3],
        trained=bool(row[4]),
        dialect=row[5],
        model=row[6],
        temperature=row[7],
        policy_version=row[8],
        status=row[9],
        error=row[10],
        started_at=row[11],
        ended_at=row[12],
        request=load_json(row[13]),
        prompt_ids=unpack_ids(row[14]),
        choices=unpack_choices(row[15], row[16], row[17]),
        response_id=row[18],
        endpoint=row[19],
    )


def event_row(event: Event) -> Row:
    body = dump_json(event.model_dump())
    return event.rollout_id, event.attempt, event.kind, event_id(event), event.started_at, body


def to_event(row: Row) -> Event:
    """From the columns of `EVENT`, in that order."""
    return _EVENT.validate_python(load_json(row[5]))


def reward_row(reward: Reward) -> Row:
    return (
        reward.rollout_id,
        reward.attempt,
        reward.value,
        reward.kind,
        reward.agent,
        reward.call_id,
        reward.source,
        plain(reward.reason),
        reward.created_at,
        reward.id,
    )


def to_reward(row: Row) -> Reward:
    """From the columns of `REWARD`, in that order."""
    return Reward(**dict(zip(REWARD.split(", "), row, strict=True)))


def run_row(run: Run) -> Row:
    provenance = dump_json(run.provenance)
    return run.id, dump_json(run.config), run.folder, run.status, run.created_at, provenance, run.secret


def to_run(row: Row) -> Run:
    return Run(
        id=row[0],
        config=load_json(row[1]),
        folder=row[2],
        status=row[3],
        created_at=row[4],
        provenance=load_json(row[5]),
        secret=row[6],
    )


def resource_row(version: ResourceVersion) -> Row:
    return (
        version.run_id,
        version.name,
        version.version,
        version.kind,
        version.uri,
        version.parent,
        version.author,
        dump_json(version.metrics),
        version.created_at,
        version.chosen_at,
    )


def to_resource(row: Row) -> ResourceVersion:
    fields = dict(zip(RESOURCE.split(", "), row, strict=True))
    return ResourceVersion(**{**fields, "metrics": load_json(row[7])})


def metrics_row(metrics: Metrics) -> Row:
    return metrics.run_id, metrics.step, dump_json(metrics.values), metrics.created_at


def to_metrics(row: Row) -> Metrics:
    return Metrics(run_id=row[0], step=row[1], values=load_json(row[2]), created_at=row[3])


def member_row(member: Member) -> Row:
    data = dump_json(member.data)
    return member.run_id, member.role, member.name, member.url, data, member.started_at, member.seen_at


def to_member(row: Row) -> Member:
    fields = dict(zip(MEMBER.split(", "), row, strict=True))
    return Member(**{**fields, "data": load_json(row[4])})


def alert_row(alert: Alert) -> Row:
    message = plain(alert.message)
    return alert.run_id, alert.id, alert.rule, alert.level, message, alert.step, alert.created_at


def to_alert(row: Row) -> Alert:
    return Alert(**dict(zip(ALERT.split(", "), row, strict=True)))
