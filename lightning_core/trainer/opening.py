"""Opening a run: the record that says what it is, and the refusal to go on with anything else."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Any

from lightning_core.errors import ConfigError
from lightning_core.runner.config import RECORDED
from lightning_core.trainer.provenance import describe_origin, resumed
from lightning_core.trainer.roles.runner import rollout_config
from lightning_core.trainer.session import Session
from lightning_core.types import Record, Run, Task


async def open_run(session: Session, train: Sequence[Task], validation: Sequence[Task]) -> Run:
    """Record the run as running, with the key of its tokens, and let its folder say where it is kept.

    A resumed run must plan the same rollouts as before and evaluate the same tasks, or its numbers would
    compare different things: anything else raises ConfigError.
    """
    folder, store = session.folder, session.store
    plan = _plan(session, train, validation)
    known = await store.find_run(folder.run_id)
    rollouts = rollout_config(session.settings, session.solve)
    origin = await asyncio.to_thread(describe_origin, session.settings, session.plugins.list())
    run = Run(
        id=folder.run_id,
        config={**plan, RECORDED: rollouts.written()},
        folder=str(folder.path.resolve()),
        secret=secrets.token_hex(32),
        provenance=origin,
    )
    if known is not None:
        _check(session, known, plan)
        kept: dict[str, Any] = {"created_at": known.created_at, "secret": known.secret or run.secret}
        run = run.model_copy(update={**kept, "provenance": resumed(known.provenance, origin)})
    elif folder.latest_checkpoint() is not None:
        raise ConfigError(
            f"{str(folder.path)!r} holds checkpoints of a run that its store does not know; "
            "resume it with the store it was begun with"
        )
    await store.put_run(run)
    before = folder.read_address() or {}
    folder.write_address(session.settings.store or before.get("store"), before.get("port"))
    return run


def _plan(session: Session, train: Sequence[Task], validation: Sequence[Task]) -> dict[str, Any]:
    trainer = session.settings
    return {
        "seed": trainer.seed,
        "model": session.backend.model,
        "train tasks": _digest(train),
        "validation tasks": _digest(validation),
        "group_size": [phase.algorithm.group_size for phase in session.phases],
        "tasks_per_step": [phase.algorithm.tasks_per_step for phase in session.phases],
        "phases": [[phase.algorithm.name, phase.first] for phase in session.phases],
        "demonstrations": [
            [_digest(teaching.demonstrations), teaching.batch_size]
            for phase in session.phases
            if (teaching := phase.algorithm.teaching) is not None
        ],
        "agents": None if trainer.patterns is None else list(trainer.patterns),
        "algorithm": [_said(phase.algorithm) for phase in session.phases],
        "air": None if session.rulebook is None else _said(session.rulebook.air),
        "judge": None if trainer.judge is None else _said(trainer.judge.scoring),
    }


def _said(settings: object) -> str:
    """What settings say of themselves, which is the same in another process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(settings))


def _digest(tasks: Sequence[Record]) -> str:
    content = hashlib.blake2b(digest_size=8)
    for task in tasks:
        content.update(task.model_dump_json().encode() + b"\n")
    return content.hexdigest()


def _check(session: Session, known: Run, plan: dict[str, Any]) -> None:
    folder, trainer = session.folder, session.settings
    if not trainer.resume or (trainer.store and known.folder != str(folder.path.resolve())):
        raise ConfigError(
            f"the store already holds a run {folder.run_id!r}, of folder {known.folder!r}; resume it "
            "(--resume), or give this run a folder of another name"
        )
    # a name that is not known: the run was begun by a version that did not ask
    changed = sorted(n for n, value in plan.items() if n in known.config and known.config[n] != value)
    if changed:
        raise ConfigError(
            f"run {folder.run_id!r} can't be resumed with another {', '.join(changed)}; "
            "give the same as before, or start a new run in another folder"
        )
