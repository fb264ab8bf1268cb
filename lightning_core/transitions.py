"""A rollout's records as a trajectory: what credit compares, and what is trained on.

The trainer makes its batches so, and whoever explains an update makes them again, from the same records.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

from lightning_core.errors import TokenIdsError
from lightning_core.linking import final_rewards, in_order, link_rewards
from lightning_core.sequences import as_ids, as_logprobs
from lightning_core.transcript import observation
from lightning_core.types import Call, Reward, Rollout, Status, Trajectory, Transition

log = logging.getLogger(__name__)


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
            trained=call.trained,
            prompt_ids=prompt,
            completion_ids=as_ids(choice.completion_ids),
            logprobs=as_logprobs(choice.logprobs),
            policy_version=call.policy_version,
            temperature=call.temperature,
            grammar=call.grammar,
            observation=shown,
            reward=reward,
            started_at=call.started_at,
            ended_at=call.ended_at,
        )
