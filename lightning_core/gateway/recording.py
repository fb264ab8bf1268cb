"""The tokens one call read and wrote, gathered while it runs, and the `Call` that is stored of it.

The ids and log-probabilities are those of the engine's deltas, never computed again from text.
"""

from __future__ import annotations

import time
from typing import Final

from lightning_core.dialects.base import ChoiceSoFar, Dialect, Request, Sampled
from lightning_core.dialects.strict import read_object
from lightning_core.errors import ApiError
from lightning_core.gateway.access import Caller
from lightning_core.records.sequences import write_masks
from lightning_core.records.types import Call, CallStatus, Choice

_LONG_REFUSED: Final = 2**20
"""Bytes of a refused request's body up to which it is kept."""


class Recording:
    """One call so far."""

    def __init__(self, caller: Caller, request: Request, dialect: Dialect, policy: str | None = None) -> None:
        """`policy`: the named one that answers."""
        self.caller, self.policy = caller, policy
        self.request = request
        self.sampled = Sampled(caller.call_id, [ChoiceSoFar() for _ in range(request.chat.n)])
        self._dialect = dialect

    def call(self, status: CallStatus, error: str | None) -> Call:
        """The record. Built without validation: each value was checked on its way in, and checking
        every token id again would cost more than the rest of the record."""
        return Call.model_construct(
            id=self.caller.call_id,
            rollout_id=self.caller.rollout_id,
            attempt=self.caller.attempt,
            agent=self.caller.agent,
            trained=self.caller.trained,
            dialect=self._dialect.name,
            model=self.request.model,
            request=self.request.raw,
            prompt_ids=self.sampled.prompt_ids,
            choices=[_choice(index, choice) for index, choice in enumerate(self.sampled.choices)],
            temperature=self.request.chat.temperature,
            policy_version=self.sampled.policy_version,
            policy=self.policy,
            status=status,
            error=error,
            started_at=self.sampled.started_at,
            ended_at=time.time(),
            response_id=self._dialect.id_prefix + self.caller.call_id,
            grammar=self.sampled.grammar,
        )


def refused_call(caller: Caller, dialect: Dialect, content: bytes, refusal: ApiError) -> Call:
    """The record of a request that can't be honoured. Of a long one, or of no JSON object, the body is left
    out."""
    now = time.time()
    try:
        request = read_object(content) if len(content) <= _LONG_REFUSED else {}
    except ApiError:
        request = {}
    return Call.model_construct(
        id=caller.call_id,
        rollout_id=caller.rollout_id,
        attempt=caller.attempt,
        agent=caller.agent,
        trained=caller.trained,
        dialect=dialect.name,
        model=str(request.get("model") or ""),
        request=request,
        choices=[],
        status="refused",
        error=str(refusal),
        started_at=now,
        ended_at=now,
    )


def _choice(index: int, choice: ChoiceSoFar) -> Choice:
    measured = len(choice.logprobs) == len(choice.token_ids)
    return Choice.model_construct(
        index=index,
        completion_ids=choice.token_ids or None,
        logprobs=(choice.logprobs or None) if measured else None,
        finish_reason=choice.finish_reason,
        message=choice.message(),
        kept=write_masks(choice.kept) if choice.kept else None,
        left_out=choice.left_out,
        as_text=choice.as_text,
    )
