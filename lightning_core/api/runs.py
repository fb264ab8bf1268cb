"""Runs and what belongs to them as a whole: resources, metrics, members, alerts.

A gateway, and the commands that compare and export versions, read a version from where its record says. The
writer of a run could so have any folder of the machine read, or any model fetched from the hub. A token of
one run therefore names content in that run's own folder alone, and does not say which folder that is. A token
of all runs belongs to the operator, who has the machine.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import JsonValue
from starlette.responses import Response

from lightning_core.api.access import Admin, Anyone, Client, Principal, member_key
from lightning_core.api.fields import NEXT, FieldError, Nothing, Some, answer, example
from lightning_core.api.routing import JsonRoute, ListPage, reply
from lightning_core.errors import ConfigError, ScopeError
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Alert, Integer, Member, Metrics, Record, ResourceVersion, Role, Run
from lightning_core.stores import base
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import living
from lightning_core.stores.versions import POLICY_MODELS, Document, is_weights, models_of, read_number

router = APIRouter(tags=["runs"], route_class=JsonRoute)

_LARGEST = 2**63 - 1
"""The largest step; none follows it, so no page names it as `next`."""
Paged = Annotated[ListPage, Depends()]


# bodies ---------------------------------------------------------------------------------------------
class KeyedMember(Member):
    """A process that plays a role in a run, with the proof that it is that member."""

    model_config = example(run_id="run", role="runner", name="w1")
    key: str | None = None
    """A worker sends what the first answer had with each further sign of life, and to end its membership;
    with an admin's token it is not needed."""


class PublicRun(Record):
    """A run, without its secret."""

    id: str
    config: dict[str, JsonValue]
    folder: str | None
    status: str
    created_at: float
    provenance: dict[str, JsonValue]


class AddAlerts(Record):
    """Alerts to record, all or none."""

    model_config = example(
        alerts=[{"run_id": "run", "id": "a1", "rule": "disk", "message": "the disk is full"}]
    )
    alerts: Some[Alert]


Runs = answer("Runs", "Runs.", runs=(list[PublicRun], "The newest first."), next=NEXT)
SecretRuns = answer(
    "SecretRuns",
    "Runs with the secrets that sign their tokens.",
    runs=(list[Run], "The newest first."),
    next=NEXT,
)
Resources = answer(
    "Resources", "Versions of a resource.", resources=(list[ResourceVersion], "By rising version.")
)
AllMetrics = answer(
    "AllMetrics",
    "Metrics of a run.",
    metrics=(list[Metrics], 'By rising step. A number that is not finite is a string: "NaN", "Infinity".'),
    next=NEXT,
)
Members = answer("Members", "Who plays in a run.", members=(list[Member], "By role and name."))
Alerts = answer(
    "Alerts", "Alerts of a run.", alerts=(list[Alert], "In the order they were added."), next=NEXT
)
Added = answer("Added", "Alerts that were added.", new=(int, "How many were not known before."))


# routes ---------------------------------------------------------------------------------------------
@router.put("/runs", response_model=PublicRun)
async def put_run(body: Run, caller: Admin) -> Response:
    """Insert a run; of one that is known, replace the fields that are sent. Without a `secret` it keeps the
    one it has, or gets one; no answer ever shows it. Only a token of all runs moves a run's `folder`, or
    changes the model that it began with."""
    _check_secret(body.secret)
    before = await caller.store.find_run(caller.run(body.id))
    sent = {name: getattr(body, name) for name in body.model_fields_set}
    if before is not None and caller.grant.run_id is not None:
        _check_unmoved(before, sent)
    run = before.model_copy(update=sent) if before else _named(body)
    if "secret" not in sent:
        kept = before.secret if before else ""
        run = run.model_copy(update={"secret": kept or secrets.token_hex(32)})
    await caller.store.put_run(run)
    return reply(_public(run))


@router.get("/runs", response_model=Runs)
async def list_runs(caller: Client, page: Paged) -> Response:
    """The runs that the token is for, the newest first."""
    found, following = page.of(await _runs(caller), lambda run: run.id)
    return reply({"runs": [_public(run) for run in found], "next": following})


@router.get("/secrets", response_model=SecretRuns)
async def list_secrets(caller: Admin, page: Paged, run_id: str | None = None) -> Response:
    """The runs that the token is for, or one of them, with the secrets that sign their tokens: for programs
    that run or serve their rollouts. With a secret one can make tokens of its run
    that last as long as one likes."""
    found, following = page.of(await _runs(caller, run_id), lambda run: run.id)
    return reply({"runs": found, "next": following})


def _public(run: Run) -> dict[str, Any]:
    """Returns the part of a run that everybody may know."""
    return run.model_dump(exclude={"secret"})


def _named(run: Run) -> Run:
    """The same. Raises FieldError for an id that can't begin those of rollouts."""
    if not run.id or ":" in run.id:
        raise FieldError("id", f"is {run.id!r}; a run's id is not empty and has no colon in it")
    return run


def _check_secret(secret: str) -> None:
    try:
        if secret:
            Tokens(bytes.fromhex(secret))
    except (ValueError, ConfigError):
        raise FieldError("secret", "must be 32 or more hexadecimal digits; left out, one is made") from None


async def _runs(caller: Principal, run_id: str | None = None) -> list[Run]:
    wanted = caller.one_or_all(run_id)
    if wanted is None:
        return await caller.store.list_runs()
    run = await caller.store.find_run(wanted)
    return [] if run is None else [run]


@router.get("/runs/{run_id:path}", response_model=PublicRun)
async def get_run(run_id: str, caller: Client) -> Response:
    """One run."""
    return reply(_public(await base.get_run(caller.store, caller.run(run_id))))


@router.put("/resources", response_model=ResourceVersion)
async def put_resource(body: ResourceVersion, caller: Admin) -> Response:
    """Insert or replace a version of model weights or of a prompt template. With a token of one run, weights
    must lie in that run's folder."""
    caller.run(body.run_id)
    _check_content(body)
    if caller.grant.run_id is not None:
        await _check_location(caller.store, body)
    await caller.store.put_resource(body)
    return reply(body)


@router.get("/resources", response_model=Resources)
async def list_resources(run_id: str, caller: Client, name: str = "policy") -> Response:
    """All versions of a resource, by rising version."""
    return reply({"resources": await caller.store.list_resources(caller.run(run_id), name)})


def _check_content(version: ResourceVersion) -> None:
    """Raise FieldError for a version whose content is not what its name says."""
    if is_weights(version.name) and version.kind != "weights":
        raise FieldError("kind", f"is {version.kind!r}; versions of {version.name!r} are weights")
    if Document.CHOICES.has(version.name) and read_number(version.uri or "") is None:
        raise FieldError("uri", f"is {version.uri!r}; a choice names a version by its number, such as '12'")


async def _check_location(store: Store, version: ResourceVersion) -> None:
    """Raise ScopeError for weights that lie outside the folder of their run. What the store has of a version
    may stay where it is."""
    if version.kind != "weights" or version.uri is None:
        return
    known = await store.list_resources(version.run_id, version.name)
    if any((v.version, v.kind, v.uri) == (version.version, "weights", version.uri) for v in known):
        return
    run = await store.find_run(version.run_id)
    if run is None or run.folder is None:
        raise ScopeError(
            f"uri: run {version.run_id!r} has no folder, so a token of that run alone names no place of "
            "weights; use a token of all runs"
        )
    if not await asyncio.to_thread(_lies_in, version.uri, run.folder):
        raise ScopeError(
            f"uri: {version.uri!r} is not in {run.folder!r}, the folder of run {version.run_id!r}, where a "
            "token of that run alone may point; use a token of all runs"
        )


def _check_unmoved(run: Run, sent: Mapping[str, Any]) -> None:
    """Raise ScopeError for fields of a run that only a token of all runs may change."""
    config = sent.get("config", run.config)
    for name, moved in (
        ("folder", "folder" in sent and sent["folder"] != run.folder),
        ("config.model", config.get("model") != run.config.get("model")),
        (f"config.{POLICY_MODELS}", (config.get(POLICY_MODELS) or {}) != models_of(run)),
    ):
        if moved:
            raise ScopeError(
                f"{name}: a token of run {run.id!r} alone does not change it; leave it as it is, or use a "
                "token of all runs"
            )


def _lies_in(uri: str, folder: str) -> bool:
    if not os.path.isabs(uri) or "\0" in uri:
        return False
    content, root = (Path(os.path.realpath(path)) for path in (uri, folder))
    return content != root and content.is_relative_to(root)


@router.put("/metrics", response_model=Metrics)
async def put_metrics(body: Metrics, caller: Admin) -> Response:
    """Insert or replace the numbers of a step."""
    caller.run(body.run_id)
    await caller.store.put_metrics(body)
    return reply(body)


@router.get("/metrics", response_model=AllMetrics)
async def list_metrics(run_id: str, caller: Client, page: Paged, since: Integer | None = None) -> Response:
    """The metrics of a run, by rising step, from the step `since` on."""
    first = since if page.after is None else _step(page.after) + 1
    found = await caller.store.list_metrics(caller.run(run_id), since=first, limit=page.limit + 1)
    following = str(found[page.limit - 1].step) if len(found) > page.limit else None
    return reply({"metrics": found[: page.limit], "next": following})


def _step(after: str) -> int:
    with suppress(ValueError):
        if -_LARGEST <= (step := int(after)) < _LARGEST:
            return step
    raise FieldError("after", f"is {after[:40]!r}; give what the page before had as `next`")


@router.put("/members", response_model=KeyedMember)
async def put_member(body: KeyedMember, caller: Anyone) -> Response:
    """Say that a process plays a role in a run: a worker of itself, as a runner; an admin of any.

    A worker sends the `key` of the answer with each further sign of life. Without it a name is free that
    has given none for a while.
    """
    _check_role(caller, body.role)
    known = await _find_member(caller, body.run_id, body.role, body.name)
    member = Member(**body.model_dump(exclude={"key"}))
    if known is not None and not caller.admin:
        if body.key == member_key(caller.secret, known):
            member = member.model_copy(update={"started_at": known.started_at})
        elif living([known]):
            raise _another_s(known)
    await caller.store.put_member(member)
    return reply({**member.model_dump(), "key": member_key(caller.secret, member)})


@router.delete("/members", response_model=Nothing)
async def remove_member(
    run_id: str, role: Role, name: str, caller: Anyone, key: str | None = None
) -> Response:
    """Say that it has ended: a worker of itself, by its `key`."""
    _check_role(caller, role)
    known = await _find_member(caller, run_id, role, name)
    if known is not None and not caller.admin and key != member_key(caller.secret, known):
        raise _another_s(known)
    await caller.store.remove_member(run_id, role, name)
    return reply({})


async def _find_member(caller: Principal, run_id: str, role: Role, name: str) -> Member | None:
    members = await caller.store.list_members(caller.run(run_id))
    return next((member for member in members if (member.role, member.name) == (role, name)), None)


def _another_s(member: Member) -> ScopeError:
    return ScopeError(
        f"the {member.role} {member.name!r} is another's membership: send the `key` that came with it, or "
        "take another name"
    )


def _check_role(caller: Principal, role: Role) -> None:
    if not caller.admin and (caller.grant.scope, role) != ("worker", "runner"):
        raise ScopeError(f"a token of scope {caller.grant.scope!r} does not speak for a {role}")


@router.get("/members", response_model=Members)
async def list_members(run_id: str, caller: Client) -> Response:
    """The processes of a run, by role and name. One that died is still there, with an old `seen_at`."""
    return reply({"members": await caller.store.list_members(caller.run(run_id))})


@router.post("/alerts", response_model=Added)
async def add_alerts(body: AddAlerts, caller: Admin) -> Response:
    """Record that something about a run needs a person's eye. One under a known id is left out."""
    for alert in body.alerts:
        caller.run(alert.run_id)
    return reply({"new": await caller.store.add_alerts(body.alerts)})


@router.get("/alerts", response_model=Alerts)
async def list_alerts(run_id: str, caller: Client, page: Paged) -> Response:
    """The alerts of a run, in the order they were added."""
    alerts, following = page.of(await caller.store.list_alerts(caller.run(run_id)), lambda alert: alert.id)
    return reply({"alerts": alerts, "next": following})
