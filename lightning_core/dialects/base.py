"""One API in which an app speaks to a model, and the values that pass between it and the gateway.

Each API is one class in a file of its own. It is the only place that knows the API's fields, events and ids.
An instance serves one gateway: it reads requests strictly, because every option must be honoured, and writes
replies. Calls that only passed by are read by the class itself, leniently, because they may hold anything.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import orjson

from lightning_core.dialects.lenient import (
    Json,
    Message,
    ObservedReply,
    error_of,
    read_events,
    read_message,
    read_parts,
)
from lightning_core.dialects.options import Options
from lightning_core.dialects.upstream import ChatRequest, Constraint, Delta
from lightning_core.dialects.writing import ServedModel
from lightning_core.errors import ApiError, GatewayError
from lightning_core.records.types import Choice, Sampling

Owner = tuple[str | None, int | None]
"""A rollout and its attempt; both None for callers without a token, who share one space."""
Conversation = tuple[list[Json], list[Json] | None]
"""Messages and the functions that the model may call, both in the form of a chat."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that can be honoured."""

    raw: Json
    """As it was sent, with the items that it refers to."""
    model: str
    chat: ChatRequest
    """The request to the engine."""
    stream: bool
    remember: Callable[[str, Json, list[Json]], None] | None = None
    """Given the reply's id, message and items once the reply is complete."""


@dataclass(frozen=True, slots=True)
class Thought:
    """The thoughts of a reasoning model before its reply."""

    text: str


Part = str | Json | Thought
"""A piece of text, a tool call, or a piece of a thought."""


@dataclass(slots=True)
class ChoiceSoFar:
    """One choice while it is being sampled."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    """In the order written."""
    ends: list[int] = field(default_factory=list)
    """For each part how many tokens there were when it came."""
    finish_reason: str | None = None
    stop: str | None = None
    """The stop text that ended it."""
    kept: list[bytes] = field(default_factory=list)
    """The tokens that each was sampled among, if that was recorded."""
    left_out: str | None = None
    """Why an update can't compute its log-probabilities."""
    as_text: list[str] | None = None
    """The tokens of the model's own that stand in the prompt as text."""

    def add(self, delta: Delta) -> None:
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        if delta.thought:
            self.parts.append(Thought(delta.thought))
        if delta.text:
            self.parts.append(delta.text)
        if delta.tool_calls:
            self.parts += delta.tool_calls
        self.ends += [len(self.token_ids)] * (len(self.parts) - len(self.ends))
        if delta.top_logprobs:
            self.top_logprobs += delta.top_logprobs
        if delta.kept:
            self.kept += delta.kept
        if delta.finish_reason:
            self.left_out, self.as_text = delta.left_out, delta.as_text
            self.finish_reason = delta.finish_reason
            self.stop = delta.stop

    def add_tokens(self, other: ChoiceSoFar, begin: int, end: int) -> None:
        """Take in some tokens of another, without their text."""
        self.token_ids += other.token_ids[begin:end]
        self.logprobs += other.logprobs[begin:end]
        self.top_logprobs += other.top_logprobs[begin:end]

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def thought(self) -> str:
        """All of its thought."""
        return "".join(part.text for part in self.parts if isinstance(part, Thought))

    @property
    def tool_calls(self) -> list[Json]:
        """All of its tool calls."""
        return [part for part in self.parts if isinstance(part, dict)]

    def blocks(self) -> list[Part]:
        """Its thought and its texts, each whole, and its tool calls, in the order written."""
        return [block for block, _ in self.blocks_with_ends()]

    def blocks_with_ends(self) -> list[tuple[Part, int]]:
        """The same, each with how many tokens there were when it was whole."""
        blocks: list[tuple[Part, int]] = []
        for part, end in zip(self.parts, self.ends, strict=True):
            match blocks[-1:], part:
                case [(str(before), _)], str():
                    blocks[-1] = before + part, end
                case [(Thought(before), _)], Thought(more):
                    blocks[-1] = Thought(before + more), end
                case _:
                    blocks.append((part, end))
        return blocks

    def message(self) -> Json:
        """The assistant message the app is given."""
        thought = {"reasoning_content": self.thought} if self.thought else {}
        text, calls = self.text, self.tool_calls
        if calls:
            return {"role": "assistant", **thought, "content": text or None, "tool_calls": calls}
        return {"role": "assistant", **thought, "content": text}


def by_choice(deltas: Iterable[Delta]) -> dict[int, ChoiceSoFar]:
    """Returns the additions of the deltas to each choice."""
    fresh: dict[int, ChoiceSoFar] = {}
    for delta in deltas:
        fresh.setdefault(delta.choice, ChoiceSoFar()).add(delta)
    return fresh


@dataclass(slots=True)
class Sampled:
    """The tokens that the engine has read and written for one call so far."""

    call_id: str
    choices: list[ChoiceSoFar]
    started_at: float = field(default_factory=time.time)
    prompt_ids: list[int] | None = None
    policy_version: int | None = None
    grammar: str | None = None
    cached: int = 0
    """Tokens of the prompt that the engine had computed before it answered with the first choice."""

    def add(self, delta: Delta) -> None:
        """Take in a piece of a choice."""
        self.choices[delta.choice].add(delta)
        if delta.choice == 0:
            self.cached = delta.cached

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


class ReplyWriter(Protocol):
    """Writes the replies to one call."""

    def whole(self) -> Json:
        """The reply as one JSON object, once the call is recorded."""

    def opening(self) -> bytes:
        """The events before the first piece."""

    def pieces(self, deltas: Iterable[Delta]) -> bytes:
        """The events of what was just sampled; may be none."""

    def ending(self) -> bytes:
        """The events after the last piece, once the call is recorded."""

    def failing(self, error: ApiError) -> bytes:
        """The event that ends a stream which can't be completed."""


class Dialect(ABC):
    """One API. An instance serves one gateway; what reads calls that were only seen is static."""

    name: ClassVar[str]
    """As it is recorded: `Call.dialect`."""
    sdk: ClassVar[str]
    """The Python package whose clients speak it."""
    path: ClassVar[str]
    """The path of its address after `/v1`."""
    id_prefix: ClassVar[str]
    """How the ids of its replies begin."""
    options: ClassVar[Options]
    """The handling of each option of a request."""
    prompt: ClassVar[str]
    """The field that holds the prompt."""
    instructions: ClassVar[str | None] = None
    """The field that holds the system prompt, if it stands apart."""
    counts: ClassVar[str | None] = None
    """The part of the address after `path` where the tokens of a prompt are counted; None: nowhere."""
    operation: ClassVar[str] = "chat"
    """As OpenTelemetry's GenAI conventions name it."""

    @abstractmethod
    def read(self, content: bytes, sampling: Sampling | None, owner: Owner) -> Request:
        """The request in `content`. `sampling`, where given, takes the place of the app's own. Safe in any
        thread.

        Raises ApiError for what is not valid or can't be honoured.
        """

    def read_counted(self, content: bytes, owner: Owner) -> Request:
        """The request of which only the tokens are to be counted. Raises ApiError."""
        return self.read(content, None, owner)

    def counted(self, tokens: int) -> Json:
        """The answer: so many tokens."""
        return {"input_tokens": tokens}

    def further(self) -> Sequence[Dialect]:
        """Other endpoints of the same API whose requests the model answers too."""
        return ()

    @abstractmethod
    def reply(self, sampled: Sampled, request: Request, model: ServedModel) -> ReplyWriter:
        """The writer of this call's reply; `model` answers it."""

    def split(self, content: bytes) -> list[bytes]:
        """A request for each prompt that a request holds; most APIs have one prompt in each."""
        return [content]

    def joined(self, sampled: Sequence[Sampled], request: Request, model: ServedModel) -> ReplyWriter:
        """The writer of the one reply to a request that was split; its choices are numbered through."""
        return self.reply(sampled[0], request, model)

    @classmethod
    def continues(cls, request: Json) -> bool:
        """Whether the reply goes on from the assistant's message that a request ends with."""
        return False

    @staticmethod
    def error(error: ApiError) -> Json:
        """The JSON of a request that is refused."""
        return error.body()

    @staticmethod
    def sends_again(error: ApiError) -> bool:
        """Whether the SDK itself, after this refusal, sends the request in another form."""
        return False

    @staticmethod
    @abstractmethod
    def conversation(request: Json) -> Conversation:
        """Returns a request as a chat, whatever tool it forces. Raises ApiError for a request that is no
        chat."""

    @classmethod
    @abstractmethod
    def constraint(cls, request: Json) -> Constraint | None:
        """Returns the form that a request asks of its reply. Raises ApiError for one that can't be had."""

    @classmethod
    def read_reply(cls, body: bytes, *, streamed: bool) -> ObservedReply:
        """The reply of these bytes; of a stream, they may end anywhere.

        JSON of quite another shape raises TypeError, LookupError, AttributeError or ValueError.
        """
        if not body:
            return ObservedReply()
        events, ended = read_events(body) if streamed else ([], True)
        reply = cls.merge(events) if streamed else orjson.loads(body)
        choices = cls.choices(reply)
        given = reply.get("id")  # some servers number their replies
        return ObservedReply(
            choices=choices,
            response_id=None if given is None else str(given) or None,
            complete=ended or (bool(choices) and all(choice.finish_reason for choice in choices)),
            error=error_of(reply),
        )

    @staticmethod
    @abstractmethod
    def merge(events: Iterable[Json]) -> Json:
        """The whole reply that a stream's events stand for; the last of them may be missing."""

    @staticmethod
    @abstractmethod
    def choices(reply: Json) -> list[Choice]:
        """The assistant messages of a chat in a whole reply."""

    @classmethod
    def items(cls, request: Mapping[str, Any]) -> list[Any]:
        """Returns the items that a request has in place of messages, as they were sent."""
        return list(cls._items_back(request))[::-1]

    @classmethod
    def _items_back(cls, request: Mapping[str, Any]) -> Iterator[Any]:
        given = request.get(cls.prompt)
        return filter(None, reversed(given if isinstance(given, list) else [given]))

    @classmethod
    def messages(cls, request: Mapping[str, Any]) -> list[Message]:
        """The messages that the model was given."""
        return list(cls.messages_back(request))[::-1]

    @classmethod
    def messages_back(cls, request: Mapping[str, Any]) -> Iterator[Message]:
        """The messages that the model was given, the last first; each is read when it is asked for."""
        yield from map(cls.message, cls._items_back(request))
        content = request.get(cls.instructions) if cls.instructions else None
        if content:
            yield {"role": "system", "parts": read_parts(content)}

    @classmethod
    def with_system(cls, request: Json, swap: Callable[[str], str | None]) -> Json | None:
        """The request with the first system text for which `swap` has one; None if it has none for any."""
        if cls.instructions is not None:
            content = _swapped(request.get(cls.instructions), swap)
            if content is not None:
                return {**request, cls.instructions: content}
        given = request.get(cls.prompt)
        items = given if isinstance(given, list) else []
        for place, item in enumerate(items):
            if isinstance(item, dict) and item.get("role") in ("system", "developer"):
                content = _swapped(item.get("content"), swap)
                if content is not None:
                    changed = {**item, "content": content}
                    return {**request, cls.prompt: [*items[:place], changed, *items[place + 1 :]]}
        return None

    @staticmethod
    def message(item: Any) -> Message:
        """One item of a request's prompt, as a message of parts."""
        return read_message(item)

    @staticmethod
    def tool_results(item: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool | None]]:
        """The results of tools in one item of a prompt: (tool call id, content, failed or None)."""
        return iter(())

    @classmethod
    def offered_tools(cls, request: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
        """The functions that a request offered, with the schemas of their arguments where it gave them."""
        tools = request.get("tools")
        found = [
            cls.offered(each) for each in (tools if isinstance(tools, list) else ()) if isinstance(each, dict)
        ]
        return {str(name): schema if isinstance(schema, dict) else None for name, schema in found if name}

    @classmethod
    def hosted_tools(cls, request: Mapping[str, Any]) -> list[str]:
        """The types of the tools in a request that its provider would run, which the model is not offered."""
        return []

    @staticmethod
    def offered(tool: Mapping[str, Any]) -> tuple[Any, Any]:
        """The name of a function that a request offers, and the schema of its arguments."""
        return tool.get("name"), tool.get("parameters")


def _swapped(content: Any, swap: Callable[[str], str | None]) -> str | list[Any] | None:
    """A message's content with another text; None if `swap` has none."""
    if isinstance(content, str):
        return swap(content)
    for place, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            text = swap(block["text"])
            if text is not None:
                return [*content[:place], {**block, "text": text}, *content[place + 1 :]]
    return None
