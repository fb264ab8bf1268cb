"""Repeated states: a walk that meets the same room again and again, within a rollout and across rollouts.

Five rooms in a row; the walker starts in the middle and has to reach the last one within so many turns. In
each room one door leads on, one leads back and two lead nowhere; which is which depends on room and task. It
is shown the room and nothing else: neither how it came there nor how many turns are left. Truth: the best is
to take the door that leads on, in every room; with it success is 1. A door that leads back can be made good.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from research.credit.environment import KINDS, TASKS, Outcome, State, Turn, task_words

ROOMS = 5


@dataclass(frozen=True, slots=True)
class Walk:
    """State: (task, room, turns made). It is over in the last room, or when no turn is left."""

    name: str
    horizon: int
    tasks: int = TASKS
    remembers: bool = True
    wordings: int = 1
    noise: float = 0.0

    @property
    def actions(self) -> int:
        return 4

    def start(self, task: int) -> list[Outcome]:
        return [Outcome((task, ROOMS // 2, 0))]

    def turn(self, state: State) -> Turn | None:
        task, room, made = state
        if room == ROOMS - 1 or made == self.horizon:
            return None
        return Turn("walker", f"room{room}", task_words(task))

    def act(self, state: State, action: int) -> list[Outcome]:
        task, room, made = state
        doors = [1, -1, 0, 0]
        Random(f"{task % KINDS} {room}").shuffle(doors)
        return [Outcome((task, max(0, room + doors[action]), made + 1))]

    def success(self, state: State) -> float:
        return float(state[1] == ROOMS - 1)
