"""Chat Completions: `POST /v1/chat/completions`.

A reply that calls the function named in `tool_choice` ends with "stop", any other that calls one with
"tool_calls": OpenAI's servers do so, and vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

import orjson

from lightning_core.dialects.base import (
    ChoiceSoFar,
    Conversation,
    Dialect,
    Owner,
    Request,
    Sampled,
    by_choice,
)
from lightning_core.dialects.completions import MOST_CHOICES, fingerprint, token_usage, wants_usage
from lightning_core.dialects.constraints import (
    FROM_VLLM_STRUCTURED,
    read_constraint,
    read_format,
    read_tool_choice,
    read_tools,
)
from lightning_core.dialects.lenient import (
    Json,
    assistant,
    choice,
    merge_choices,
    tool_call,
)
from lightning_core.dialects.options import (
    CACHING,
    EFFORT,
    FROM_SERVERS,
    FROM_VLLM,
    LABELS,
    ON_OR_OFF,
    RESHAPING,
    STREAMING,
    THINKING_BUDGET,
    VERBOSITY,
    Options,
    honoured,
    ignored,
    refused,
)
from lightning_core.dialects.results import in_call_order
from lightning_core.dialects.strict import (
    MOST_TOP_LOGPROBS,
    check_continued,
    flag,
    integer,
    invalid,
    mapping,
    read_content,
    seed,
    shaping,
    short,
    stop_texts,
    temperature_and_top_p,
    text,
    unsupported,
)
from lightning_core.dialects.tools import chat_call, chat_functions, custom_names, function_call
from lightning_core.dialects.upstream import ChatRequest, Constraint, Delta
from lightning_core.dialects.writing import ServedModel, event, to_json
from lightning_core.errors import ApiError
from lightning_core.records.types import Choice, Sampling

OPTIONS: Final = Options(
    honoured(
        *("messages", "model", "tools", "tool_choice", "n", "max_tokens", "max_completion_tokens"),
        *("temperature", "top_p", "stop", "seed", "logprobs", "top_logprobs", "response_format"),
        "parallel_tool_calls",
    ),
    FROM_VLLM_STRUCTURED,
    STREAMING,
    honoured(
        *("continue_final_message", "add_generation_prompt"),
        note="as vLLM has it; so is an assistant's message with `prefix` at the end",
    ),
    honoured("stream_usage", note="as `stream_options.include_usage`"),
    honoured("chat_template_kwargs", "return_token_ids", note=FROM_VLLM),
    FROM_SERVERS,
    honoured("reasoning_effort", "reasoning", "reasoning.effort", note=EFFORT),
    honoured(*("thinking", "thinking.type", "enable_thinking", "reasoning.enabled"), note=ON_OR_OFF),
    honoured("include_reasoning", "reasoning.exclude", note="whether the app gets the reasoning"),
    ignored(THINKING_BUDGET, "thinking.budget_tokens", "thinking_budget", "thinking_token_budget"),
    ignored(THINKING_BUDGET, "reasoning.max_tokens"),
    ignored("reasoning is given whole", "reasoning.summary"),
    ignored("the chat template says what it keeps of earlier reasoning", "thinking.clear_thinking"),
    ignored(VERBOSITY, "verbosity"),
    LABELS,
    CACHING,
    ignored("nothing is kept for OpenAI's own tools", "store"),
    ignored("it speeds up replies that are known beforehand", "prediction"),
    ignored("a whole reply always has its usage", "usage"),
    RESHAPING,
    refused("the model writes text alone; leave it out", "audio", modalities=(["text"],)),
    refused("it is out of date; use tools and tool_choice", "functions", "function_call"),
    refused("OpenAI's own servers do it; leave it out", "web_search_options", "moderation"),
)
_ROLES: Final = ("assistant", "developer", "system", "tool", "user")
_TEXT_PARTS: Final = MappingProxyType({"text": "text", "refusal": "refusal"})
_NOT_CARRIED: Final = ("audio", "function_call")


class Chat(Dialect):
    """The dialect."""

    name = "chat"
    sdk = "openai"
    path = "/chat/completions"
    id_prefix = "chatcmpl-"
    prompt = "messages"
    options = OPTIONS

    def read(self, content: bytes, sampling: Sampling | None, owner: Owner) -> Request:
        body = OPTIONS.read(content)
        mapping(body, "stream_options")
        flag(body, "return_token_ids")
        messages, tools = self.conversation(body)
        temperature, top_p = temperature_and_top_p(body, sampling)
        longest = integer(body, "max_completion_tokens", 1)
        chat = ChatRequest(
            messages=messages,
            tools=tools,
            n=integer(body, "n", 1, MOST_CHOICES) or 1,
            max_tokens=longest if longest is not None else integer(body, "max_tokens", 1),
            temperature=temperature,
            top_p=top_p,
            shaping=shaping(body),
            continues=check_continued(messages) if self.continues(body) else False,
            stop=stop_texts(body, "stop"),
            seed=seed(body, sampling),
            top_logprobs=_top_logprobs(body),
            extra=mapping(body, "chat_template_kwargs") or {},
            effort=_effort(body),
            constraint=self.constraint(body),
            parallel=read_tool_choice(body).parallel,
        )
        return Request(raw=body, model=text(body, "model") or "", chat=chat, stream=flag(body, "stream"))

    def reply(self, sampled: Sampled, request: Request, model: ServedModel) -> ChatReply:
        return ChatReply(sampled, request, model)

    @classmethod
    def continues(cls, request: Json) -> bool:
        if flag(request, "continue_final_message"):
            return True
        match request.get("messages"):
            case [*_, {"role": "assistant", "prefix": True}]:  # DeepSeek's and Mistral's word for it
                return True
        if request.get("add_generation_prompt") is False:
            raise unsupported(
                "add_generation_prompt",
                "add_generation_prompt = False is for continue_final_message; leave it out",
            )
        return False

    @staticmethod
    def conversation(request: Json) -> Conversation:
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages:
            raise invalid("messages", "messages must be a list with at least one message")
        checked = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
        return in_call_order(checked, "messages"), _tools(request)

    @classmethod
    def constraint(cls, request: Json) -> Constraint | None:
        choice = read_tool_choice(request)
        form = read_format(request.get("response_format"), "response_format")
        return read_constraint(request, form, choice.constraint(_tools(request)))

    @staticmethod
    def merge(events: Iterable[Json]) -> Json:
        return merge_choices(events, lambda so_far, part: _add_delta(so_far, part.get("delta") or {}))

    @staticmethod
    def choices(reply: Json) -> list[Choice]:
        return [
            choice(part.get("index") or 0, part.get("finish_reason"), _said(part.get("message") or {}))
            for part in reply.get("choices") or ()
        ]

    @staticmethod
    def tool_results(item: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool | None]]:
        if item.get("role") == "tool" and item.get("tool_call_id"):
            yield str(item["tool_call_id"]), item.get("content"), None

    @staticmethod
    def offered(tool: Mapping[str, Any]) -> tuple[Any, Any]:
        with suppress(ApiError):
            (tool,) = chat_functions([tool])
        function = tool.get("function")
        told = function if isinstance(function, dict) else tool
        return told.get("name"), told.get("parameters")


def _tools(request: Json) -> list[Json] | None:
    return read_tools(chat_functions(request.get("tools")), read_tool_choice(request))


def _message(message: Any, param: str) -> Json:
    """A message as the chat template takes it; `developer` is the `system` that open models know."""
    if not isinstance(message, dict):
        raise invalid(param, f"{param} must be an object, not {type(message).__name__}")
    role = message.get("role")
    if role == "function":
        raise unsupported(f"{param}.role", "the role 'function' is not supported; use the role 'tool'")
    if role not in _ROLES:
        raise invalid(f"{param}.role", f"{param}.role must be one of {_ROLES}, not {short(role)}")
    for name in _NOT_CARRIED:
        if message.get(name) is not None:
            raise unsupported(f"{param}.{name}", f"{param}.{name} is not supported; leave it out")
    content = read_content(message.get("content"), f"{param}.content", _TEXT_PARTS)
    if content is None and role == "assistant":
        content = text({f"{param}.refusal": message.get("refusal")}, f"{param}.refusal")
    if content is None and role != "assistant":
        raise invalid(f"{param}.content", f"{param}.content is missing")
    role = "system" if role == "developer" else role
    checked = {**message, "role": role, "content": content}
    if (calls := checked.get("tool_calls")) is not None:
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise invalid(
                f"{param}.tool_calls", f"{param}.tool_calls must be a list of objects: {short(calls)}"
            )
        checked["tool_calls"] = [function_call(call) for call in calls]
    checked.pop("prefix", None)
    thought = checked.pop("reasoning", None) or checked.get("reasoning_content")
    if thought is not None:
        checked["reasoning_content"] = text({param: thought}, param)
    return checked


def _effort(body: Json) -> str | None:
    """How much to think, in OpenAI's words; "default": as much as the model does by itself."""
    reasoning, thinking = mapping(body, "reasoning") or {}, mapping(body, "thinking") or {}
    effort = text(body, "reasoning_effort") or text(reasoning, "effort")
    switches = ((body, "enable_thinking"), (reasoning, "enabled"))
    said = [flag(given, name) for given, name in switches if given.get(name) is not None]
    if "type" in thinking:
        said.append(text(thinking, "type") != "disabled")
    if not said:
        return effort
    if len(set(said)) > 1 or (effort is not None and (effort != "none") != said[0]):
        raise invalid("thinking", "the options for thinking contradict one another; give one of them")
    return effort or ("default" if said[0] else "none")


def _top_logprobs(body: Json) -> int:
    wanted = integer(body, "top_logprobs", 0, MOST_TOP_LOGPROBS) or 0
    if not flag(body, "logprobs") and wanted:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true")
    return wanted


def _add_delta(so_far: Json, delta: Json) -> None:
    message = so_far.setdefault("message", {})
    for name, value in delta.items():
        if name == "tool_calls":
            for part in value or ():
                _add_tool_call(message.setdefault("tool_calls", []), part)
        elif isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value
        elif value is not None:
            message[name] = value


def _add_tool_call(calls: list[Json], part: Json) -> None:
    """A part belongs to the call at its `index`; one without, as some servers send them, is a whole call."""
    index = part.get("index")
    call = next((call for call in calls if index is not None and call["index"] == index), None)
    if call is None:
        call = {"index": index, "function": {"name": "", "arguments": ""}}
        calls.append(call)
    call.update((name, part[name]) for name in ("id", "type") if part.get(name))
    for kind in ("function", "custom"):
        for name, piece in (part.get(kind) or {}).items():
            written = call.setdefault(kind, {})
            written[name] = written.get(name, "") + (piece or "")


def _said(given: Json) -> Json:
    said = {name: value for name, value in given.items() if value and name != "tool_calls"}
    calls = [
        tool_call(call.get("id"), **{"name": "", "arguments": "", **call["function"]})
        for call in map(function_call, given.get("tool_calls") or ())
        if call.get("function")
    ]
    return {**said, **assistant(given.get("content"), calls)}


class ChatReply:
    """Writes the replies to one call."""

    def __init__(self, sampled: Sampled, request: Request, model: ServedModel) -> None:
        self._sampled = sampled
        self._tokens = model.tokens
        self._raw = request.raw
        self._custom = custom_names(request.raw.get("tools"))
        self._frame: Json = {
            "id": Chat.id_prefix + sampled.call_id,
            "object": "chat.completion.chunk" if request.stream else "chat.completion",
            "created": int(sampled.started_at),
            "model": request.model or model.name,
        }
        reasoning = request.raw.get("reasoning") or {}
        self._hides_thoughts = (
            request.raw.get("include_reasoning") is False or reasoning.get("exclude") is True
        )
        self._tool_calls = [0] * len(sampled.choices)
        """Tool calls streamed so far in each choice."""

    def whole(self) -> Json:
        """The whole reply."""
        reply = {
            **self._frame,
            "system_fingerprint": fingerprint(self._sampled),
            "service_tier": "default",  # LiteLLM fails for Groq without it
            "provider": "lightning",  # Pydantic AI's OpenRouterModel fails without it
            "choices": [self._choice(index, choice) for index, choice in enumerate(self._sampled.choices)],
            "usage": token_usage(self._sampled),
        }
        if self._raw.get("return_token_ids"):
            reply["prompt_token_ids"] = self._sampled.prompt_ids
        return reply

    def opening(self) -> bytes:
        """The first chunk of each choice, which says who speaks."""
        self._frame["system_fingerprint"] = fingerprint(self._sampled)
        prompt: Json = {}
        if self._raw.get("return_token_ids"):
            prompt["prompt_token_ids"] = self._sampled.prompt_ids
        # as OpenAI's: a reply that may be a call of a tool has no text until there is some
        delta = {"role": "assistant", "content": None if self._raw.get("tools") else ""}
        first = self._chunk(0, delta, **prompt)
        return first + b"".join(self._chunk(index, delta) for index in range(1, len(self._sampled.choices)))

    def pieces(self, deltas: Iterable[Delta]) -> bytes:
        """Writes the deltas as events: a chunk for each choice, and two for each of its tool calls."""
        return b"".join(
            self._piece(index, choice) + self._calls(index, choice)
            for index, choice in by_choice(deltas).items()
        )

    def ending(self) -> bytes:
        """The finish reasons, the usage if it was asked for, and the end mark."""
        chunks = [
            self._chunk(index, {}, finish_reason=self._finish(choice))
            for index, choice in enumerate(self._sampled.choices)
        ]
        if wants_usage(self._raw):
            chunks.append(event({**self._frame, "choices": [], "usage": token_usage(self._sampled)}))
        return b"".join((*chunks, b"data: [DONE]\n\n"))

    def failing(self, error: ApiError) -> bytes:
        """The error, as the last chunk."""
        return event(error.body())

    def _choice(self, index: int, choice: ChoiceSoFar) -> Json:
        message = {**choice.message(), **self._thought(choice), "refusal": None}
        if self._hides_thoughts:
            message.pop("reasoning_content", None)
        if self._custom and choice.tool_calls:
            message["tool_calls"] = [chat_call(call, self._custom) for call in choice.tool_calls]
        reply: Json = {
            "index": index,
            "message": orjson.Fragment(to_json(message)),
            "logprobs": self._logprobs(choice),
            "finish_reason": self._finish(choice),
        }
        if self._raw.get("return_token_ids"):
            reply["token_ids"] = choice.token_ids
        return reply

    def _finish(self, choice: ChoiceSoFar) -> str | None:
        named = choice.finish_reason == "tool_calls" and read_tool_choice(self._raw).named is not None
        return "stop" if named else choice.finish_reason

    def _piece(self, index: int, choice: ChoiceSoFar) -> bytes:
        delta = self._thought(choice)
        if choice.text:
            delta["content"] = choice.text
        token_ids = choice.token_ids if self._raw.get("return_token_ids") else None
        logprobs = self._logprobs(choice) if choice.token_ids else None
        if not delta and not token_ids and not logprobs:
            return b""
        return self._chunk(index, delta, logprobs=logprobs, token_ids=token_ids)

    def _calls(self, index: int, choice: ChoiceSoFar) -> bytes:
        """Each call alone, its id and name before its arguments: some clients read one call of a chunk."""
        chunks = []
        for each in choice.tool_calls:
            place, call = self._tool_calls[index], chat_call(each, self._custom)
            self._tool_calls[index] += 1
            kind, rest = ("function", "arguments") if "function" in call else ("custom", "input")
            head = {**call, kind: {**call[kind], rest: ""}}
            for part in (head, {kind: {rest: call[kind][rest]}}):
                chunks.append(self._chunk(index, {"tool_calls": [{"index": place, **part}]}))
        return b"".join(chunks)

    def _chunk(
        self,
        index: int,
        delta: Json,
        *,
        finish_reason: str | None = None,
        logprobs: Json | None = None,
        token_ids: list[int] | None = None,
        **fields: Any,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": orjson.Fragment(to_json(delta)),
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        if token_ids:
            choice["token_ids"] = token_ids
        if wants_usage(self._raw):
            fields["usage"] = None
        return event({**self._frame, **fields, "choices": [choice]})

    def _thought(self, choice: ChoiceSoFar) -> Json:
        """Under both names that servers give it: DeepSeek's, which most clients know, and vLLM's newer."""
        thought = "" if self._hides_thoughts else choice.thought
        return {"reasoning_content": thought, "reasoning": thought} if thought else {}

    def _logprobs(self, choice: ChoiceSoFar) -> Json | None:
        if not self._raw.get("logprobs"):
            return None
        content = self._tokens.logprobs(choice.token_ids, choice.logprobs, choice.top_logprobs)
        return {"content": content, "refusal": None}
