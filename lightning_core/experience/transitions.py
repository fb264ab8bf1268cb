"""Rollouts' records as trajectories: what credit compares, and what is trained on.

The trainer makes its batches so, and whoever explains an update makes them again, from the same records.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from lightning_core.dialects.transcript import observation
from lightning_core.errors import TokenIdsError
from lightning_core.experience.returns import (
    comparable,
    counted_failures,
    counted_rewards,
    final_rewards,
    with_lowest,
)
from lightning_core.records.linking import answering, in_order, link_rewards
from lightning_core.records.sequences import as_ids, as_logprobs
from lightning_core.records.types import Call, Reward, Rollout, Trajectory, Transition

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
    counted = comparable(rollouts, rewards)
    made = [to_trajectory(one, answering(calls[one.id]), rewards[one.id]) for one in counted]
    return with_lowest(made, counted_failures(counted)) if lowest else made


def to_trajectory(rollout: Rollout, calls: Sequence[Call], rewards: Sequence[Reward]) -> Trajectory:
    """The rollout's completed calls as transitions, with the intermediate rewards addressed to them.

    Of several final rewards of the rollout, or of one agent, the last one counts. A reward about a call that
    was not recorded counts for the rollout alone. A call that was only seen, answered elsewhere than by the
    gateway, is no transition. A trained call without token ids raises TokenIdsError: what was sampled is then
    unknown.
    """
    if rollout.reward is None:
        raise ValueError(f"rollout {rollout.id!r} has no reward yet")
    intermediate: defaultdict[str, float] = defaultdict(float)
    counted = link_rewards(calls, in_order(counted_rewards(rollout, rewards)))
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
        for transition in _transitions(rollout, call, intermediate[call.id], _feedback(call, counted))
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


def _feedback(call: Call, rewards: Sequence[Reward]) -> str:
    """The reasons of the rewards about a call, each once; else the last one of a final reward, that of its
    agent first."""
    about = [each.reason for each in rewards if each.reason and each.call_id == call.id]
    if about:
        return "\n".join(dict.fromkeys(about))
    final = {each.agent: each.reason for each in rewards if each.reason and each.kind == "final"}
    return final.get(call.agent) or final.get(None) or ""


def _transitions(rollout: Rollout, call: Call, reward: float, feedback: str) -> Iterable[Transition]:
    shown = observation(call)
    prompt = None if call.prompt_ids is None else call.packed_prompt or as_ids(call.prompt_ids)
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
            policy=call.policy,
            temperature=call.temperature,
            grammar=choice.kept or call.grammar,
            observation=shown,
            reward=reward,
            feedback=feedback,
            started_at=call.started_at,
            ended_at=call.ended_at,
        )


# which rollouts a step is made of
def is_planned(rollout: Rollout) -> bool:
    """Whether the trainer of its run asked for it."""
    return rollout.place is not None


def last_planned(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """In each place of a step the rollout that was planned last. Those before it were withdrawn, or failed
    with all others of the step. What the trainer did not ask for is left out."""
    last: dict[str, Rollout] = {}
    for rollout in rollouts:
        place = rollout.place
        if place is not None and (place not in last or rollout.retry > last[place].retry):
            last[place] = rollout
    return list(last.values())
