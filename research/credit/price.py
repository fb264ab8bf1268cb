"""The cost of an intermediate reward where success is rare and takes the very act that it punishes.

    python -m research.credit.price

A rollout has three turns of four acts and succeeds if each is the right one: 1 of 64 at first. The right act
of the first turn is punished, by less than a success is worth. So the best policy is the same; but as long as
nothing succeeds, all that a batch says is not to do it. Told is the chance of success after 90 updates of 64
rollouts, uniform credit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import torch
from rich.console import Console

from lightning_core.plugins import load_plugins
from research.credit.comparing import PUBLISHED, find_method
from research.credit.environment import Outcome, State, Turn
from research.credit.training import train
from research.credit.truth import Floats, Truth

PUNISHED = (0.0, 0.5, 0.05)
"""Nothing, the default bound, and the least worth of the default rules."""
UPDATES, SEEDS, RATE = 90, 10, 0.04


@dataclass(frozen=True, slots=True)
class Rare:
    """State: (turns taken, whether all acts were right)."""

    punished: float
    name: str = "rare"
    tasks: int = 8
    actions: int = 4
    remembers: bool = True
    wordings: int = 1
    noise: float = 0.0

    def start(self, task: int) -> list[Outcome]:
        return [Outcome((0, True))]

    def turn(self, state: State) -> Turn | None:
        return None if state[0] == 3 else Turn("walker", f"step{state[0]}")

    def act(self, state: State, action: int) -> list[Outcome]:
        step, right = state
        reward = -self.punished if step == action == 0 else 0.0
        return [Outcome((step + 1, right and action == 0), reward=reward)]

    def success(self, state: State) -> float:
        return float(state[1])


class Wins(Truth):
    """Whose success leaves the punishment out."""

    @cached_property
    def plain(self) -> Truth:
        return Truth(Rare(0.0))

    def success(self, policy: Floats) -> float:
        return self.plain.success(policy)


def main() -> None:
    torch.set_num_threads(1)
    method = find_method(PUBLISHED, load_plugins())
    for punished in PUNISHED:
        truth = Wins(Rare(punished))
        finals = [train(truth, method, RATE, seed, UPDATES, 2.0).success[-1] for seed in range(SEEDS)]
        Console().print(
            f"-{punished:g}: mean {fmean(finals):.2f}, {sum(f > 0.9 for f in finals)} of {SEEDS} above .9"
        )


if __name__ == "__main__":
    main()
