"""Learning from demonstrations: what an update is made from where no rollouts are asked for."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from lightning_core.algorithms.base import Teaching
from lightning_core.backends.base import Backend
from lightning_core.errors import GatewayError, TaskError, UnsupportedError
from lightning_core.sequences import as_ids, as_logprobs
from lightning_core.tracing.scope import matches
from lightning_core.types import UNNAMED, Demonstration, Trajectory, Transition


def encode_all(
    teaching: Teaching, backend: Backend, agents: tuple[str, ...] | None
) -> tuple[Trajectory, ...]:
    """Each demonstration as a trajectory of one transition, as if the policy had made the call.

    Raises TaskError, with its place, for one of an agent that is not trained, or that the model's chat
    template can't say.
    """
    return tuple(_encode(i, row, backend, agents) for i, row in enumerate(teaching.demonstrations))


def _encode(index: int, row: Demonstration, backend: Backend, agents: tuple[str, ...] | None) -> Trajectory:
    if row.agent is not None and agents is not None and not matches(row.agent, agents):
        raise TaskError(
            f"demonstration {index} is of agent {row.agent!r}, which agents={list(agents)!r} does not train; "
            "leave it out, or train that agent too"
        )
    try:
        prompt, reply = backend.encode(row)
    except (GatewayError, UnsupportedError) as problem:
        raise TaskError(f"demonstration {index} can't be used: {problem}") from problem
    name = f"demonstration-{index}"
    transition = Transition(
        rollout_id=name,
        call_id=name,
        choice=0,
        agent=row.agent or UNNAMED,
        trained=True,
        prompt_ids=as_ids(prompt),
        completion_ids=as_ids(reply),
        logprobs=as_logprobs([math.nan] * len(reply)),
        policy_version=None,
    )
    return Trajectory(name, group_id=name, task_id=name, reward=math.nan, transitions=(transition,))


def draw(taught: Sequence[Trajectory], step: int, count: int, seed: int) -> list[Trajectory]:
    """`count` of them: the next ones of an endless stream of shuffled passes; none twice in one update."""
    stream = _stream(len(taught), step * count, seed)
    chosen = dict.fromkeys(next(stream) for _ in range(count))
    return [taught[index] for index in chosen]


def _stream(size: int, start: int, seed: int) -> Iterator[int]:
    epoch, place = divmod(start, size)
    while True:
        order = list(range(size))
        random.Random(f"demonstrations-{seed}-{epoch}").shuffle(order)
        yield from order[place:]
        epoch, place = epoch + 1, 0
