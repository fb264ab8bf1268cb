"""A team of three agents, one of them irrelevant.

A planner makes a plan, a worker carries it out, and a talker remarks on it: `talks` says how often before the
plan, between plan and work, and after the work. One of four plans is right, by the task; two of four actions
carry a plan out, which two depends on the plan. Truth: success is the probability of the right plan times
that of carrying it out, the best is 1, and the advantage of all that the talker says is 0.

Everybody is shown what has come of it so far. `heard`: also the talker's last remark, so that the same state
comes in as many forms as there are remarks. `private`: the talker is shown nothing, so that what came before
can't be told from its state.
"""

from __future__ import annotations

from dataclasses import dataclass

from research.credit.environment import TASKS, Outcome, State, Turn, right_action, task_words


@dataclass(frozen=True, slots=True)
class Team:
    """State: (task, turn, plan, whether the work is right, last remark); None for what is not there yet."""

    name: str
    talks: tuple[int, int, int]
    heard: bool = False
    private: bool = False
    tasks: int = TASKS
    actions: int = 4
    remembers: bool = True
    wordings: int = 1
    noise: float = 0.0

    @property
    def order(self) -> tuple[str, ...]:
        """Who acts, turn by turn."""
        before, between, after = self.talks
        talks = ["talker"]
        return (*talks * before, "planner", *talks * between, "worker", *talks * after)

    def start(self, task: int) -> list[Outcome]:
        return [Outcome((task, 0, None, None, None))]

    def turn(self, state: State) -> Turn | None:
        task, turn, plan, works, remark = state
        if turn == len(self.order):
            return None
        shown = "begin" if plan is None else f"plan{plan}"
        if works is not None:
            shown += " works" if works else " fails"
        if self.heard and remark is not None:
            shown += f" remark{remark}"
        agent = self.order[turn]
        return Turn(agent, "begin" if self.private and agent == "talker" else shown, task_words(task))

    def act(self, state: State, action: int) -> list[Outcome]:
        task, turn, plan, works, remark = state
        agent = self.order[turn]
        if agent == "planner":
            plan = action
        elif agent == "worker":
            works = plan == right_action(task, "plan", self.actions) and (action - plan) % self.actions < 2
        elif self.heard:
            remark = action
        return [Outcome((task, turn + 1, plan, works, remark))]

    def success(self, state: State) -> float:
        return float(state[3])
