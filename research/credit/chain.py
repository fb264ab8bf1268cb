"""A chain with one decisive step.

An agent takes twelve steps. At one of them one action of four is right, by the task; at the others nothing
that it does matters. Truth: success is the probability of the right action at the decisive step, the best is
1, and the advantage of every other step is 0.

`seen`: whether what it is shown afterwards tells if it was right. If not, the outcome comes out only at the
end, and no credit method can tell the steps after it from the step itself. `echo`: it is also shown what it
did last, as tools do, so that the same state comes in as many forms as there are actions.

`decisive` may name a step for each kind of task: then tasks differ in which step decides. `told`: whether the
prompt shows the kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from research.credit.environment import KINDS, TASKS, Outcome, State, Turn, right_action, task_words


@dataclass(frozen=True, slots=True)
class Chain:
    """State: (task, step, whether it was right or None before the decisive step, last action)."""

    name: str
    decisive: int | tuple[int, ...]
    steps: int = 12
    seen: bool = True
    echo: bool = False
    told: bool = True
    tasks: int = TASKS
    actions: int = 4
    remembers: bool = True
    wordings: int = 1
    noise: float = 0.0

    def start(self, task: int) -> list[Outcome]:
        return [Outcome((task, 0, None, None))]

    def turn(self, state: State) -> Turn | None:
        task, step, right, last = state
        if step == self.steps:
            return None
        shown = f"step{step}"
        if self.seen and right is not None:
            shown += " lit" if right else " dark"
        if self.echo and last is not None:
            shown += f" did{last}"
        return Turn("walker", shown, task_words(task) if self.told else ())

    def act(self, state: State, action: int) -> list[Outcome]:
        task, step, right, _ = state
        if step == self._deciding(task):
            right = action == right_action(task, "decisive", self.actions)
        return [Outcome((task, step + 1, right, action if self.echo else None))]

    def _deciding(self, task: int) -> int:
        return self.decisive if isinstance(self.decisive, int) else self.decisive[task % KINDS]

    def success(self, state: State) -> float:
        return float(state[2])
