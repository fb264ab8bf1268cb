"""The policy as its own teacher: how likely its replies are after a longer prompt.

The teacher's prompts are arranged as a tree and passed like those of the policy, without gradient, once in an
update and before its first step. Where calls are shown the same text their prompts are computed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from lightning_core.algorithms.base import Algorithm
from lightning_core.records.types import Key, Trajectory

Score = Callable[[tuple[Trajectory, ...]], tuple[dict[Key, list[float]], int]]
"""Log-probabilities of the sampled tokens by transition, and the tokens that went through the network."""


def add_teachers(
    trajectories: tuple[Trajectory, ...], algorithm: Algorithm, score: Score
) -> tuple[tuple[Trajectory, ...], dict[str, float]]:
    """The trajectories with the teachers' log-probabilities, and metrics; as they are without teachers.

    `teacher_divergence` is the mean over their tokens of the log-probability as recorded less the teacher's,
    in nats: the divergence from the teacher of the weights that sampled, estimated.
    """
    if not algorithm.needs_teacher:
        return trajectories, {}
    began = time.monotonic()
    found, passed = score(tuple(map(_as_shown, trajectories)))
    taught = tuple(
        replace(
            each,
            transitions=tuple(replace(t, teacher_logprobs=found.get(t.key)) for t in each.transitions),
        )
        for each in trajectories
    )
    gaps = [
        recorded - teacher
        for each in taught
        for t in each.transitions
        if t.teacher_logprobs is not None
        for recorded, teacher in zip(t.logprobs, t.teacher_logprobs, strict=True)
    ]
    metrics = {"teacher_tokens": float(passed), "teacher_seconds": time.monotonic() - began}
    return taught, metrics | ({"teacher_divergence": sum(gaps) / len(gaps)} if gaps else {})


def _as_shown(trajectory: Trajectory) -> Trajectory:
    """The transitions that have a teacher, with its prompt in place of their own."""
    shown = tuple(
        replace(t, prompt_ids=t.teacher_ids) for t in trajectory.transitions if t.teacher_ids is not None
    )
    return replace(trajectory, transitions=shown)
