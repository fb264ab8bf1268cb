"""AdamW over some parameters: clipped, warmed up, saved exactly, and taken back where a later step fails."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lightning_core.backends.lora import check_adamw
from lightning_core.ranges import check_range


@dataclass(frozen=True, slots=True)
class OptimizerOptions:
    """AdamW and the size of a forward pass."""

    learning_rate: float | None = None
    """None: `Policy.default_learning_rate`."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_steps: int = 3
    """The rate grows in a line over the first so many optimizer steps."""
    max_grad_norm: float = 1.0
    pack_tokens: int = 2048
    """Tokens to a forward pass; what it takes in memory grows with them."""
    merge: bool = True
    """Train shared prefixes once. Off only to compare: it changes no gradient."""

    def __post_init__(self) -> None:
        check_adamw(
            learning_rate=self.learning_rate,
            betas=self.betas,
            weight_decay=self.weight_decay,
            warmup_steps=self.warmup_steps,
            max_grad_norm=self.max_grad_norm,
        )
        check_range("pack_tokens", self.pack_tokens, least=1, whole=True)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Parameters and AdamW's state at one moment."""

    weights: list[torch.Tensor]
    moments: dict[str, torch.Tensor]
    steps: int


class Descent:
    """Steps down the gradient that stands in the parameters' `grad`."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], options: OptimizerOptions) -> None:
        self.parameters = list(parameters)
        self._options = options
        self._adamw = torch.optim.AdamW(
            self.parameters, betas=options.betas, weight_decay=options.weight_decay, fused=True
        )
        self.steps = 0
        """Steps so far."""

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    def zero(self) -> None:
        """Forget the gradient."""
        self._adamw.zero_grad(set_to_none=True)

    def clip(self) -> float:
        """Bound the gradient; returns its norm before, which may be nan or infinite."""
        return float(torch.nn.utils.clip_grad_norm_(self.parameters, self._options.max_grad_norm))

    def step(self, learning_rate: float) -> float:
        """One step, after which the gradient is forgotten; returns its rate, less than asked in warm-up."""
        self.steps += 1
        rate = learning_rate * min(1.0, self.steps / max(1, self._options.warmup_steps))
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self.zero()
        return rate

    def finite(self) -> bool:
        """Whether all parameters are finite numbers."""
        return math.isfinite(float(torch.nn.utils.get_total_norm(self.parameters, math.inf)))

    def moments(self) -> dict[str, torch.Tensor]:
        """AdamW's state, flat: with weights and `steps` it is all that an exact continuation needs."""
        states = self._adamw.state_dict()["state"]
        return {f"{i}.{name}": value for i, state in states.items() for name, value in state.items()}

    def load(self, moments: dict[str, torch.Tensor], steps: int) -> None:
        """Go on from `moments()` and `steps`."""
        states: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)
        for key, value in moments.items():
            index, _, name = key.partition(".")
            states[int(index)][name] = value.clone()
        self._adamw.load_state_dict({**self._adamw.state_dict(), "state": dict(states)})
        self.steps = steps

    def snapshot(self) -> Snapshot:
        """A copy of everything a step changes."""
        weights = [p.detach().clone() for p in self.parameters]
        moments = {name: value.clone() for name, value in self.moments().items()}
        return Snapshot(weights, moments, self.steps)

    @torch.no_grad()
    def restore(self, before: Snapshot) -> None:
        """Make everything as it was."""
        for parameter, weight in zip(self.parameters, before.weights, strict=True):
            parameter.copy_(weight)
        self.zero()
        self.load(before.moments, before.steps)


def lost(what: str, step: int) -> str:
    """That a step broke what it was to improve, though loss and gradient were finite."""
    return (
        f"the {what} are not finite after optimizer step {step}, though loss and gradient were: they are not "
        "published or saved; resume the run, which goes on from its last checkpoint"
    )
