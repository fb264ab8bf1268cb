"""The record of a run: its settings, where its numbers come from, and a refusal of any other run.

The provenance has all settings, versions, git state, machine and command line, as they were when the run was
opened. A resumed run keeps what it began with and adds what is different now. Secrets stay out: the
environment is never read, and what looks like a password in a URL, a flag or a setting is masked.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import os
import platform
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from lightning_core.backends.machine import machine_memory
from lightning_core.errors import ConfigError
from lightning_core.gateway.naming import CONFIG
from lightning_core.insight.why import CREDIT, Method
from lightning_core.plugins import PluginInfo
from lightning_core.prompts import ALL, DECLARED, FOUND, LEFT_OUT, written
from lightning_core.records.types import Record, Run, Task
from lightning_core.runner.config import RECORDED
from lightning_core.stores.versions import POLICIES, POLICY_MODELS
from lightning_core.texts.masking import mask, masked
from lightning_core.trainer.roles.runner import rollout_config
from lightning_core.trainer.session import Session, other_way

PACKAGES = {
    "agent-lightning-core": "lightning_core",
    "autogen-agentchat": "autogen_agentchat",
    "crewai": "crewai",
    "langchain-core": "langchain_core",
    "langgraph": "langgraph",
    "numpy": "numpy",
    "openai": "openai",
    "openai-agents": "agents",
    "anthropic": "anthropic",
    "peft": "peft",
    "pydantic-ai-slim": "pydantic_ai",
    "ray": "ray",
    "tinker": "tinker",
    "tokenizers": "tokenizers",
    "torch": "torch",
    "transformers": "transformers",
    "verl": "verl",
    "vllm": "vllm",
}
"""Distributions that matter to the numbers, and what they are imported as."""
GIT_SECONDS = 5.0
"""Git may look through a large tree; a run does not wait for it."""


async def open_run(session: Session, train: Sequence[Task], validation: Sequence[Task]) -> Run:
    """Record the run as running, with the key of its tokens, and let its folder say where it is kept.

    A resumed run must plan the same rollouts as before and evaluate the same tasks, or its numbers would
    compare different things: anything else raises ConfigError.
    """
    folder, store = session.folder, session.store
    plan = _plan(session, train, validation)
    known = await store.find_run(folder.run_id)
    rollouts = rollout_config(session.settings, session.solve)
    models: dict[str, JsonValue] = {name: of for name, of in session.models.items() if name is not None}
    origin = await asyncio.to_thread(describe_origin, session.settings, session.plugins.list())
    run = Run(
        id=folder.run_id,
        config={**plan, RECORDED: rollouts.written(), POLICY_MODELS: models},
        folder=str(folder.path.resolve()),
        secret=secrets.token_hex(32),
        provenance=origin,
    )
    if known is not None:
        _check(session, known, plan)
        kept: dict[str, Any] = {
            "config": {
                **run.config,
                **{name: known.config[name] for name in (FOUND, LEFT_OUT) if name in known.config},
            },
            "created_at": known.created_at,
            "secret": known.secret or run.secret,
        }
        run = run.model_copy(update={**kept, "provenance": resumed(known.provenance, origin)})
    elif folder.latest_checkpoint() is not None:
        raise ConfigError(
            f"{str(folder.path)!r} holds checkpoints of a run that its store does not know; "
            "resume it with the store that it was started with"
        )
    await store.put_run(run)
    before = folder.read_address() or {}
    folder.write_address(session.settings.store or before.get("store"), before.get("port"))
    return run


def _plan(session: Session, train: Sequence[Task], validation: Sequence[Task]) -> dict[str, Any]:
    trainer = session.settings
    return {
        "seed": trainer.seed,
        "model": str(session.backend.model),
        "temperature": trainer.temperature,
        "backend": session.backend.name,
        "train tasks": _digest(train),
        "validation tasks": _digest(validation),
        "group_size": [phase.algorithm.group_size for phase in session.phases],
        "tasks_per_step": [phase.algorithm.tasks_per_step for phase in session.phases],
        "phases": sorted(
            [
                *([phase.algorithm.name, phase.first] for phase in session.phases),
                *([search.name, step] for step, search in trainer.searches.items()),
            ],
            key=lambda each: each[1],
        ),
        "searches": [_said(replace(each, budget=1)) for each in trainer.searches.values()],
        "demonstrations": [
            [_digest(given.rows), given.batch_size]
            for phase in session.phases
            if (given := phase.algorithm.learns_from) is not None
        ],
        DECLARED: ALL if trainer.prompts == ALL else written(trainer.declared_prompts),
        "agents": _trained(session),
        POLICIES: trainer.agent_policies,
        CONFIG: dict(trainer.names),
        "algorithm": [_said(phase.algorithm) for phase in session.phases],
        CREDIT: [
            Method(
                credit=phase.credit,
                baseline=phase.algorithm.baseline,
                scale=phase.algorithm.scale,
                first=phase.first,
                lowest=session.settings.on_failure.lowest,
            ).written()
            for phase in session.phases
        ],
        "air": None if session.rulebook is None else _said(session.rulebook.air),
        "judge": None if trainer.judge is None else _said(trainer.judge.scoring),
    }


def _trained(session: Session) -> list[str] | None:
    """The agents whose calls the policy answers; without a policy none."""
    patterns = session.settings.patterns
    if session.settings.served_model is None:
        return []
    return None if patterns is None else list(patterns)


def _said(settings: object) -> str:
    """Returns the settings as text that is the same in another process."""
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
            f"run {folder.run_id!r} can't be resumed, as these differ from before: {', '.join(changed)}; "
            f"give the same as before, or {other_way(folder)}"
        )


# provenance ---------------------------------------------------------------------------------
def describe_origin(trainer: Any, plugins: Sequence[PluginInfo] = ()) -> dict[str, JsonValue]:
    """Where the numbers of a run that starts now come from."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = Path(script).resolve().parent if script else Path.cwd()
    return {
        "started_at": time.time(),
        "seed": trainer.seed,
        "settings": {each.name: _setting(getattr(trainer, each.name)) for each in fields(trainer)},
        "versions": {**versions(), **{f"plugin {each.name}": each.version for each in plugins}},
        "git": git_state(folder),
        "machine": machine(),
        "command": list(masked(sys.orig_argv)),
        "script": str(Path(script).resolve()) if script else None,
        "folder": str(Path.cwd()),
    }


def resumed(first: Mapping[str, JsonValue], now: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The origin of a run that goes on: what it was begun with, and what is different this time."""
    if not first:
        return now
    before, after = dict(_flat(first)), dict(_flat(now))
    changed = {name: after.get(name) for name in sorted(before.keys() | after.keys())}
    entry: dict[str, JsonValue] = {
        "started_at": now["started_at"],
        "changed": {
            name: value
            for name, value in changed.items()
            if name != "started_at" and value != before.get(name)
        },
    }
    earlier = first.get("resumed", [])
    return {**first, "resumed": [*(earlier if isinstance(earlier, list) else []), entry]}


def versions() -> dict[str, JsonValue]:
    """Python's, and those of the packages that this process has loaded."""
    found: dict[str, JsonValue] = {"python": platform.python_version()}
    for name, module in PACKAGES.items():
        if module in sys.modules:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def git_state(folder: Path) -> dict[str, JsonValue] | None:
    """Commit, branch, and whether anything is not committed; None outside of a repository or without git."""
    try:
        said = subprocess.run(
            ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            check=True,
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    heads = dict(line[2:].split(" ", 1) for line in said if line.startswith("# ") and " " in line[2:])
    return {
        "commit": heads.get("branch.oid"),
        "branch": heads.get("branch.head"),
        "dirty": any(not line.startswith("#") for line in said),
    }


def machine() -> dict[str, JsonValue]:
    """Where this process runs, and on what."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = machine_memory()
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cores": cores,
        "memory_gb": memory and round(memory / 1e9, 1),
        "accelerators": list(_accelerators()),
    }


def _accelerators() -> Iterator[str]:
    """As torch calls them, if the backend has loaded it."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_available():
        yield from (torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count()))
    elif torch.backends.mps.is_available():
        yield "Apple MPS"


def _setting(value: Any) -> JsonValue:
    """Plain values as they are, anything else as it says of itself, which is the same in another process."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_setting(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return mask(value if isinstance(value, str) else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)))


def _flat(values: Mapping[str, JsonValue], before: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Each value under its path, such as "machine.host"; what earlier resumptions changed is left out."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        elif before or name != "resumed":
            yield before + name, value
