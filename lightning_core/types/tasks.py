"""What is given to the app or to the policy: tasks, and demonstrations."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from lightning_core.types.record import Record

Split = Literal["train", "validation"]


class Task(Record):
    """One problem to solve."""

    id: str = ""
    """Stable identity; by default a hash of `input`, so the same problem is the same task."""
    input: dict[str, JsonValue]
    """What the app is given. Must be JSON, so that a worker in another process can have it."""
    split: Split = "train"

    @model_validator(mode="before")
    @classmethod
    def _default_id(cls, values: Any) -> Any:
        if isinstance(values, dict) and not values.get("id"):
            text = json.dumps(values.get("input"), sort_keys=True, default=repr)
            return {**values, "id": hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}
        return values


class Demonstration(Record):
    """A request, and the reply that the policy is to give to it."""

    messages: list[dict[str, JsonValue]] = Field(min_length=1)
    """The conversation so far, as in Chat Completions."""
    reply: str | dict[str, JsonValue]
    """The text, or an assistant message with `content` and `tool_calls`."""
    tools: list[dict[str, JsonValue]] | None = None
    """The tools that the request offers."""
    agent: str | None = None
    """Whose reply it is. None: anybody's, as all trained agents share one policy."""
    template: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments of the chat template (`chat_template_kwargs`)."""

    @property
    def message(self) -> dict[str, JsonValue]:
        """The reply as an assistant message."""
        said = {"content": self.reply} if isinstance(self.reply, str) else self.reply
        return {**said, "role": "assistant"}

    @model_validator(mode="after")
    def _check(self) -> Demonstration:
        for place, message in enumerate(self.messages):
            if not isinstance(message.get("role"), str):
                raise ValueError(f"messages[{place}] has no role")
        if isinstance(self.reply, dict) and self.reply.get("role", "assistant") != "assistant":
            raise ValueError(f"the reply has the role {self.reply['role']!r}; only an assistant replies")
        if not self.message.get("content") and not self.message.get("tool_calls"):
            raise ValueError("the reply says nothing: give it text or tool calls")
        return self
