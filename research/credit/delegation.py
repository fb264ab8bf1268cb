"""Delegation: one agent calls another several times in a rollout.

A lead chooses one of four ways to cut up the task, two of which are right; then a helper is called for each
of the parts, one to four, by chance. Each part asks for one action of four; parts have nothing to do with
one another. The return is the share of parts done right, and 0 if the task was cut up wrongly. Truth: the
best is 1; what the helper does in one part is worth its own share and no other's.

`paid`: each part that is done right is an intermediate reward of its call, and the final reward is 0.
Otherwise only the final reward tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from research.credit.environment import TASKS, Outcome, State, Turn, right_action, task_words

MOST = 4


@dataclass(frozen=True, slots=True)
class Delegation:
    """State: (task, parts, parts done, whether cut up right or None, parts done right)."""

    name: str
    paid: bool = False
    tasks: int = TASKS
    actions: int = 4
    remembers: bool = False
    wordings: int = 1
    noise: float = 0.0

    def start(self, task: int) -> list[Outcome]:
        return [Outcome((task, parts, 0, None, 0), 1 / MOST) for parts in range(1, MOST + 1)]

    def turn(self, state: State) -> Turn | None:
        task, parts, done, cut, _ = state
        if cut is None:
            return Turn("lead", "begin", task_words(task))
        if done == parts:
            return None
        return Turn("helper", f"part{done} " + ("sound" if cut else "muddled"), task_words(task))

    def act(self, state: State, action: int) -> list[Outcome]:
        task, parts, done, cut, right = state
        if cut is None:
            return [Outcome((task, parts, 0, (action - right_action(task, "cut", 4)) % 4 < 2, 0))]
        gained = int(cut and action == right_action(task, f"part{done}", self.actions))
        paid = gained / parts if self.paid else 0.0
        return [Outcome((task, parts, done + 1, cut, right + gained), reward=paid)]

    def success(self, state: State) -> float:
        _, parts, _, _, right = state
        return 0.0 if self.paid else right / parts
