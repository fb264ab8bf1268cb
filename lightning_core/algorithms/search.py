"""The contract of a search: how better prompts are looked for. No weights are trained, so this is no
algorithm.

A search proposes texts and asks a bench for trials: rollouts of the app under them, as in an evaluation. The
trainer is the bench. It knows the store, the budget and the random numbers, and it makes every trial once, so
a search may be begun again from its start after a kill: it is then answered from the store until it comes to
what is new. That asks one thing of a search: with the same answers it must ask for the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from lightning_core.errors import ConfigError
from lightning_core.experience.returns import trial_reward
from lightning_core.judge.question import CHARACTERS, Line, dialogue, shorten
from lightning_core.prompts import Prompt
from lightning_core.ranges import check_range
from lightning_core.records.types import Call, Event, Reward, Rollout, Task, ToolEvent

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Candidate = Mapping[str, str]
"""A text for each prompt, by name."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished rollout of a trial, and what it recorded."""

    rollout: Rollout
    calls: Sequence[Call]
    events: Sequence[Event]
    rewards: Sequence[Reward]
    """Rewards of the app and of AIR, with their reasons."""

    @property
    def reward(self) -> float:
        """The final reward; 0 for a rollout that failed."""
        return trial_reward(self.rollout)


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate on one task."""

    task: Task
    episodes: tuple[Episode, ...]
    """As many as the search has `repeats`."""

    @property
    def reward(self) -> float:
        """The mean over the episodes."""
        return fmean(each.reward for each in self.episodes)


class Bench(Protocol):
    """Where a search tries its candidates."""

    seed: Candidate
    """The prompts that the search begins with."""
    prompts: Mapping[str, Prompt]
    """As they were declared, with their placeholders."""
    random_seed: int

    @property
    def train(self) -> Sequence[Task]:
        """To learn from."""

    @property
    def choosing(self) -> Sequence[Task]:
        """The held-out tasks that choose. Those of the other half report, and no search sees them."""

    @property
    def left(self) -> int:
        """Rollouts that the budget still allows."""

    @property
    def tokens(self) -> int:
        """Tokens that the reflecting model has read and written so far."""

    async def propose(self, parent: Candidate, texts: Candidate) -> Candidate | None:
        """The parent with these texts, recorded as versions. None, and counted, if a text is empty, lost a
        placeholder or changes nothing."""

    async def evaluate(self, asked: Sequence[tuple[Candidate, Sequence[Task]]]) -> list[list[Trial]]:
        """The trials of candidates on tasks, in their order. What was asked for before costs nothing.

        Raises TrainingError if no rollout of the first trials has a reward.
        """

    async def reflect(self, question: str) -> str:
        """The reflecting model's answer, recorded. Raises TrainingError after three tries without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The options of every search."""

    budget: int = 400
    """Rollouts that it may run, the final report's included."""
    repeats: int = 1
    """Rollouts of one candidate on one task. 1 samples a trained agent greedily, more at temperature 1; an
    app whose own models sample needs more, as one rollout is luck then."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an option out of its range."""
        check_range("budget", self.budget, of=self.name, least=1, whole=True)
        check_range("repeats", self.repeats, of=self.name, least=1, whole=True)

    improves: ClassVar[Literal["prompts"]] = "prompts"
    """Distinguishes a search from an algorithm that trains weights."""

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def asks(self) -> str | Callable[[str], str] | None:
        """The model that proposes texts; None if the search needs none."""
        return None

    async def search(self, bench: Bench) -> Candidate:
        """The best candidate by the tasks that choose; the seed if none is better."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflective(Search):
    """The options of searches in which a second model reads what happened."""

    reflection: str | Callable[[str], str]
    """The model that proposes texts: "http://HOST/v1#MODEL", the name of a model at `OPENAI_BASE_URL` or
    OpenAI, or a function from a question to an answer."""
    tokens: int | None = None
    """Tokens that the reflecting model may read and write in all; None for no limit but the budget's."""
    shown: int = 6_000
    """Tokens of what happened in one question, taken as four characters each."""

    def __post_init__(self) -> None:
        Search.__post_init__(self)
        kind = type(self).__name__
        check_range("shown", self.shown, of=kind, least=1, whole=True)
        if self.tokens is not None:
            check_range("tokens", self.tokens, of=kind, least=1, whole=True)
        if not self.reflection:
            raise ConfigError(f'{kind}(reflection=""): give "http://HOST/v1#MODEL", or a function')

    @property
    def asks(self) -> str | Callable[[str], str] | None:
        return self.reflection

    def has_asked_enough(self, bench: Bench) -> bool:
        """Whether the reflecting model may read and write no more."""
        return self.tokens is not None and bench.tokens >= self.tokens


def is_search(algorithm: object) -> TypeIs[Search]:
    """Whether it looks for better prompts, by what it declares."""
    return getattr(algorithm, "improves", "weights") == "prompts"


def mean(trials: Sequence[Trial]) -> float:
    """The mean reward over the tasks."""
    return fmean(trial.reward for trial in trials)


def evidence(trial: Trial, agent: str, tokens: int) -> dict[str, str]:
    """Returns a trial's worst episode for a reflecting model, as the store has it.

    `agent` has the prompt in question; if no call is its own, all calls are shown. Of longer conversations
    the middle is left out, and a line says how much.
    """
    worst = min(trial.episodes, key=lambda each: each.reward)
    own = [call for call in worst.calls if call.agent == agent] or list(worst.calls)
    lines = shorten(dialogue(own), tokens * CHARACTERS)
    rewards = ", ".join(f"{each.reward:g}" for each in trial.episodes)
    told = [
        f"Reward: {rewards}" + (" (the first with the lowest is shown)" if len(trial.episodes) > 1 else "")
    ]
    if worst.rollout.error:
        told.append(f"The run failed: {_cut(worst.rollout.error, tokens)}")
    told += [
        f"Tool {each.name!r} failed: {_cut(each.error, tokens)}"
        for each in worst.events
        if isinstance(each, ToolEvent) and each.error
    ]
    told += [
        f"{each.source}: {each.value:+g}" + (f", {_cut(each.reason, tokens)}" if each.reason else "")
        for each in worst.rewards
        if each.kind == "intermediate" or each.reason
    ]
    return {
        "Task": _cut(json.dumps(trial.task.input, ensure_ascii=False), tokens),
        "Conversation": "\n\n".join(map(_said, lines)),
        "Feedback": "\n".join(told),
    }


def _said(line: Line) -> str:
    return f"[{' '.join(filter(None, (line.agent, line.role)))}]\n{line.text}"


def _cut(text: str, tokens: int) -> str:
    most = tokens * CHARACTERS // 2
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} characters are left out here)"
