"""Provenance: where a run's numbers come from, so that they can be made again or explained.

All settings, versions, git state, machine and command line, written when the run is opened. A resumed run
keeps what it was begun with and adds what is different now. Secrets stay out: the environment is never read,
and what looks like a password in a URL, a flag or a setting is masked.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from lightning_core.masking import mask, masked
from lightning_core.plugins import PluginInfo

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
    "tokenizers": "tokenizers",
    "torch": "torch",
    "transformers": "transformers",
    "verl": "verl",
    "vllm": "vllm",
}
"""Distributions that matter to the numbers, and what they are imported as."""
GIT_SECONDS = 5.0
"""Git may look through a large tree; a run does not wait for it."""


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
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cores": cores,
        "memory_gb": round(memory / 1e9, 1),
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
