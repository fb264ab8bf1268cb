"""Records of small steps, as a store gives them back."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.insight.why import Step
from lightning_core.records.types import Call, Choice, Reward, Rollout, Status, Task, ToolEvent


def rollout(number: int, reward: float | None, **changes: object) -> Rollout:
    """Finished, of the only task, at step 0."""
    made = Rollout(
        id=f"r{number}",
        run_id="run",
        task=Task(id="t", input={"question": "How many boats?"}),
        group_id="g",
        step=0,
        status=Status.SUCCEEDED,
        attempts=1,
        reward=reward,
        created_at=100.0,
        finished_at=110.0 + number,
    )
    return made.model_copy(update=changes)


def call(of: int, place: int, agent: str = "writer", **changes: object) -> Call:
    """Calls of one place are shown the same."""
    made = Call(
        id=f"c{place}",
        rollout_id=f"r{of}",
        attempt=1,
        agent=agent,
        trained=True,
        request={"messages": [{"role": "user", "content": f"question {place}"}]},
        prompt_ids=[1, 2, 10 + place],
        choices=[Choice(completion_ids=[20 + of, 3], logprobs=[-0.5, -0.25], message={"content": "boats"})],
        policy_version=0,
        started_at=100.0 + 2 * place,
        ended_at=101.0 + 2 * place,
    )
    return made.model_copy(update=changes)


def tool(of: int, place: int, **changes: object) -> ToolEvent:
    """Asked for by the call of that place."""
    made = ToolEvent(
        id=f"t{place}",
        rollout_id=f"r{of}",
        attempt=1,
        agent="writer",
        name="search",
        arguments="{}",
        call_id=f"c{place}",
        started_at=101.0 + 2 * place,
        ended_at=101.5 + 2 * place,
    )
    return made.model_copy(update=changes)


def reward(of: int, value: float, place: int, source: str = "air:tool_raised") -> Reward:
    """An intermediate one, about the call of that place."""
    return Reward(
        rollout_id=f"r{of}",
        attempt=1,
        value=value,
        kind="intermediate",
        agent="writer",
        call_id=f"c{place}",
        source=source,
        created_at=105.0,
    )


def step(
    rewards: Sequence[float], calls: int = 1, given: Sequence[Reward] = (), tools: Sequence[ToolEvent] = ()
) -> Step:
    """One group: a rollout for each final reward, each with so many calls."""
    rollouts = [rollout(number, one) for number, one in enumerate(rewards)]
    return Step(
        tuple(rollouts),
        {one.id: [call(number, place) for place in range(calls)] for number, one in enumerate(rollouts)},
        {one.id: [each for each in given if each.rollout_id == one.id] for one in rollouts},
        {one.id: [each for each in tools if each.rollout_id == one.id] for one in rollouts},
    )
