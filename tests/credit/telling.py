"""Rollouts told in a few words: which call goes on from which, who made it, what it earned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_core.records.types import Trajectory, Transition


@dataclass(frozen=True)
class Said:
    """One call; its id is its place among those told."""

    agent: str = "w"
    after: int | None = None
    """The place of the call whose conversation it goes on with; None begins another."""
    choice: int = 0
    """Which choice of that call it goes on with."""
    reward: float = 0.0
    trained: bool = True
    shown: str = ""
    """Its observation."""
    reply: int | None = None
    """Equal numbers are equal replies; by default no two calls give the same."""
    value: float | None = None
    span: tuple[float, float] | None = None
    choices: int = 1


def tell(
    number: int, reward: float, *calls: Said, order: Sequence[int] | None = None, **changes: object
) -> Trajectory:
    """Rollout `r<number>` with the calls given, `c0` first; `order` is that in which they began."""
    told: list[list[Transition]] = []
    for place, said in enumerate(calls):
        begun = [1000 + place] if said.after is None else _story(told[said.after][said.choice])
        reply = 2000 + place if said.reply is None else said.reply
        start, end = said.span or (None, None)
        told.append(
            [
                Transition(
                    rollout_id=f"r{number}",
                    call_id=f"c{place}",
                    choice=choice,
                    agent=said.agent,
                    trained=said.trained,
                    prompt_ids=[*begun, 3000 + place],
                    completion_ids=[reply, 4000 + choice],
                    logprobs=[-0.1, -0.2],
                    policy_version=0,
                    observation=said.shown,
                    reward=said.reward,
                    started_at=start,
                    ended_at=end,
                    value=said.value,
                )
                for choice in range(said.choices)
            ]
        )
    chosen = range(len(told)) if order is None else order
    trajectory = Trajectory(
        rollout_id=f"r{number}",
        group_id="g",
        task_id="t",
        reward=reward,
        transitions=tuple(t for place in chosen for t in told[place]),
        intermediate=sum(said.reward for said in calls),
    )
    return replace(trajectory, **changes)  # type: ignore[arg-type]


def _story(transition: Transition) -> list[int]:
    return [*transition.prompt_ids, *transition.completion_ids]
