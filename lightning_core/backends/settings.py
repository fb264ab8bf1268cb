"""Settings that every backend has: the model, the optimizer, low-rank adapters, sizes of batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal

from lightning_core.errors import ConfigError
from lightning_core.ranges import check_kind, check_range

SMALL: Final = 10_000_000
"""Parameters below which a model is small."""
DTYPES: Final = ("auto", "float32", "bfloat16")
BETAS: Final = (0.9, 0.95)
"""Betas of AdamW. Weights do not decay."""


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """Train low-rank adapters beside frozen weights (Hu et al., arXiv 2106.09685)."""

    rank: int = 16
    alpha: float = 32.0
    """The adapters' product is scaled by alpha / rank."""
    targets: tuple[str, ...] | str = "all-linear"
    """Names of the linear layers that get one; by default all but the output layer."""
    load_in_4bit: bool = False
    """Hold the frozen linear layers, all but the output layer, in 4 bits while training (QLoRA, arXiv
    2305.14314). The policy is then the model as rounded, in every copy of it. Local backend only."""

    def __post_init__(self) -> None:
        check_range("rank", self.rank, of="LoraOptions", least=1, whole=True)
        check_kind("load_in_4bit", self.load_in_4bit, (bool,), "True or False")
        check_range("alpha", self.alpha, of="LoraOptions", above=0, most=1e6)


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """A named policy of a run, and what it has in place of the backend's settings for all."""

    name: str
    learning_rate: float | None = None
    """None: the backend's."""
    lora: LoraOptions | None = None
    """None: the backend's."""
    model: str | Path | None = None
    """The base model: a transformers folder, a GGUF file, a name on the hub, "smollm2" or "tiny". None: the
    run's."""

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            check_range("learning_rate", self.learning_rate, of="PolicyOptions", above=0, most=1)
        check_kind(
            "lora", self.lora, (LoraOptions, NoneType), 'LoraOptions(...), with --set {"rank": 8}, or None'
        )
        check_kind("model", self.model, (str, Path, NoneType), "a model's name or a folder, or None")

    @property
    def changes(self) -> dict[str, Any]:
        """The settings of the backend that it has others of."""
        given = {"learning_rate": self.learning_rate, "lora": self.lora, "model": self.model}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the learning rate falls after warm-up. With x from 0 at its end to 1 at `steps`:

    "linear"   1 - (1 - least) * x
    "cosine"   least + (1 - least) * (1 + cos(pi * x)) / 2
    """

    kind: Literal["linear", "cosine"]
    steps: int
    """Optimizer steps after which it has fallen to `least`, warm-up included. An update makes one for each
    epoch and mini-batch."""
    least: float = 0.0
    """Share of the learning rate that is left from there on."""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("linear", "cosine"))
        check_range("steps", self.steps, of="Schedule", least=1, whole=True)
        check_range("least", self.least, of="Schedule", least=0, most=1)

    def factor(self, step: int, warmup: int) -> float:
        """Share of the learning rate at an optimizer step after warm-up, counted from 1 at its start."""
        x = min(1.0, max(0, step - 1 - warmup) / max(1, self.steps - warmup))
        left = 1 - x if self.kind == "linear" else (1 + math.cos(math.pi * x)) / 2
        return self.least + (1 - self.least) * left


@dataclass(kw_only=True, eq=False)
class TrainingSettings:
    """AdamW and the size of a forward pass.

    Raises ConfigError for options with which a step of AdamW might lose the weights. Within these ranges a
    finite gradient makes a finite step in 32 bits: with a norm of at most 1e12, both moments stay below 1e24,
    a step below rate * 1e12 / 1e-8 = 1e20.
    """

    learning_rate: float | None = None
    """None: by the size of the model, see `default_learning_rate`; ten times that with LoRA."""
    warmup_steps: int = 3
    """The rate grows in a line over the first so many optimizer steps."""
    schedule: Schedule | None = None
    """How the policy's rate falls afterwards; None: it stays. A resumed run goes on where it was."""
    max_grad_norm: float = 1.0
    pack_tokens: int | None = None
    """Tokens of a forward pass, on each GPU; the memory it takes grows with them. None: 2,048 in the local
    backend, 8,192 on a GPU; 16,384 in verl's, and never less than the context."""
    prefix_sharing: bool = field(default=True, init=False)
    """Train shared prefixes once. Off only to compare: it changes no gradient."""

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            check_range("learning_rate", self.learning_rate, above=0, most=1)
        check_range("warmup_steps", self.warmup_steps, least=0, whole=True)
        check_range("max_grad_norm", self.max_grad_norm, above=0, most=1e12)
        if self.pack_tokens is not None:
            check_range("pack_tokens", self.pack_tokens, least=1, whole=True)
        check_kind(
            "schedule",
            self.schedule,
            (Schedule, NoneType),
            'Schedule(...), with --set {"kind": "cosine", "steps": 100}, or None',
        )
        if self.schedule is not None and self.schedule.steps <= self.warmup_steps:
            raise ConfigError(
                f"schedule={self.schedule!r} ends within warmup_steps={self.warmup_steps!r}; give it more "
                "steps"
            )

    def rate_share(self, step: int) -> float:
        """Share of the learning rate at an optimizer step of the policy, counted from 1."""
        warm = min(1.0, step / max(1, self.warmup_steps))
        return warm if self.schedule is None else warm * self.schedule.factor(step, self.warmup_steps)


@dataclass(kw_only=True, eq=False)
class BackendSettings(TrainingSettings):
    """Settings of every backend."""

    model: str | Path = field(kw_only=False)
    """A transformers folder, a GGUF file, a name on the hub, "smollm2", or "tiny" for the examples. All
    machines of a cluster must see a folder at the same path."""
    lora: LoraOptions | None = None
    """None: all weights are trained."""
    context: int | None = None
    """Tokens of prompt and reply together; None: what the model was made for."""
    max_batch: int = 64
    """Replies that one copy of the model works on at a time."""
    dtype: str = "auto"
    """Number format of the engine and of the forward pass in training: "auto", "float32" or "bfloat16".
    Weights under training are float32."""
    seed: int = field(default=0, init=False)
    """The run's, set by its trainer: of LoRA's start, and of replies outside of rollouts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind(
            "lora", self.lora, (LoraOptions, NoneType), 'LoraOptions(...), with --set {"rank": 8}, or None'
        )
        check_range("max_batch", self.max_batch, least=1, whole=True)
        if self.context is not None:
            check_range("context", self.context, least=2, whole=True)
        check_choice("dtype", self.dtype, DTYPES)


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ConfigError for a value that is not one of those allowed."""
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(allowed)}")


def default_learning_rate(parameters: int, lora: LoraOptions | None) -> float:
    """A starting point, not a law: 4e-4 up to 1.5 M parameters, then falling with their power 2/3, and ten
    times that with LoRA, at most 4e-4.

    The line goes through what was measured, 4e-4 at 1.5 M and 2e-5 at 135 M parameters, and comes to the
    1e-6 that is usual for GRPO at 12 billion.
    """
    rate = 4e-4 * min(1.0, math.pow(1.5e6 / parameters, 2 / 3))
    return rate if lora is None else min(10 * rate, 4e-4)


def default_critic_rate(parameters: int, lora: LoraOptions | None) -> float:
    """A starting point: ten times the policy's default, as is usual (1e-5 beside 1e-6), and at most 1e-3,
    which was measured on 1.4 M parameters."""
    return min(1e-3, 10 * default_learning_rate(parameters, lora))
