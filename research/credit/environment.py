"""The environments' contract: a small game whose truth can be counted.

An environment says who acts in a state, what that agent is shown, and what can come of each action. States
are counted once (`truth.py`), so the success of a policy and the best success there is are sums, not
estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

State = Any
KINDS = 4
"""Kinds of task; what is right depends on the kind alone."""
TASKS = 32


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of one agent."""

    agent: str
    observation: str
    """The last text it is shown: equal texts are the same observation."""
    before: tuple[str, ...] = ()
    """The rest of its prompt: the task, its place in the work, its memory."""

    @property
    def prompt(self) -> tuple[str, ...]:
        """All that the policy sees, word by word."""
        return (f"you are {self.agent}", *self.before, *self.observation.split())


@dataclass(frozen=True, slots=True)
class Outcome:
    """One possible outcome of an action."""

    state: State
    probability: float = 1.0
    reward: float = 0.0
    """Intermediate reward of the call."""


def task_words(task: int) -> tuple[str, str]:
    """How a task is put: its kind, which tells what is right, and what it is about, which does not."""
    return f"kind{task % KINDS}", f"about{task // KINDS}"


def right_action(task: int, part: str, actions: int) -> int:
    """The action that a part of a task asks for: one for each kind, and nothing but trying tells which.

    It is drawn once and for all, so that among as many kinds as there are actions each action is right once:
    no action is the better guess.
    """
    round_, place = divmod(task % KINDS, actions)
    order = list(range(actions))
    Random(f"{part} {round_}").shuffle(order)
    return order[place]


class Environment(Protocol):
    """A game of finitely many states, each reached at most once in a rollout."""

    @property
    def name(self) -> str: ...
    @property
    def tasks(self) -> int: ...
    @property
    def actions(self) -> int: ...

    @property
    def remembers(self) -> bool:
        """Whether an agent's prompt goes on from the last one it had, as a conversation does. Otherwise each
        call has a prompt of its own. The policy goes by what `Turn` shows, in either case."""

    @property
    def wordings(self) -> int:
        """Ways to word the same action. They are equally likely, change nothing and are not learnt; with many
        of them no reply is ever given twice, as it is with free text."""

    @property
    def noise(self) -> float:
        """Standard deviation of what is added to the final reward."""

    def start(self, task: int) -> Sequence[Outcome]:
        """Where a rollout of the task begins."""

    def turn(self, state: State) -> Turn | None:
        """Whose turn it is; None when the rollout is over."""

    def act(self, state: State, action: int) -> Sequence[Outcome]:
        """Returns the possible outcomes of an action."""

    def success(self, state: State) -> float:
        """The final reward of a rollout that is over, without noise."""
