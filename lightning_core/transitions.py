"""Rollouts' records as trajectories: what credit compares, and what is trained on.

The trainer makes its batches so, and whoever explains an update makes them again, from the same records.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from lightning_core.credit.base import group_by_id, total_return
from lightning_core.errors import TokenIdsError
from lightning_core.linking import final_rewards, in_order, link_rewards
from lightning_core.sequences import as_ids, as_logprobs
from lightning_core.stores.rules import answering
from lightning_core.transcript import observation
from lightning_core.types import Call, Reward, Rollout, Status, Trajectory, Transition, is_reward

log = logging.getLogger(__name__)


def to_trajectories(
    rollouts: Sequence[Rollout],
    calls: Mapping[str, Sequence[Call]],
    rewards: Mapping[str, Sequence[Reward]],
    *,
    lowest: bool,
) -> list[Trajectory]:
    """Returns trajectories of the finished rollouts that count: with a reward, in groups without an unusable
    one.

    `lowest`: a failure that counts has the lowest return of its group, if that is less than its own; with
    groups of one, of all.
    """
    unusable = unusable_groups(rollouts, rewards)
    counted = [one for one in rollouts if one.reward is not None and one.group_id not in unusable]
    made = [to_trajectory(one, answering(calls[one.id]), rewards[one.id]) for one in counted]
    return with_lowest(made, {one.id for one in counted if one.status is Status.FAILED}) if lowest else made


def unusable_groups(
    rollouts: Sequence[Rollout], rewards: Mapping[str, Sequence[Reward]]
) -> dict[str, tuple[Rollout, float]]:
    """The groups with a reward that no store takes, and where it is: of another version, or of a store of a
    plugin."""
    found: dict[str, tuple[Rollout, float]] = {}
    for rollout in rollouts:
        counted = () if rollout.status is Status.FAILED else rewards[rollout.id]
        own = () if rollout.reward is None else (rollout.reward,)
        bad = next((v for v in (*own, *(each.value for each in counted)) if not is_reward(v)), None)
        if bad is not None:
            found.setdefault(rollout.group_id, (rollout, bad))
    return found


# which failures count is decided where they happen (`runner.config`), as what only where the group is known
def with_lowest(trajectories: Sequence[Trajectory], failed: Collection[str]) -> list[Trajectory]:
    """The trajectories, those of `failed` rollouts with their group's lowest return if that is less; a group
    of one has the lowest of all.

    For each agent, as agents may have rewards of their own. A group of which all failed is left out: it
    compares nothing, and of a step in which no rollout succeeds the trainer must hear.
    """
    found = []
    everyone = [each for each in trajectories if each.rollout_id not in failed]
    for group in group_by_id(trajectories).values():
        whole = [each for each in group if each.rollout_id not in failed] if len(group) > 1 else everyone
        found += [_lowered(each, whole) if each.rollout_id in failed else each for each in group if whole]
    return found


def _lowered(own: Trajectory, whole: Sequence[Trajectory]) -> Trajectory:
    agents = {agent for each in whole for agent in each.agent_rewards}
    reward = min(own.reward, *(each.reward + each.intermediate for each in whole))
    lowest = {agent: min(own.reward, *(total_return(each, agent) for each in whole)) for agent in agents}
    return replace(own, reward=reward, agent_rewards=lowest)


def to_trajectory(rollout: Rollout, calls: Sequence[Call], rewards: Sequence[Reward]) -> Trajectory:
    """The rollout's completed calls as transitions, with the intermediate rewards addressed to them.

    Of several final rewards of the rollout, or of one agent, the last one counts. The penalty of a penalised
    rollout is its whole return, for every agent: what was earned up to where it failed says more of where
    that was than of how good it was. A reward about a call that was not recorded counts for the rollout
    alone. A call that was only seen, answered elsewhere than by the gateway, is no transition.
    A trained call without token ids raises TokenIdsError: what was sampled is then unknown.
    """
    if rollout.reward is None:
        raise ValueError(f"rollout {rollout.id!r} has no reward yet")
    intermediate: defaultdict[str, float] = defaultdict(float)
    counted = [] if rollout.status is Status.FAILED else link_rewards(calls, in_order(rewards))
    final: dict[str | None, float] = {None: rollout.reward, **final_rewards(counted)}
    for reward in counted:
        if reward.kind == "intermediate" and reward.call_id is not None:
            intermediate[reward.call_id] += reward.value
    if lost := intermediate.keys() - {call.id for call in calls}:
        log.warning(
            "rollout %s: rewards are about %s, which is no id of a call, a reply or a tool call recorded in "
            "it; they count for the rollout, but for no call",
            rollout.id,
            ", ".join(map(repr, sorted(lost))),
        )
    seen = {call.agent for call in calls}
    if strangers := {reward.agent for reward in rewards if reward.kind == "final" and reward.agent} - seen:
        log.warning(
            "rollout %s: final rewards are for %s, who made no call in it; they count for no agent. Agents "
            "seen in it: %s",
            rollout.id,
            ", ".join(map(repr, sorted(strangers))),
            ", ".join(map(repr, sorted(seen))) or "none",
        )
    transitions = [
        transition
        for call in calls
        if call.status == "completed" and call.endpoint is None
        for transition in _transitions(rollout, call, intermediate[call.id])
    ]
    return Trajectory(
        rollout_id=rollout.id,
        group_id=rollout.group_id,
        task_id=rollout.task.id,
        reward=final[None],
        transitions=tuple(transitions),
        intermediate=sum(reward.value for reward in counted if reward.kind == "intermediate"),
        agent_rewards={agent: value for agent, value in final.items() if agent is not None},
    )


def _transitions(rollout: Rollout, call: Call, reward: float) -> Iterable[Transition]:
    shown = observation(call)
    prompt = None if call.prompt_ids is None else as_ids(call.prompt_ids)
    for choice in call.choices:
        if prompt is None or choice.completion_ids is None or choice.logprobs is None:
            if call.trained:
                raise TokenIdsError(
                    f"call {call.id!r} of agent {call.agent!r} in rollout {rollout.id!r} has no token ids "
                    f"(model {call.model!r}); an engine that serves a trained agent must return them"
                )
            continue
        yield Transition(
            rollout_id=rollout.id,
            call_id=call.id,
            choice=choice.index,
            agent=call.agent,
            trained=call.trained and choice.left_out is None,
            prompt_ids=prompt,
            completion_ids=as_ids(choice.completion_ids),
            logprobs=as_logprobs(choice.logprobs),
            policy_version=call.policy_version,
            temperature=call.temperature,
            grammar=choice.kept or call.grammar,
            observation=shown,
            reward=reward,
            started_at=call.started_at,
            ended_at=call.ended_at,
        )


# which rollouts a step is made of; `trainer.plan` names them
def find_place(rollout: Rollout) -> tuple[str, int] | None:
    """(the place in its step that the trainer planned a rollout for, the number of the retry); None if it was
    not the trainer who asked for it: anybody may enqueue rollouts of a run, with a step and a split."""
    letter, place = ("t", r"\d+-\d+") if rollout.split == "train" else ("e", r"(?:sampled|greedy)-\d+")
    name = re.escape(f"{rollout.run_id}-{letter}{rollout.step}")
    found = re.fullmatch(rf"{name}(?:r(\d+))?-({place})", rollout.id)
    return None if found is None else (found[2], int(found[1] or 0))


def is_planned(rollout: Rollout) -> bool:
    """Whether the trainer of its run asked for it."""
    return find_place(rollout) is not None


def last_planned(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """In each place of a step the rollout that was planned last. Those before it were withdrawn, or failed
    with all others of the step. What the trainer did not ask for is left out."""
    last: dict[str, tuple[int, Rollout]] = {}
    for rollout in rollouts:
        if (found := find_place(rollout)) is not None:
            place, retry = found
            if place not in last or retry > last[place][0]:
                last[place] = retry, rollout
    return [rollout for _, rollout in last.values()]
