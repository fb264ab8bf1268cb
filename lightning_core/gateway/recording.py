"""What one call read and wrote, gathered while it runs, and the `Call` that is stored of it.

The ids and log-probabilities are those of the engine's deltas, never computed again from text.
"""

from __future__ import annotations

import time

from lightning_core.dialects.base import ChoiceSoFar, Dialect, Request, Sampled
from lightning_core.gateway.access import Caller
from lightning_core.types import Call, CallStatus, Choice


class Recording:
    """One call so far."""

    def __init__(self, caller: Caller, request: Request, dialect: Dialect) -> None:
        self.caller = caller
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
            status=status,
            error=error,
            started_at=self.sampled.started_at,
            ended_at=time.time(),
            response_id=self._dialect.id_prefix + self.caller.call_id,
            grammar=self.sampled.grammar,
        )


def _choice(index: int, choice: ChoiceSoFar) -> Choice:
    measured = len(choice.logprobs) == len(choice.token_ids)
    return Choice.model_construct(
        index=index,
        completion_ids=choice.token_ids or None,
        logprobs=(choice.logprobs or None) if measured else None,
        finish_reason=choice.finish_reason,
        message=choice.message(),
    )
