"""Settings of the tinker backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from lightning_core.backends.settings import LoraOptions, Schedule, TrainingSettings, check_choice
from lightning_core.ranges import check_range

Reduction = Literal["sum", "mean"]
REDUCTIONS: Final = ("sum", "mean")


@dataclass(kw_only=True, eq=False)
class TinkerSettings:
    """Settings of the tinker backend. The service chooses how it computes; LoRA is all it trains."""

    model: str | Path = field(kw_only=False)
    """A name on the hub, a transformers folder, or "tiny": tokenizer and chat template are read here. The
    weights stay at the service."""
    url: str | None = None
    """Where the service is: "http://10.0.0.5:8000". None: TINKER_BASE_URL, else the service of Thinking
    Machines."""
    base_model: str | None = None
    """The service's name for the model; None: the hub's name, or the absolute path of the folder."""
    rank: int = 32
    """Rank of the adapters (LoRA) that are trained."""
    learning_rate: float | None = None
    """None: by the size of the model, as with LoRA in the local backend."""
    warmup_steps: int = 3
    """The rate grows in a line over the first so many optimizer steps."""
    schedule: Schedule | None = None
    """How the rate falls afterwards; None: it stays."""
    context: int | None = None
    """Tokens of prompt and reply together; None: what the service says, else what the model was made for."""
    max_running: int = 64
    """Replies that are asked of the service at a time."""
    reduction: Reduction = "sum"
    """How the service adds up the tokens of a batch. "sum": plainly, as Tinker's API says. "mean": the mean
    over the tokens with loss of each sequence, then over sequences, as SkyRL's JAX engine does."""
    max_service_tokens: int | None = None
    """Tokens that the service may read, sample and train in the whole run, all added up. The run ends in
    order after the step that reaches it, and a resume with a higher one goes on. None: no ceiling."""
    seed: int = field(default=0, init=False)
    """The run's, set by its trainer: of LoRA's start, and of replies outside of rollouts."""

    def __post_init__(self) -> None:
        """Raise ConfigError for what can't be meant."""
        check_range("rank", self.rank, least=1, whole=True)
        check_range("max_running", self.max_running, least=1, whole=True)
        if self.max_service_tokens is not None:
            check_range("max_service_tokens", self.max_service_tokens, least=1, whole=True)
        if self.context is not None:
            check_range("context", self.context, least=2, whole=True)
        check_choice("reduction", self.reduction, REDUCTIONS)
        self.lora = LoraOptions(rank=self.rank)
        self.pace = TrainingSettings(
            learning_rate=self.learning_rate, warmup_steps=self.warmup_steps, schedule=self.schedule
        )
        """The course of the learning rate; it checks the three settings."""
