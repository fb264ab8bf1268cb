"""The prompts of teachers: a call's own messages, and a text that the algorithm has its teacher shown.

The text ends the last message if that is the user's, else it is a message of the user. A prompt is made only
where the call's own messages, rendered again, are the recorded prompt token by token: so a teacher differs
from the policy in that text alone. What is rendered otherwise, such as a request for an effort that the
template reads, has no teacher and is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Backend
from lightning_core.dialects import get_dialect, transcript
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import ApiError, ContextLengthError, UnsupportedError
from lightning_core.records.linking import answering
from lightning_core.records.sequences import as_ids
from lightning_core.records.types import Call, Key, Trajectory, Transition
from lightning_core.trainer.batch import StepBatch

logger = logging.getLogger(__name__)

TOO_LONG = "too_long"
OTHERWISE = "otherwise"


Backends = Mapping[str | None, Backend]
"""The backend of each named policy; None: the run's own."""


async def teach(batch: StepBatch, algorithm: Algorithm, backends: Backends) -> StepBatch:
    """The batch with teachers' prompts on its transitions; as it is if the algorithm has no teachers.

    Its metrics are the share of trained calls that have a teacher, and how many prompts were left out: as
    they were too long for the context, or as the call's own prompt is rendered otherwise than it was.
    """
    if not algorithm.needs_teacher:
        return batch
    return await asyncio.to_thread(_teach, batch, algorithm, backends)


def _teach(batch: StepBatch, algorithm: Algorithm, backends: Backends) -> StepBatch:
    calls = {(rollout, call.id): call for rollout, part in batch.calls.items() for call in answering(part)}
    trained = [t for each in batch.trajectories for t in each.transitions if t.trained]
    replies = {t.key: _said(calls[t.rollout_id, t.call_id], t.choice) for t in trained}
    hints = algorithm.hints(batch.trajectories, replies)
    left_out: Counter[str] = Counter()
    prompts: dict[Key, Sequence[int]] = {}
    for t in trained:
        if t.key in hints:
            try:
                call = calls[t.rollout_id, t.call_id]
                prompts[t.key] = _encode(call, t, hints[t.key], backends[t.policy])
            except ContextLengthError:
                left_out[TOO_LONG] += 1
            except (ApiError, UnsupportedError) as problem:
                logger.debug("call %s of rollout %s has no teacher: %s", t.call_id, t.rollout_id, problem)
                left_out[OTHERWISE] += 1
    return replace(
        batch,
        trajectories=[_with_prompts(each, prompts) for each in batch.trajectories],
        taught={
            "teacher_share": len(prompts) / max(len(trained), 1),
            **{f"teacher_{why}": float(left_out[why]) for why in (TOO_LONG, OTHERWISE)},
        },
    )


def _with_prompts(trajectory: Trajectory, prompts: Mapping[Key, Sequence[int]]) -> Trajectory:
    transitions = tuple(replace(t, teacher_ids=prompts.get(t.key)) for t in trajectory.transitions)
    return replace(trajectory, transitions=transitions)


def _said(call: Call, choice: int) -> str:
    """The text of a reply; a tool call reads like `name(arguments)`."""
    replies = dict(zip((each.index for each in call.choices), transcript.replies(call), strict=True))
    return "\n".join(filter(None, map(transcript.said, replies[choice]["parts"]))).strip()


def _encode(call: Call, transition: Transition, hint: str, backend: Backend) -> Sequence[int]:
    """Token ids of the teacher's prompt. Raises ContextLengthError, and ApiError or UnsupportedError for a
    call whose own prompt can't be made again."""
    dialect = get_dialect(call.dialect)
    if dialect.continues(call.request):
        raise UnsupportedError("its reply goes on from the assistant's own words")
    messages, tools = dialect.conversation(call.request)
    arguments: Any = call.request.get("chat_template_kwargs")
    request = ChatRequest(
        messages=messages,
        tools=tools,
        max_tokens=len(transition.completion_ids),
        extra=arguments or {},
        constraint=dialect.constraint(call.request),
    )
    if backend.encode_prompt(request) != list(transition.prompt_ids):
        raise UnsupportedError("its prompt is rendered otherwise than it was recorded")
    return as_ids(backend.encode_prompt(replace(request, messages=add_hint(messages, hint))))


def add_hint(messages: Sequence[dict[str, Any]], hint: str) -> list[dict[str, Any]]:
    """The messages with a text after them."""
    *before, last = messages
    content = last.get("content")
    if last.get("role") != "user" or not content:
        return [*messages, {"role": "user", "content": hint}]
    if isinstance(content, str):
        return [*before, {**last, "content": f"{content}\n\n{hint}"}]
    return [*before, {**last, "content": [*content, {"type": "text", "text": f"\n\n{hint}"}]}]
