"""No weights: a run that improves prompts alone, while every agent stays at its own endpoint.

It stands where a backend does, so that the gateway still takes spans and rewards, and says what to do to an
agent that names no endpoint. Needs no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.weights.folders import replacing
from lightning_core.dialects.upstream import ChatRequest, Generation
from lightning_core.errors import ApiError, UnsupportedError

NONE: Final = "none"
"""The model's name in a run that trains no weights."""


class NoWeights:
    """Serves nothing and trains nothing."""

    name = NONE
    model = NONE
    policy_version = 0

    @property
    def upstream(self) -> NoWeights:
        return self

    @property
    def model_name(self) -> str:
        return NONE

    async def chat(self, request: ChatRequest) -> Generation:
        """Raises ApiError."""
        raise _no_model()

    async def count(self, request: ChatRequest) -> int:
        """Raises ApiError."""
        raise _no_model()

    def decode(self, token_id: int) -> str:
        raise UnsupportedError("a run without a model has no tokens")

    def check(self, algorithm: Algorithm) -> None:
        """Raises UnsupportedError."""
        raise UnsupportedError(f"algorithm {algorithm.name!r} trains weights: give Trainer(model=...)")

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def save(self, folder: Path) -> None:
        """An empty folder, which says how many steps are made."""
        with replacing(folder):
            pass

    async def load(self, folder: Path) -> None:
        return None

    async def export(self, folder: Path) -> None:
        return None


def _no_model() -> ApiError:
    return ApiError(
        "this run has no model of its own, and the call names no other endpoint: give the agent's client "
        "a base_url and a key, or the run a model: Trainer(model=...)",
        status=404,
        code="no_model",
    )
