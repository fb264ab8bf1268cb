"""Train the agents you already have.

import lightning_core as lightning

Names are imported when they are first used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_core.air.base import AIR as AIR
    from lightning_core.air.base import Records as Records
    from lightning_core.air.base import Signal as Signal
    from lightning_core.alerts.watch import Alerts as Alerts
    from lightning_core.algorithms.apo import APO as APO
    from lightning_core.algorithms.base import Critic as Critic
    from lightning_core.algorithms.base import Phase as Phase
    from lightning_core.algorithms.bootstrap import Bootstrap as Bootstrap
    from lightning_core.algorithms.dpo import DPO as DPO
    from lightning_core.algorithms.gepa import GEPA as GEPA
    from lightning_core.algorithms.policy_gradient import GRPO as GRPO
    from lightning_core.algorithms.policy_gradient import PPO as PPO
    from lightning_core.algorithms.policy_gradient import RLOO as RLOO
    from lightning_core.algorithms.policy_gradient import ReinforcePP as ReinforcePP
    from lightning_core.algorithms.sdpo import SDPO as SDPO
    from lightning_core.algorithms.sft import SFT as SFT
    from lightning_core.backends.local import LocalBackend as LocalBackend
    from lightning_core.backends.settings import LoraOptions as LoraOptions
    from lightning_core.backends.settings import PolicyOptions as PolicyOptions
    from lightning_core.backends.settings import Schedule as Schedule
    from lightning_core.backends.tinker.backend import TinkerBackend as TinkerBackend
    from lightning_core.backends.verl.backend import VerlBackend as VerlBackend
    from lightning_core.errors import LightningError as LightningError
    from lightning_core.experience.returns import FailurePolicy as FailurePolicy
    from lightning_core.hookspecs import hookimpl as hookimpl
    from lightning_core.judge.judge import Judge as Judge
    from lightning_core.plugins import attach as attach
    from lightning_core.prompts import Prompt as Prompt
    from lightning_core.records.types import Alert as Alert
    from lightning_core.records.types import Call as Call
    from lightning_core.records.types import Demonstration as Demonstration
    from lightning_core.records.types import Rollout as Rollout
    from lightning_core.records.types import Task as Task
    from lightning_core.records.types import Trajectory as Trajectory
    from lightning_core.records.types import Transition as Transition
    from lightning_core.runner.program import Command as Command
    from lightning_core.runner.ray_workers import RayWorkers as RayWorkers
    from lightning_core.tracing.environment import environment as environment
    from lightning_core.tracing.rewards import reward as reward
    from lightning_core.tracing.scope import agent as agent
    from lightning_core.tracing.scope import prompt as prompt
    from lightning_core.trainer.demonstrations import demonstrations as demonstrations
    from lightning_core.trainer.trainer import Trainer as Trainer

__version__ = "0.1.0"

_HOMES = {
    "AIR": "air.base",
    "APO": "algorithms.apo",
    "Alert": "records.types",
    "Alerts": "alerts.watch",
    "Bootstrap": "algorithms.bootstrap",
    "Call": "records.types",
    "Command": "runner.program",
    "Critic": "algorithms.base",
    "DPO": "algorithms.dpo",
    "Demonstration": "records.types",
    "FailurePolicy": "experience.returns",
    "GEPA": "algorithms.gepa",
    "GRPO": "algorithms.policy_gradient",
    "Judge": "judge.judge",
    "LightningError": "errors",
    "LocalBackend": "backends.local",
    "LoraOptions": "backends.settings",
    "RLOO": "algorithms.policy_gradient",
    "ReinforcePP": "algorithms.policy_gradient",
    "PPO": "algorithms.policy_gradient",
    "Phase": "algorithms.base",
    "PolicyOptions": "backends.settings",
    "Prompt": "prompts",
    "RayWorkers": "runner.ray_workers",
    "Rollout": "records.types",
    "SDPO": "algorithms.sdpo",
    "SFT": "algorithms.sft",
    "Records": "air.base",
    "Schedule": "backends.settings",
    "Signal": "air.base",
    "Task": "records.types",
    "TinkerBackend": "backends.tinker.backend",
    "Trainer": "trainer.trainer",
    "Trajectory": "records.types",
    "Transition": "records.types",
    "VerlBackend": "backends.verl.backend",
    "agent": "tracing.scope",
    "attach": "plugins",
    "demonstrations": "trainer.demonstrations",
    "environment": "tracing.environment",
    "hookimpl": "hookspecs",
    "prompt": "tracing.scope",
    "reward": "tracing.rewards",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
