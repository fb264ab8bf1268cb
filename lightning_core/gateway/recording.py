"""What one call read and wrote, gathered while it runs, and the `Call` that is stored of it.

The ids and log-probabilities are those of the engine's deltas, never computed again from text.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from lightning_core.errors import GatewayError
from lightning_core.gateway.access import Caller
from lightning_core.gateway.upstream import ChatRequest, Delta
from lightning_core.types import Call, CallStatus, Choice


class Body(Protocol):
    """What a request says in any dialect."""

    @property
    def raw(self) -> dict[str, Any]:
        """As it was sent."""

    @property
    def model(self) -> str: ...
    @property
    def request(self) -> ChatRequest:
        """What the engine is asked."""

    @property
    def stream(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class TextBody:
    """A chat or text completion request: what the engine is asked, and what form the reply has."""

    raw: dict[str, Any]
    """As it was sent."""
    model: str
    request: ChatRequest
    stream: bool
    include_usage: bool
    logprobs: bool
    return_token_ids: bool


@dataclass(slots=True)
class ChoiceSoFar:
    """One choice while it is being sampled."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    parts: list[str | dict[str, Any]] = field(default_factory=list)
    """Pieces of text and tool calls, in the order written."""
    finish_reason: str | None = None
    stop: str | None = None
    """The stop text that ended it."""

    def add(self, delta: Delta) -> None:
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        if delta.text:
            self.parts.append(delta.text)
        if delta.tool_calls:
            self.parts += delta.tool_calls
        if delta.top_logprobs:
            self.top_logprobs += delta.top_logprobs
        if delta.finish_reason:
            self.finish_reason = delta.finish_reason
            self.stop = delta.stop

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """All of its tool calls."""
        return [part for part in self.parts if not isinstance(part, str)]

    def blocks(self) -> list[str | dict[str, Any]]:
        """Its texts, each whole, and its tool calls, in the order written."""
        blocks: list[str | dict[str, Any]] = []
        for part in self.parts:
            if isinstance(part, str) and blocks and isinstance(blocks[-1], str):
                blocks[-1] += part
            else:
                blocks.append(part)
        return blocks

    def message(self) -> dict[str, Any]:
        """The assistant message the app is given."""
        text, calls = self.text, self.tool_calls
        if calls:
            return {"role": "assistant", "content": text or None, "tool_calls": calls}
        return {"role": "assistant", "content": text}


def by_choice(deltas: Iterable[Delta]) -> dict[int, ChoiceSoFar]:
    """What the deltas add to each choice."""
    fresh: dict[int, ChoiceSoFar] = {}
    for delta in deltas:
        fresh.setdefault(delta.choice, ChoiceSoFar()).add(delta)
    return fresh


_REPLY_ID_PREFIX: Final = MappingProxyType(
    {"chat": "chatcmpl-", "completions": "cmpl-", "responses": "resp_", "anthropic": "msg_"}
)


class Recording:
    """One call so far."""

    def __init__(self, caller: Caller, body: Body, dialect: str) -> None:
        self.caller = caller
        self.body = body
        self.dialect = dialect
        self.started_at = time.time()
        self.prompt_ids: list[int] | None = None
        self.policy_version: int | None = None
        self.choices = [ChoiceSoFar() for _ in range(body.request.n)]

    def add(self, delta: Delta) -> None:
        """Take in a piece of a choice."""
        self.choices[delta.choice].add(delta)

    @property
    def reply_id(self) -> str:
        """The id of the reply, as the app is given it."""
        return _REPLY_ID_PREFIX[self.dialect] + self.caller.call_id

    @property
    def tokens_read(self) -> int:
        return len(self.prompt_ids or ())

    @property
    def tokens_written(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices)

    def check_finished(self) -> None:
        """Raise GatewayError if the engine stopped in the middle of a choice."""
        for index, choice in enumerate(self.choices):
            if choice.finish_reason is None:
                raise GatewayError(f"its reply ended before choice {index} had a finish reason")

    def call(self, status: CallStatus, error: str | None) -> Call:
        """The record. Built without validation: each value was checked on its way in, and checking
        every token id again would cost more than the rest of the record."""
        return Call.model_construct(
            id=self.caller.call_id,
            rollout_id=self.caller.rollout_id,
            attempt=self.caller.attempt,
            agent=self.caller.agent,
            trained=self.caller.trained,
            dialect=self.dialect,
            model=self.body.model,
            request=self.body.raw,
            prompt_ids=self.prompt_ids,
            choices=[_choice(index, choice) for index, choice in enumerate(self.choices)],
            temperature=self.body.request.temperature,
            policy_version=self.policy_version,
            status=status,
            error=error,
            started_at=self.started_at,
            ended_at=time.time(),
            response_id=self.reply_id,
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
