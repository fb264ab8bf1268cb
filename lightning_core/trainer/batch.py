"""The batch of a step: finished rollouts, what they recorded, and the trajectories made of both."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import fmean

from lightning_core.air.rulebook import Rulebook, is_automatic
from lightning_core.algorithms.entropy import measure_entropies
from lightning_core.credit.base import CreditReport
from lightning_core.experience.returns import (
    counted_failures,
    may_count,
    unusable_groups,
    with_final,
    without_left_out,
)
from lightning_core.experience.transitions import to_trajectories
from lightning_core.records.linking import answering
from lightning_core.records.types import (
    REWARD_RANGE,
    Call,
    Reward,
    Rollout,
    Status,
    Trajectory,
)
from lightning_core.stores.base import Store
from lightning_core.trainer.judging import Judging

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rollouts of a step's update, before credit."""

    rollouts: list[Rollout]
    """All finished, some without a reward; none if the batch is made of demonstrations."""
    calls: dict[str, list[Call]]
    """Calls by rollout id."""
    trajectories: list[Trajectory]
    """Trajectories of the rollouts with a reward, without unusable groups; or demonstrations, with reward
    NaN."""
    seconds: float
    """Spent until they were there."""
    rewards: dict[str, list[Reward]] = field(default_factory=dict)
    """Final and intermediate rewards by rollout id."""
    added_groups: int = 0
    """Groups that dynamic sampling has added."""
    unusable_groups: int = 0
    """Groups that are left out, as a reward in them is no number or too large."""
    taught: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the teachers' prompts, if the algorithm has teachers."""

    def with_groups(self, other: StepBatch) -> StepBatch:
        """This batch and the groups that dynamic sampling adds to it."""
        return StepBatch(
            [*self.rollouts, *other.rollouts],
            {**self.calls, **other.calls},
            [*self.trajectories, *other.trajectories],
            self.seconds + other.seconds,
            {**self.rewards, **other.rewards},
            self.added_groups + len({rollout.group_id for rollout in other.rollouts}),
            self.unusable_groups + other.unusable_groups,
        )


async def read_batch(
    store: Store,
    rulebook: Rulebook | None,
    judging: Judging | None,
    rollouts: Sequence[Rollout],
    began: float | None = None,
    *,
    lowest: bool = True,
) -> StepBatch:
    """The batch of finished rollouts: what they recorded, the rewards that count, and their trajectories.

    `lowest`: a failure that counts has the lowest return of its group, if that is less than its own.

    Automatic rewards (`rulebook`) and those of the judge are given here, and stored. `began` is when the
    rollouts were first waited for.
    """
    ids = [rollout.id for rollout in rollouts]
    calls, rewards = await store.get_calls(ids), await store.get_rewards(ids)
    if rulebook is not None:
        rewards = await add_automatic(store, rulebook, rollouts, calls, rewards)
    unusable = unusable_groups(rollouts, rewards)
    for group, (rollout, value) in unusable.items():
        log.warning(
            "group %s is left out: rollout %s has a reward of %r, and a reward is %s",
            group,
            rollout.id,
            value,
            REWARD_RANGE,
        )
    if judging is not None:
        judged = [rollout for rollout in rollouts if rollout.group_id not in unusable]
        rewards = await judging.score(judged, calls, rewards)
    ended = [with_final(rollout, rewards[rollout.id]) for rollout in rollouts]
    trajectories = await asyncio.to_thread(  # 0.2 s for 64 rollouts of 100 calls
        to_trajectories, ended, calls, rewards, lowest=lowest
    )
    ended = without_left_out(ended, trajectories, unusable)
    seconds = 0.0 if began is None else time.perf_counter() - began
    return StepBatch(ended, calls, trajectories, seconds, rewards, unusable_groups=len(unusable))


async def add_automatic(
    store: Store,
    rulebook: Rulebook,
    rollouts: Sequence[Rollout],
    calls: Mapping[str, Sequence[Call]],
    rewards: Mapping[str, list[Reward]],
) -> dict[str, list[Reward]]:
    """The rewards with the automatic ones; those that were not given before are stored, all at once.

    Given to training rollouts that count. One that has automatic rewards already is left alone:
    they were stored together, so a killed trainer left all of them or none.
    """
    due = [
        rollout
        for rollout in rollouts
        if rollout.split == "train" and may_count(rollout) and not any(map(is_automatic, rewards[rollout.id]))
    ]
    events = await store.get_events([rollout.id for rollout in due])
    # a thread: 0.24 s for 64 rollouts of 100 calls, in which the gateway would not answer
    fresh = await asyncio.to_thread(
        lambda: {r.id: rulebook.rewards(r, answering(calls[r.id]), events[r.id]) for r in due}
    )
    if given := [reward for of_one in fresh.values() for reward in of_one]:
        await store.add_rewards(given)
    return {rollout_id: [*known, *fresh.get(rollout_id, ())] for rollout_id, known in rewards.items()}


def step_numbers(batch: StepBatch, credited: Sequence[Trajectory], report: CreditReport) -> dict[str, float]:
    """The step's metrics that follow from its batch and from credit."""
    agents = _agent_numbers(batch, report.transitions) | _credit_numbers(credited)
    if not batch.rollouts:
        return agents | {"demonstrations": report.groups}
    entropy = measure_entropy(batch.trajectories)
    return {
        **_reward_numbers([trajectory.reward for trajectory in batch.trajectories]),
        "rollouts": len(batch.rollouts),
        "failures": count_failures(batch.rollouts),
        "failures_counted": len(counted_failures(batch.rollouts)),
        **failure_numbers(batch.rollouts, batch.calls),
        "rollouts_without_calls": sum(
            rollout.status is Status.SUCCEEDED and not batch.calls.get(rollout.id)
            for rollout in batch.rollouts
        ),
        **_agent_rewards(batch.trajectories),
        "groups": report.groups + batch.unusable_groups,
        "unusable_groups": len(report.unusable) + batch.unusable_groups,
        "added_groups": batch.added_groups,
        "zero_variance_groups": report.zero_variance_groups,
        **({} if entropy is None else {"entropy": entropy}),
        **{f"agent/{name}/entropy": of for name, of in measure_entropies(batch.trajectories).items()},
        **agents,
        **batch.taught,
    }


def had_signal(values: Mapping[str, float]) -> bool:
    """Whether a step's numbers have a group that told its rollouts apart."""
    equal = values.get("zero_variance_groups", 0.0) + values.get("unusable_groups", 0.0)
    return equal < values.get("groups", 0.0)


def _reward_numbers(rewards: Sequence[float]) -> dict[str, float]:
    if not rewards:
        return {}
    return {"reward": fmean(rewards), "reward_min": min(rewards), "reward_max": max(rewards)}


def count_failures(rollouts: Sequence[Rollout]) -> int:
    """How many did not succeed."""
    return sum(rollout.status is not Status.SUCCEEDED for rollout in rollouts)


def _agent_numbers(batch: StepBatch, transitions: Mapping[str, int]) -> dict[str, float]:
    """Calls, sampled tokens, what failed, AIR, and the `transitions` that carry loss, of each agent."""
    numbers: defaultdict[str, float] = defaultdict(float)
    for call in (call for part in batch.calls.values() for call in part):
        start = f"agent/{call.agent}"
        numbers[f"{start}/calls"] += 1
        numbers[f"{start}/completion_tokens"] += sum(len(c.completion_ids or ()) for c in call.choices)
        numbers[f"{start}/trained"] = int(call.trained)
        numbers[f"{start}/transitions"] = transitions.get(call.agent, 0)
        numbers[f"{start}/left_out_calls"] += any(c.left_out is not None for c in call.choices)
        numbers[f"{start}/failed_calls"] += call.status in ("failed", "refused")
        numbers[f"{start}/constrained_calls"] += call.grammar is not None
    for rollout in batch.rollouts:
        calls = batch.calls.get(rollout.id, ())
        if rollout.status is Status.FAILED and calls:
            numbers[f"agent/{calls[-1].agent}/failed_rollouts"] += 1
        for reward in batch.rewards.get(rollout.id, ()):
            if is_automatic(reward) and reward.agent is not None:
                numbers[f"agent/{reward.agent}/air"] += reward.value
    if not batch.rollouts:
        for name, count in transitions.items():
            numbers[f"agent/{name}/trained"] = 1
            numbers[f"agent/{name}/transitions"] = count
    return {name: float(value) for name, value in numbers.items()}


def _credit_numbers(credited: Sequence[Trajectory]) -> dict[str, float]:
    """The sum of each agent's advantages, taken as positive: how much the update heard of it."""
    numbers: defaultdict[str, float] = defaultdict(float)
    for transition in (t for each in credited for t in each.transitions):
        if transition.trained and transition.advantage is not None:
            numbers[f"agent/{transition.agent}/credit"] += abs(transition.advantage)
    return dict(numbers)


def _agent_rewards(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The mean final reward of the rollouts in which each agent acted: its own, where there is one."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for each in trajectories:
        for agent in {t.agent for t in each.transitions}:
            found[agent].append(each.final(agent))
    return {f"agent/{name}/reward": fmean(values) for name, values in found.items()}


def measure_entropy(trajectories: Sequence[Trajectory]) -> float | None:
    """Minus the mean log-probability of all that trained agents sampled: the policy's entropy, estimated, in
    nats per token; None if they sampled nothing. (`sampled_entropy` is that of what is trained on.)"""
    sampled = [t.logprobs for each in trajectories for t in each.transitions if t.trained]
    tokens = sum(map(len, sampled))
    return -sum(map(sum, sampled)) / tokens if tokens else None


def failure_numbers(rollouts: Sequence[Rollout], calls: Mapping[str, Sequence[Call]]) -> dict[str, float]:
    """How far the replies tell which rollouts of a group failed: three sums over the groups, for an alert.

    None if no group varies. The replies of a group are sorted by their first token that differs. With n
    rollouts, f failures, k classes of n_c rollouts with f_c failures (analysis of variance):

        total    f (n - f) / n
        between  sum of f_c^2 / n_c - f^2 / n
        chance   (k - 1) / (n - 1) * total

    the last being the mean of `between` over all ways to deal the failures out. Where every class holds one
    rollout, `between` is `total` and so is chance's: nothing is known.
    """
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group_id, []).append(rollout)
    between = chance = total = 0.0
    for group in groups.values():
        marks = _marks([_first_reply(calls.get(rollout.id, ())) for rollout in group])
        known = [(m, r.status is Status.FAILED) for m, r in zip(marks, group, strict=True) if m is not None]
        n, f = len(known), sum(failed for _, failed in known)
        if not 0 < f < n:
            continue
        sizes, failing = Counter(m for m, _ in known), Counter(m for m, failed in known if failed)
        here = f * (n - f) / n
        total += here
        between += sum(count**2 / sizes[mark] for mark, count in failing.items()) - f**2 / n
        chance += (len(sizes) - 1) / (n - 1) * here
    if not total:
        return {}
    return {"failures_by_reply": between, "failures_by_chance": chance, "failures_varied": total}


def _first_reply(calls: Sequence[Call]) -> Sequence[int] | None:
    """Returns a trained agent's first reply as token ids; None if it did not reply."""
    found = (one.completion_ids for call in calls if call.trained for one in call.choices[:1])
    return next((ids for ids in found if ids is not None), None)


def _marks(replies: Sequence[Sequence[int] | None]) -> list[tuple[int, ...] | None]:
    """For each reply its tokens up to the first place where the replies differ; () if they don't."""
    given = [reply for reply in replies if reply is not None]
    places = enumerate(zip_longest(*given))
    end = next((place + 1 for place, column in places if len(set(column)) > 1), 0)
    return [None if reply is None else tuple(reply[:end]) for reply in replies]
