"""Responses: `POST /v1/responses`.

A response is one sampled turn: the app runs its own tools, and hosted ones are refused by name. As in
Chat Completions, `parallel_tool_calls` and a tool's `strict` are accepted although nothing enforces them.
`previous_response_id` goes on from a response that this gateway gave to the same attempt and still
remembers (see `conversations`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from lightning_core.gateway.access import Caller
from lightning_core.gateway.conversations import Conversations, Owner, Turn, messages_of
from lightning_core.gateway.fields import Fields, flag, integer, mapping, short, temperature_and_top_p, text
from lightning_core.gateway.recording import Recording
from lightning_core.gateway.refusals import Refusal, invalid, unsupported
from lightning_core.gateway.response_items import read_functions, read_items, read_text_format
from lightning_core.gateway.response_replies import ResponseReply
from lightning_core.gateway.upstream import ChatRequest

_FIELDS: Final = Fields(
    served=frozenset(
        (
            *("input", "model", "instructions", "tools", "tool_choice", "max_output_tokens", "temperature"),
            *("top_p", "text", "include", "store", "stream", "stream_options", "previous_response_id"),
            *("chat_template_kwargs", "metadata"),
        )
    ),
    harmless=frozenset(
        (
            *("user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
            *("prompt_cache_options", "parallel_tool_calls", "max_tool_calls"),
        )
    ),
    neutral=MappingProxyType(
        {
            "background": (False,),
            "truncation": ("disabled",),
            "top_logprobs": (0,),
            "reasoning": ({}, {"effort": None}, {"effort": None, "summary": None}),
            "context_management": ([],),
            "conversation": (),
            "moderation": (),
            "prompt": (),
        }
    ),
)
_OF_NOTHING: Final = ("reasoning.encrypted_content",)
"""What may be asked to be included since no reply here ever has it: SDKs ask unasked."""


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """A request for a response, and what of it the next one may go on from."""

    raw: dict[str, Any]
    """As it was sent."""
    model: str
    request: ChatRequest
    stream: bool
    store: bool
    before: Turn | None
    """The turn that it goes on from."""
    added: tuple[dict[str, Any], ...]
    """The messages of its own input. Its instructions are not among them: they hold for one response."""


class Responses:
    """The dialect."""

    name = "responses"
    prompt = "input"

    def __init__(self, default_model: str) -> None:
        self._default_model = default_model
        self._conversations = Conversations()

    def read(self, content: bytes, caller: Caller) -> ResponseBody:
        body = _FIELDS.read(content)
        _check_include(body)
        read_text_format(body)
        mapping(body, "stream_options")
        mapping(body, "metadata")
        before = self._before(body, (caller.rollout_id, caller.attempt))
        added = read_items(body.get("input"))
        temperature, top_p = temperature_and_top_p(body, caller.sampling)
        request = ChatRequest(
            messages=[*_instructions(body), *messages_of(before), *added],
            tools=read_functions(body.get("tools"), body.get("tool_choice")),
            max_tokens=integer(body, "max_output_tokens", 1),
            temperature=temperature,
            top_p=top_p,
            extra=mapping(body, "chat_template_kwargs") or {},
        )
        return ResponseBody(
            raw=body,
            model=text(body, "model") or "",
            request=request,
            stream=flag(body, "stream"),
            store=body.get("store") is None or flag(body, "store"),
            before=before,
            added=tuple(added),
        )

    def reply(self, recording: Recording, body: ResponseBody) -> ResponseReply:
        def remember(response_id: str) -> None:
            caller = recording.caller
            turn = Turn(body.before, (*body.added, recording.choices[0].message()))
            self._conversations.keep((caller.rollout_id, caller.attempt), response_id, turn)

        model = body.model or self._default_model
        return ResponseReply(recording, model, remember if body.store else None)

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return refusal.body()

    def _before(self, body: dict[str, Any], owner: Owner) -> Turn | None:
        response_id = text(body, "previous_response_id")
        return None if response_id is None else self._conversations.get(owner, response_id)


def _instructions(body: dict[str, Any]) -> list[dict[str, Any]]:
    instructions = text(body, "instructions")
    return [{"role": "system", "content": instructions}] if instructions else []


def _check_include(body: dict[str, Any]) -> None:
    include = body.get("include") or []
    if not isinstance(include, list):
        raise invalid("include", "include must be a list")
    for index, name in enumerate(include):
        if name not in _OF_NOTHING:
            raise unsupported(
                f"include[{index}]", f"include[{index}] = {short(name)} is not supported here; leave it out"
            )
