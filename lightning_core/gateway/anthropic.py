"""Anthropic Messages: `POST /v1/messages`.

`disable_parallel_tool_use` is accepted although nothing enforces it. A conversation that ends with the
assistant asks for its reply to be continued, which a chat template can't express: it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from lightning_core.gateway.access import Caller
from lightning_core.gateway.anthropic_messages import read_system, read_tool_choice, read_turns, told_tools
from lightning_core.gateway.anthropic_replies import AnthropicReply, error_body
from lightning_core.gateway.fields import (
    Fields,
    flag,
    integer,
    mapping,
    stop_texts,
    temperature_and_top_p,
    text,
)
from lightning_core.gateway.messages import read_tools
from lightning_core.gateway.recording import Recording
from lightning_core.gateway.refusals import Refusal, missing
from lightning_core.gateway.upstream import ChatRequest

_FIELDS: Final = Fields(
    served=frozenset(
        (
            *("messages", "model", "max_tokens", "system", "tools", "tool_choice", "temperature", "top_p"),
            *("stop_sequences", "stream", "chat_template_kwargs"),
        )
    ),
    harmless=frozenset(("metadata", "service_tier", "cache_control")),
    neutral=MappingProxyType(
        {
            "thinking": ({"type": "disabled"},),
            "output_config": ({},),
            "output_format": (),
            "top_k": (-1, 0),
            "speed": ("standard",),
            "mcp_servers": ([],),
            "betas": ([],),
            "container": (),
            "context_management": (),
            "diagnostics": (),
            "inference_geo": (),
        }
    ),
)
_HOTTEST: Final = 1.0
"""The highest temperature of this API."""


@dataclass(frozen=True, slots=True)
class AnthropicBody:
    """A request for a message."""

    raw: dict[str, Any]
    """As it was sent."""
    model: str
    request: ChatRequest
    stream: bool


class Anthropic:
    """The dialect."""

    name = "anthropic"
    prompt = "messages"

    def __init__(self, default_model: str) -> None:
        self._default_model = default_model

    def read(self, content: bytes, caller: Caller) -> AnthropicBody:
        body = _FIELDS.read(content)
        longest = integer(body, "max_tokens", 1)
        if longest is None:
            raise missing("max_tokens")
        temperature, top_p = temperature_and_top_p(body, caller.sampling, _HOTTEST)
        request = ChatRequest(
            messages=[*read_system(body.get("system")), *read_turns(body.get("messages"))],
            tools=read_tools(told_tools(body.get("tools")), read_tool_choice(body)),
            max_tokens=longest,
            temperature=temperature,
            top_p=top_p,
            stop=stop_texts(body, "stop_sequences"),
            extra=mapping(body, "chat_template_kwargs") or {},
        )
        return AnthropicBody(
            raw=body, model=text(body, "model") or "", request=request, stream=flag(body, "stream")
        )

    def reply(self, recording: Recording, body: AnthropicBody) -> AnthropicReply:
        return AnthropicReply(recording, body.model or self._default_model)

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return error_body(refusal)
