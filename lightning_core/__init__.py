"""Train the agents you already have.

import lightning_core as lightning

Names are imported when they are first used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .algorithms.grpo import GRPO as GRPO
    from .backends.local import LocalBackend as LocalBackend
    from .backends.local import LoraOptions as LoraOptions
    from .errors import LightningError as LightningError
    from .hookspecs import hookimpl as hookimpl
    from .plugins import attach as attach
    from .runner import FailurePolicy as FailurePolicy
    from .tracing.scope import agent as agent
    from .trainer.trainer import Trainer as Trainer
    from .types import Call as Call
    from .types import Rollout as Rollout
    from .types import Task as Task
    from .types import Trajectory as Trajectory
    from .types import Transition as Transition

__version__ = "0.1.0"

_HOMES = {
    "Call": "types",
    "FailurePolicy": "runner",
    "GRPO": "algorithms.grpo",
    "LightningError": "errors",
    "LocalBackend": "backends.local",
    "LoraOptions": "backends.local",
    "Rollout": "types",
    "Task": "types",
    "Trainer": "trainer.trainer",
    "Trajectory": "types",
    "Transition": "types",
    "agent": "tracing.scope",
    "attach": "plugins",
    "hookimpl": "hookspecs",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
