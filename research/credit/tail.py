"""Long tails of turn counts, in two games.

`Reading`: the first action decides, as in the chain; then come as many pages as chance wants, mostly few and
now and then many, and nothing that is done there matters. Truth: success is the probability of the right
first action, the best is 1. A batch's calls are mostly those of its few long rollouts.

`Waiting`: a clue comes after as many turns as chance wants. Two actions look again, the other two are
answers and end the rollout. Which answer is right depends on task and clue; without the clue both are wrong.
Truth: the best is to look until the clue is there and then to give the right answer, which always succeeds.
The better the policy, the longer the tail; at the limit the rollout ends without an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from research.credit.environment import TASKS, Outcome, State, Turn, right_action, task_words

LONGEST = 24


def _tail(longest: int) -> list[tuple[int, float]]:
    """(length, probability): P(length > n) = 1 / (n + 1) up to the longest, which bears the rest."""
    chances = [1 / (n * (n + 1)) for n in range(1, longest)]
    return list(enumerate([*chances, 1 - sum(chances)], start=1))


@dataclass(frozen=True, slots=True)
class Reading:
    """State: (task, pages, page, whether the first action was right or None)."""

    name: str
    tasks: int = TASKS
    actions: int = 4
    remembers: bool = True
    wordings: int = 1
    noise: float = 0.0

    def start(self, task: int) -> list[Outcome]:
        return [Outcome((task, pages, 0, None), chance) for pages, chance in _tail(LONGEST)]

    def turn(self, state: State) -> Turn | None:
        task, pages, page, right = state
        if page > pages:
            return None
        shown = "begin" if right is None else f"page{page} " + ("lit" if right else "dark")
        return Turn("reader", shown, task_words(task))

    def act(self, state: State, action: int) -> list[Outcome]:
        task, pages, page, right = state
        if right is None:
            right = action == right_action(task, "first", self.actions)
        return [Outcome((task, pages, page + 1, right))]

    def success(self, state: State) -> float:
        return float(state[3])


@dataclass(frozen=True, slots=True)
class Waiting:
    """State: (task, turns made, turns until the clue, clue, what the answer is worth or None)."""

    name: str
    longest: int = 12
    limit: int = 16
    tasks: int = TASKS
    remembers: bool = True
    wordings: int = 1
    noise: float = 0.0

    @property
    def actions(self) -> int:
        return 4

    def start(self, task: int) -> list[Outcome]:
        return [
            Outcome((task, 0, turns, clue, None), chance / 2)
            for turns, chance in _tail(self.longest)
            for clue in (0, 1)
        ]

    def turn(self, state: State) -> Turn | None:
        task, made, turns, clue, worth = state
        if worth is not None or made == self.limit:
            return None
        return Turn("watcher", f"clue{clue}" if made >= turns else "nothing", task_words(task))

    def act(self, state: State, action: int) -> list[Outcome]:
        task, made, turns, clue, _ = state
        right = 2 + (right_action(task, "clue", 2) + clue) % 2
        worth = None if action < 2 else float(action == right and made >= turns)
        return [Outcome((task, made + 1, turns, clue, worth))]

    def success(self, state: State) -> float:
        return state[4] or 0.0
