"""A backend for tests about the trainer's loop: canned token ids, recorded updates, no weights.

It keeps the contract of `Backend`: `test_scripted.py` runs the same laws on it and on the local backend.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch, check_loss
from lightning_core.backends.preflight import RunPlan
from lightning_core.backends.weights.folders import replacing
from lightning_core.backends.weights.sizes import TensorChange
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import ModelError
from lightning_core.records.types import Demonstration, Key, Trajectory
from tests.gateway.scripted import Line, ScriptedEngine

STATE = "state.json"
SAYS = "SELECT name FROM boats"


def say(request: ChatRequest, choice: int) -> Line:
    """Always the same."""
    return Line(SAYS)


class ScriptedVersion:
    """An engine of one version alone."""

    def __init__(self, version: int) -> None:
        self.upstream = ScriptedEngine(says=say, policy_version=version)

    async def close(self) -> None:
        return


class ScriptedBackend:
    """Answers every request with the same words, and keeps every batch that it was given, by step."""

    name = "scripted"

    def __init__(self, model: str | Path = "tiny") -> None:
        self.model = model
        self.policy_version = 0
        self.upstream = ScriptedEngine(says=say, policy_version=0)
        self.batches: defaultdict[int, list[tuple[Trajectory, ...]]] = defaultdict(list)
        self.references: list[Path] = []
        self._updates = 0
        """Made so far; they stand for the weights."""

    def check(self, algorithm: Algorithm) -> None:
        check_loss(algorithm, self.name)

    def plan_run(self, algorithms: Sequence[Algorithm]) -> RunPlan:
        return RunPlan()

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    async def values(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        return {t.key: 0.5 for each in trajectories for t in each.transitions if t.trained}

    def encode(self, demonstration: Demonstration) -> tuple[list[int], list[int]]:
        request = ChatRequest(messages=list(demonstration.messages))
        reply = demonstration.reply
        text = reply if isinstance(reply, str) else str(reply.get("content") or "")
        return self.upstream.prompt_ids(request), [*self.upstream.encode(text), 0]

    def encode_prompt(self, request: ChatRequest) -> list[int]:
        return self.upstream.prompt_ids(request)

    async def set_reference(self, folder: Path) -> None:
        self.references.append(folder)

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        self.batches[batch.step].append(batch.trajectories)
        self._updates += 1
        weights = algorithm.weigh(batch.trajectories)
        tokens = {t.key: len(t.completion_ids) for each in batch.trajectories for t in each.transitions}
        return {"loss": 0.0, "grad_norm": 1.0, "tokens": float(sum(tokens[key] for key in weights))}

    async def publish(self) -> int:
        self.policy_version += 1
        self.upstream.policy_version = self.policy_version
        return self.policy_version

    async def save(self, folder: Path) -> None:
        state = {"policy_version": self.policy_version, "updates": self._updates}
        await asyncio.to_thread(_write, folder, state)

    async def export(self, folder: Path) -> None:
        await asyncio.to_thread(_write_model, folder, self._updates)

    async def load(self, folder: Path) -> None:
        state = json.loads((folder / STATE).read_text())
        self.policy_version = self.upstream.policy_version = state["policy_version"]
        self._updates = state["updates"]

    async def open_engine(self, source: str, version: int) -> ScriptedVersion:
        _read(source)
        return ScriptedVersion(version)

    async def export_version(self, source: str, folder: Path) -> None:
        _write_model(folder, _read(source))

    async def compare_versions(self, before: str, after: str) -> list[TensorChange]:
        return [TensorChange("updates", float(_read(after) != _read(before)), 1)]


def _write(folder: Path, state: dict[str, Any]) -> None:
    with replacing(folder) as partial:
        (partial / STATE).write_text(json.dumps(state))
        (partial / "moments.safetensors").write_bytes(b"")  # only training needs it
        (partial / "model").mkdir()
        (partial / "model" / "config.json").write_text(json.dumps({"updates": state["updates"]}))


def _write_model(folder: Path, updates: int) -> None:
    with replacing(folder) as partial:
        (partial / "config.json").write_text(json.dumps({"updates": updates}))


def _read(source: str) -> int:
    """The updates that a folder written by `save` or `export` holds; 0 for a model's name."""
    if not Path(source).is_absolute():
        return 0
    for file in (Path(source) / "model" / "config.json", Path(source) / "config.json"):
        if file.exists():
            return int(json.loads(file.read_text()).get("updates", 0))
    raise ModelError(f"{source!r} holds no model")
