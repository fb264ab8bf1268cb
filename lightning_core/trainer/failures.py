"""Rollouts that failed after the policy's replies: what they count as, and whether the replies decided it.

Pure functions beside the batch: which failure counts at all is decided where it happens (`runner.config`),
what it counts as only where the whole group is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from lightning_core.credit.base import group_by_id, total_return
from lightning_core.types import Call, Rollout, Status, Trajectory


def with_lowest(trajectories: Sequence[Trajectory], failed: Collection[str]) -> list[Trajectory]:
    """The trajectories, those of `failed` rollouts with their group's lowest return if that is less.

    For each agent, as agents may have rewards of their own. A group of which all failed is left out: it
    compares nothing, and of a step in which no rollout succeeds the trainer must hear.
    """
    found = []
    for group in group_by_id(trajectories).values():
        whole = [each for each in group if each.rollout_id not in failed]
        found += [_lowered(each, whole) if each.rollout_id in failed else each for each in group if whole]
    return found


def _lowered(own: Trajectory, whole: Sequence[Trajectory]) -> Trajectory:
    agents = {agent for each in whole for agent in each.agent_rewards}
    reward = min(own.reward, *(each.reward + each.intermediate for each in whole))
    lowest = {agent: min(own.reward, *(total_return(each, agent) for each in whole)) for agent in agents}
    return replace(own, reward=reward, agent_rewards=lowest)


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
    """What a trained agent replied first, as token ids; None if it did not reply."""
    found = (one.completion_ids for call in calls if call.trained for one in call.choices[:1])
    return next((ids for ids in found if ids is not None), None)


def _marks(replies: Sequence[Sequence[int] | None]) -> list[tuple[int, ...] | None]:
    """For each reply its tokens up to the first place where the replies differ; () if they don't."""
    given = [reply for reply in replies if reply is not None]
    places = enumerate(zip_longest(*given))
    end = next((place + 1 for place, column in places if len(set(column)) > 1), 0)
    return [None if reply is None else tuple(reply[:end]) for reply in replies]
