"""Why a call got its advantage, and what it would have got otherwise: from the records of a step.

Nothing is told from memory: the step is read from the store, and credited by the very functions that the
trainer used, which say what their terms are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any, Final

from pydantic import JsonValue

from lightning_core.air.base import Records
from lightning_core.air.reading import read_records
from lightning_core.air.rulebook import Rulebook, is_automatic
from lightning_core.credit.base import Baseline, Credit, CreditReport, Scale
from lightning_core.credit.explaining import Explanation, explain
from lightning_core.dialects import transcript
from lightning_core.errors import ConfigError, LightningError, RewardError
from lightning_core.experience.returns import may_count, with_final
from lightning_core.experience.transitions import last_planned, to_trajectories
from lightning_core.insight.wording import lines, sentence
from lightning_core.records.types import (
    REWARD_RANGE,
    Call,
    Credited,
    Event,
    Key,
    Reward,
    Rollout,
    Run,
    Trajectory,
    Transition,
    is_reward,
)
from lightning_core.stores.base import Store, get_run

LATER: Final = (
    "Only this step is credited again; with other advantages, later weights would have been others."
)
"""The limit of every what-if."""
CHANGED: Final = "the trainer gave other advantages: the records were changed after its update"
UNPLANNED: Final = (
    "the trainer did not train on it: another rollout took its place, or someone else asked for it"
)
HELD_OUT: Final = "a held-out task: it is not trained on, so no call has an advantage"
_OURS: Final = "lightning_core.credit."
_SAME: Final = 1e-6
"""Advantages that differ by no more are taken for equal."""


# what was recorded ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Step:
    """The finished rollouts of a training step, with all that their last attempts recorded."""

    rollouts: tuple[Rollout, ...]
    """Each with the final reward that counts."""
    calls: Mapping[str, Sequence[Call]]
    """Calls by rollout id, as all that follows."""
    rewards: Mapping[str, Sequence[Reward]]
    events: Mapping[str, Sequence[Event]]
    credited: Mapping[str, Sequence[Credited]] = field(default_factory=dict)
    """The trainer's credit; empty for a step that it has not credited yet."""

    def trajectories(self, *, lowest: bool = True) -> list[Trajectory]:
        """Returns the trajectories that the trainer credits, as `transitions.to_trajectories` makes them."""
        made = to_trajectories(self.rollouts, self.calls, self.rewards, lowest=lowest)
        values = {key: one.value for key, one in self.given().items() if one.value is not None}
        if not values:
            return made
        return [
            replace(each, transitions=tuple(replace(t, value=values.get(t.key)) for t in each.transitions))
            for each in made
        ]

    def given(self) -> dict[Key, Credited]:
        """Returns the trainer's credit of each transition."""
        every = (one for some in self.credited.values() for one in some)
        return {(one.rollout_id, one.call_id, one.choice): one for one in every}

    def reply(self, key: Key) -> str:
        """Returns the text that a transition trains on; "" for a call that is not there."""
        rollout_id, call_id, choice = key
        call = next((one for one in self.calls.get(rollout_id, ()) if one.id == call_id), None)
        return "" if call is None else transcript.text(transcript.replies(call)[choice : choice + 1])

    def weights(self) -> dict[Key, float] | None:
        """The weight of a token of each transition in the loss; None if the trainer has not credited it."""
        return {key: one.weight for key, one in self.given().items()} or None


async def read_step(store: Store, rollouts: Sequence[Rollout]) -> Step:
    """The records of the rollouts that a step was made of; one that has not finished is left out."""
    ended = [one for one in rollouts if one.status.finished]
    ids = [one.id for one in ended]
    rewards = await store.get_rewards(ids)
    calls, events = await store.get_calls(ids), await store.get_events(ids)
    credited = await store.get_credited(ids)
    return Step(tuple(with_final(one, rewards[one.id]) for one in ended), calls, rewards, events, credited)


@dataclass(frozen=True, slots=True)
class Method:
    """How a step is credited."""

    credit: Credit
    baseline: Baseline = "mean"
    scale: Scale = "std"
    first: int = 0
    """The first step that is credited so."""
    lowest: bool = True
    """Whether a failure that counts has the lowest return of its group."""

    def written(self) -> dict[str, JsonValue]:
        """As a run keeps it."""
        of: Any = self.credit if hasattr(self.credit, "__qualname__") else type(self.credit)
        ours = of is not self.credit and of.__module__.startswith(_OURS) and is_dataclass(of)
        return {
            "method": f"{of.__module__}:{of.__qualname__}",
            "options": asdict(self.credit) if ours else None,  # type: ignore[call-overload]
            "baseline": self.baseline,
            "scale": self.scale,
            "first": self.first,
            "lowest": self.lowest,
        }


CREDIT: Final = "credit"
"""Where a run's config keeps how it is credited."""


def method_of(run: Run, step: int) -> Method:
    """How a step of the run was credited.

    Raises ConfigError if the run does not say, or for a method of the user's own, which no record can bring
    back: then give a `Method`.
    """
    kept = run.config.get(CREDIT)
    entries = [one for one in kept if isinstance(one, dict)] if isinstance(kept, list) else []
    begun = [one for one in entries if isinstance(first := one.get("first"), int) and first <= step]
    if not begun:
        raise ConfigError(f"run {run.id!r} does not say how step {step} was credited; name a credit method")
    said = begun[-1]
    module, _, name = str(said["method"]).partition(":")
    if not module.startswith(_OURS):
        raise ConfigError(
            f"run {run.id!r} was credited by {said['method']!r}, a method of its own; name a credit method"
        )
    found = getattr(importlib.import_module(module), name)
    options: Any = said["options"]
    credit: Credit = found if options is None else found(**options)
    baseline: Any = said["baseline"]
    scale: Any = said["scale"]
    return Method(credit, baseline, scale, int(str(said["first"])), lowest=bool(said.get("lowest", True)))


# why ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Reason:
    """Why a transition has its advantage, or has none."""

    transition: Transition
    trajectory: Trajectory
    explanation: Explanation | None
    """The terms, which add up to the advantage."""
    silent: str | None
    """Why it has no advantage; None if it has one."""
    sentence: str
    """The same in words, as `wording` puts it."""
    share: float
    """Its share of the step's loss, as the sum over its tokens of |advantage|, each token with the weight
    that the algorithm gave it; 0 to 1."""

    @property
    def advantage(self) -> float | None:
        return None if self.explanation is None else self.explanation.advantage

    def lines(self) -> list[str]:
        """The sentence, and under it how the advantage comes about."""
        if self.explanation is None:
            return [self.sentence]
        return [self.sentence, *lines(self.explanation, self.share)]


@dataclass(frozen=True, slots=True)
class Answers:
    """Why each transition of a step has its advantage, or has none."""

    reasons: Mapping[Key, Reason]
    """In the order of the rollouts and of their calls."""
    report: CreditReport

    @property
    def taught(self) -> set[str]:
        """The groups in which a call got an advantage: something differed where it is compared."""
        return {one.trajectory.group_id for one in self.reasons.values() if one.explanation is not None}

    def returns(self) -> dict[str, dict[str, float]]:
        """The return of each rollout, by group: final reward plus all intermediate ones."""
        groups: dict[str, dict[str, float]] = {}
        for one in self.reasons.values():
            whole = one.trajectory.reward + one.trajectory.intermediate
            groups.setdefault(one.trajectory.group_id, {})[one.trajectory.rollout_id] = whole
        return groups


def why(
    trajectories: Sequence[Trajectory], method: Method, weights: Mapping[Key, float] | None = None
) -> Answers:
    """Why each transition has its advantage. `weights`: that of a token of each transition in the loss; by
    default all tokens weigh the same, as with `aggregation="token"`."""
    credited, report, explanations = explain(trajectories, method.credit, method.baseline, method.scale)
    told = {each.rollout_id for each in credited}
    lengths = {t.key: len(t.completion_ids) for each in trajectories for t in each.transitions}
    losses = {
        key: abs(one.advantage) * lengths[key] * (1.0 if weights is None else weights.get(key, 0.0))
        for key, one in explanations.items()
    }
    whole = sum(losses.values()) or 1.0
    rollouts = {each.rollout_id: each for each in trajectories}
    reasons = {}
    for each in trajectories:
        for t in each.transitions:
            found = explanations.get(t.key)
            silent = None if found else _silence(t, each, told, report)
            said = sentence(found, t, rollouts) if found else f"No advantage: {silent}."
            share = losses.get(t.key, 0.0) / whole
            reasons[t.key] = Reason(t, each, found, silent, said, share)
    return Answers(reasons, report)


async def read_why(store: Store, run_id: str, number: int) -> tuple[Step, Method, Answers]:
    """A training step of a run, from 0, how it was credited, and why each transition has its advantage.

    Raises NotFoundError for a run that has not begun, and ConfigError as `method_of` does.
    """
    method = method_of(await get_run(store, run_id), number)
    rollouts = last_planned(await store.find_rollouts(run_id, step=number, split="train"))
    step = await read_step(store, rollouts)
    return step, method, why(step.trajectories(lowest=method.lowest), method, step.weights())


async def reasons_of(store: Store, rollout: Rollout) -> tuple[dict[str, list[Reason]], str | None]:
    """Why the choices of each call of a rollout have their advantages, by call id; and the problem with that,
    None if there is none."""
    if rollout.split != "train":
        return {}, HELD_OUT
    if not rollout.status.finished:
        return {}, None
    try:
        step, _, answers = await read_why(store, rollout.run_id, rollout.step)
    except LightningError as error:  # the rollout is shown all the same
        return {}, str(error)
    if all(one.id != rollout.id for one in step.rollouts):
        return {}, UNPLANNED
    found: dict[str, list[Reason]] = {}
    for (rollout_id, call_id, _), reason in answers.reasons.items():
        if rollout_id == rollout.id:
            found.setdefault(call_id, []).append(reason)
    changed = any(key[0] == rollout.id for key in differing(answers, step))
    return found, CHANGED if changed else None


def differing(answers: Answers, step: Step) -> list[Key]:
    """The transitions that the trainer gave another advantage than the records explain: as when they were
    changed afterwards. [] for a step that it has not credited yet."""
    given = step.given()
    found = []
    for key, reason in answers.reasons.items() if given else ():
        stored = given[key].advantage if key in given else None
        if abs((stored or 0.0) - (reason.advantage or 0.0)) > _SAME:
            found.append(key)
    return found


def _silence(t: Transition, trajectory: Trajectory, told: set[str], report: CreditReport) -> str:
    if not t.trained:
        return f"agent {t.agent!r} is not trained"
    if trajectory.group_id in report.unusable:
        return "a number of its group is not finite or beyond 1e15, so the whole group was left out"
    if trajectory.rollout_id not in told:
        return "the rollouts of its group did not differ where they are compared, so no reward speaks for it"
    if any(other.call_id == t.call_id and other.choice != t.choice for other in trajectory.transitions):
        return "the app went on with another choice of this call, or nothing differed where it is compared"
    return "nothing differed where it is compared, or there was nothing to compare it with"


# what if --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AdvantageChange:
    """An advantage before and after; None where there is none."""

    key: Key
    agent: str
    before: float | None
    after: float | None

    @property
    def size(self) -> float:
        """How far it moves; none counts as 0."""
        return abs((self.after or 0.0) - (self.before or 0.0))


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A step as it was credited, and as it would have been."""

    before: Answers
    after: Answers
    changes: tuple[AdvantageChange, ...]
    """One for each transition of either, the one that moves most first."""
    note: str = LATER

    @property
    def moved(self) -> list[AdvantageChange]:
        """The transitions that would have another advantage, the one that moves most first."""
        return [one for one in self.changes if one.size > _SAME]

    @property
    def conclusion(self) -> str:
        """How many calls would have another advantage, and in which way, in one sentence."""
        ends = [(one.before or 0.0, one.after or 0.0) for one in self.moved]
        if not ends:
            return "Nothing changes: every call keeps its advantage."
        counts = {
            "would be pushed the other way": sum(before * after < 0 for before, after in ends),
            "would teach that taught nothing": sum(not before for before, _ in ends),
            "would teach nothing": sum(not after for _, after in ends),
        }
        ways = [f"{count} {way}" for way, count in counts.items() if count]
        return (
            f"{len(ends)} of {len(self.changes)} calls would have another advantage "
            f"({len(ends) / len(self.changes):.0%}): "
            f"{', '.join(ways) or 'each in the same direction, with another strength'}."
        )


RewardFunction = Callable[[Records], float | None]
"""A final reward from what was recorded of a rollout; None leaves the one it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """The changes of a what-if; None leaves a setting as it was."""

    credit: Credit | None = None
    baseline: Baseline | None = None
    scale: Scale | None = None
    air: Rulebook | None = None
    """Gives the automatic rewards in place of those that are recorded."""
    without_air: bool = False
    """Leave the automatic rewards out."""
    reward: RewardFunction | None = None
    """Gives rollouts that succeeded their final reward, that of single agents included."""


def what_if(step: Step, method: Method, other: Other) -> WhatIf:
    """The step credited again with other settings; with none of them nothing changes.

    Raises RewardError if a rule of AIR or the reward function fails, or if that gives what is no reward.
    """
    changed = replace(
        method,
        credit=other.credit or method.credit,
        baseline=other.baseline or method.baseline,
        scale=other.scale or method.scale,
    )
    before, after = (
        why(each.trajectories(lowest=method.lowest), way)
        for each, way in ((step, method), (rewarded(step, other), changed))
    )
    keys = dict.fromkeys([*before.reasons, *after.reasons])
    changes = [
        AdvantageChange(
            key,
            (before.reasons.get(key) or after.reasons[key]).transition.agent,
            _advantage(before, key),
            _advantage(after, key),
        )
        for key in keys
    ]
    return WhatIf(before, after, tuple(sorted(changes, key=lambda one: (-one.size, one.key))))


def _advantage(answers: Answers, key: Key) -> float | None:
    return answers.reasons[key].advantage if key in answers.reasons else None


def rewarded(step: Step, other: Other) -> Step:
    """The step with the rewards that it would have had; the very same if they are not to be different."""
    if other.air is None and not other.without_air and other.reward is None:
        return step
    rewards = {name: list(given) for name, given in step.rewards.items()}
    if other.air is not None or other.without_air:
        rewards = {name: [one for one in given if not is_automatic(one)] for name, given in rewards.items()}
    if other.air is not None:
        for one in step.rollouts:
            if one.split == "train" and may_count(one):
                rewards[one.id] += other.air.rewards(one, step.calls[one.id], step.events[one.id])
    rollouts = step.rollouts
    if other.reward is not None:
        values = {one.id: _value(step, one, other.reward) for one in rollouts}
        rollouts = tuple(
            one if (value := values[one.id]) is None else one.model_copy(update={"reward": value})
            for one in rollouts
        )
        rewards = {
            name: given if values[name] is None else [one for one in given if one.kind != "final"]
            for name, given in rewards.items()
        }
    return replace(step, rollouts=rollouts, rewards=rewards)


def _value(step: Step, rollout: Rollout, reward: RewardFunction) -> float | None:
    if rollout.error is not None or rollout.reward is None:
        return None
    name = rollout.id
    try:
        value = reward(read_records(rollout, step.calls[name], step.events[name]))
    except Exception as error:  # the user's function may raise anything
        raise RewardError(
            f"the reward function failed on rollout {name!r}: {type(error).__name__}: {error}"
        ) from error
    if value is None:
        return None
    if not isinstance(value, int | float) or not is_reward(value):
        raise RewardError(f"the reward function gave rollout {name!r} {value!r}; a reward is {REWARD_RANGE}")
    return float(value)
