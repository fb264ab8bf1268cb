"""Rollouts that fork from a recorded one: which calls get the replies on record, and which are sampled.

The app runs again from its start. Until it makes the call at which the rollout forks, each request must equal
one on record: by agent, API, and body as JSON with sorted keys, byte for byte. Only ids of tool calls may be
others, as some frameworks draw them by chance. It gets the reply on record, ids included. The call of the
fork is sampled, from another prompt if the fork has one; or its app gets a reply that a person wrote. After
it, a request that equals a call which had begun before the fork's reply was there gets its reply too, as it
can't follow from that; all others are sampled.

A request that equals none ends the attempt, and the refusal says what differs: rewards of an app that depends
on time, chance or the network can't be compared.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_core.dialects.base import Request
from lightning_core.dialects.chat import Chat
from lightning_core.dialects.lenient import Json, tool_call, with_numbered_ids
from lightning_core.dialects.strict import invalid, short
from lightning_core.dialects.upstream import ChatRequest, Delta
from lightning_core.errors import ApiError
from lightning_core.gateway.access import Caller
from lightning_core.records.linking import answering
from lightning_core.records.types import TRIED, Call, Choice, Fork
from lightning_core.stores.base import Store

LEFT_RECORD: Final = "left_record"
"""The code of a refusal where a request differs from the record."""
_ATTEMPTS: Final = 4096
"""Attempts that are remembered."""
_AROUND: Final = 24
"""Characters shown on each side of a difference."""
WRITTEN: Final = "a person wrote the reply"
"""Why a reply in a sampled one's place is not trained on."""


@dataclass(frozen=True, slots=True)
class OnRecord:
    """The place of a request in the record of the rollout that it forks from."""

    call: Call
    """With the reply for the app, if that is not sampled."""
    sampled: bool
    """Whether the reply is sampled all the same."""
    prompt: Json | None = None
    """Fields of the request from which it is sampled; None: the app's own."""


class Forks:
    """The attempts that fork from a record. Belongs to the gateway's event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._courses: OrderedDict[tuple[str, int], _Course] = OrderedDict()
        self._opening = asyncio.Lock()

    async def find(self, caller: Caller, request: Request, dialect: str) -> OnRecord | None:
        """The request's place on record; None if the rollout does not fork, or has left the record.

        Raises ApiError for a request that differs before the fork, and for a record that can't be followed.
        """
        fork = caller.fork
        if fork is None or caller.rollout_id is None or caller.attempt is None:
            return None
        async with self._opening:
            course = self._courses.get((caller.rollout_id, caller.attempt))
            if course is None:
                course = await self._open(caller.rollout_id)
                self._courses[caller.rollout_id, caller.attempt] = course
                if len(self._courses) > _ATTEMPTS:
                    self._courses.popitem(last=False)
        return course.find(caller, request, dialect)

    async def _open(self, rollout_id: str) -> _Course:
        (own,) = await self._store.get_rollouts([rollout_id])
        fork = own.sampling.fork  # the token names the call alone: a reply or a prompt may be long
        assert fork is not None
        (source,) = await self._store.get_rollouts([fork.rollout_id])
        if own.run_id != source.run_id:
            run = await self._store.find_run(own.run_id)
            if run is None or run.config.get(TRIED) != source.run_id:
                raise ApiError(
                    f"rollout {rollout_id!r} can't fork from {fork.rollout_id!r}, which is of another run",
                    status=403,
                    code="other_run",
                    kind="permission_error",
                )
        calls = (await self._store.get_calls([source.id]))[source.id]
        return _Course(fork, answering([call for call in calls if call.endpoint is None]))


class _Course:
    """One attempt on its way along a record."""

    def __init__(self, fork: Fork, calls: Sequence[Call]) -> None:
        """Raises ApiError if the call of the fork has no reply on record."""
        self._fork = fork
        self._left = [(_key(call.agent, call.dialect, call.request), call) for call in calls]
        """Calls that no request has had, in the order they began."""
        self._order = {call.id: number for number, call in enumerate(calls, 1)}
        self._had: dict[str, Call] = {}
        """The call that each request had, by the request's own id: a client may send it again."""
        self._until: float | None = None
        """When the recorded reply of the fork was there; None before the fork."""
        self._refusal: str | None = None
        """Why the attempt can't go on."""
        target = next((call for call in calls if call.id == fork.call_id), None)
        if target is None or target.status != "completed":
            raise ApiError(
                f"rollout {fork.rollout_id!r} has no completed call {fork.call_id!r} of the gateway",
                status=404,
                code="no_call",
            )
        self._target = target
        self._written = None if fork.reply is None else written_call(target, fork.reply)
        """The call with the reply that a person wrote."""

    def find(self, caller: Caller, request: Request, dialect: str) -> OnRecord | None:
        if self._refusal is not None:
            raise _refused(self._refusal)
        call = self._had.get(caller.call_id)
        if call is None:
            call = self._take(caller, request, dialect)
            if call is None:
                return None
            self._had[caller.call_id] = call
        if call is not self._target:
            return OnRecord(call, sampled=False)
        if self._written is not None:
            return OnRecord(self._written, sampled=False)
        return OnRecord(call, sampled=True, prompt=self._fork.prompt)

    def _take(self, caller: Caller, request: Request, dialect: str) -> Call | None:
        key = _key(caller.agent, dialect, request.raw)
        place = next((place for place, (known, _) in enumerate(self._left) if known == key), None)
        call = None if place is None else self._left[place][1]
        if self._until is not None and (call is None or call.started_at >= self._until):
            return None
        if place is None or call is None:
            raise self._refuse(self._difference(caller, request, dialect))
        del self._left[place]
        if call is self._target:
            self._until = call.ended_at
            return call
        if call.status == "refused":  # by the engine, which refuses it again
            return None
        if call.status != "completed":
            raise self._refuse(f"{self._named(call)} has no reply on record: it is {call.status}")
        if request.chat.top_logprobs:
            raise self._refuse(f"{self._named(call)} asks for top_logprobs, which are not on record")
        return call

    def _difference(self, caller: Caller, request: Request, dialect: str) -> str:
        """Describes how a request differs from the next call on record, of the same agent if there is one."""
        left = [call for _, call in self._left]
        nearest = next((call for call in left if call.agent == caller.agent), next(iter(left), None))
        if nearest is None:
            return f"a call of agent {caller.agent!r} comes after all {len(self._order)} on record"
        begin = f"a call of agent {caller.agent!r} differs from {self._named(nearest)}: "
        if nearest.agent != caller.agent:
            return f"{begin}no other call on record is of that agent"
        if nearest.dialect != dialect:
            return f"{begin}it came through the API {dialect!r}, recorded is {nearest.dialect!r}"
        return begin + describe_difference(with_numbered_ids(nearest.request), with_numbered_ids(request.raw))

    def _named(self, call: Call) -> str:
        return f"call {self._order[call.id]} of the record ({call.id}, agent {call.agent!r})"

    def _refuse(self, what: str) -> ApiError:
        self._refusal = (
            f"the app left the record of rollout {self._fork.rollout_id!r} before the fork at call "
            f"{self._order[self._target.id]}: {what}. Forks are compared only if requests follow from the "
            "task and the replies alone: take time, chance and the network out of the prompts, or put what "
            "they give into the task"
        )
        return _refused(self._refusal)


class RecordedReply:
    """A reply that is there already, as a completion (`upstream.Generation`)."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.prompt_ids = list(call.prompt_ids or ())
        self.grammar = call.grammar

    @property
    def policy_version(self) -> int | None:
        """The version that had answered; None if a person wrote the reply."""
        return self._call.policy_version

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for choice in self._call.choices:
            message: dict[str, Any] = choice.message
            yield Delta(
                choice.index,
                list(choice.completion_ids or ()),
                list(choice.logprobs or ()),
                str(message.get("content") or ""),
                tool_calls=message.get("tool_calls") or None,
                finish_reason=choice.finish_reason or "stop",
                thought=str(message.get("reasoning_content") or ""),
                left_out=choice.left_out,
                as_text=choice.as_text,
            )

    async def aclose(self) -> None:
        return None

    async def begin(self, request: ChatRequest) -> RecordedReply:
        """Answers a request in place of an engine."""
        return self


def read_reply(given: Json) -> Json:
    """The assistant's message that a person wrote, as in Chat Completions; tool calls without ids get some.

    Raises ApiError for any other message.
    """
    if given.get("role") != "assistant":
        raise invalid("role", f"the reply has the role {short(given.get('role'))}; only an assistant replies")
    (message,), _ = Chat.conversation({"messages": [given]})
    calls = [_tool_call(each, place) for place, each in enumerate(message.get("tool_calls") or ())]
    if not calls and message["content"] is None:
        raise invalid("content", "the reply says nothing: give it content or tool_calls")
    return {**message, **({"tool_calls": calls} if calls else {})}


def _tool_call(call: Json, place: int) -> Json:
    match call:
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            return tool_call(str(call.get("id") or f"call_{uuid.uuid4().hex}"), name, arguments)
    raise invalid(
        f"tool_calls[{place}]",
        f"tool_calls[{place}] is {short(call)}; give "
        '{"type": "function", "function": {"name": "...", "arguments": "JSON as text"}}',
    )


def written_call(call: Call, reply: Json) -> Call:
    """The call with a reply that a person wrote: it has no tokens, and no version sampled it.

    Raises ApiError for a reply that can't stand there.
    """
    message = read_reply(reply)
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = Choice(message=message, finish_reason=reason, left_out=WRITTEN)
    return call.model_copy(update={"choices": [choice], "policy_version": None, "grammar": None})


def _refused(message: str) -> ApiError:
    return ApiError(message, status=422, code=LEFT_RECORD)


def _key(agent: str, dialect: str, request: Any) -> str:
    return _written([agent, dialect, with_numbered_ids(request)])


def _written(value: Any) -> str:
    """JSON with sorted keys, in which equal values are equal texts."""
    return json.dumps(value, sort_keys=True)


def describe_difference(recorded: Any, now: Any, path: str = "") -> str:
    """Where two JSON values first differ, and what stands there; fields go by the alphabet."""
    at = path.removeprefix(".") or "the body"
    if isinstance(recorded, dict) and isinstance(now, dict):
        for name in sorted(recorded.keys() | now.keys()):
            if name not in now:
                return f"{at} has no field {name!r}, recorded is {_shown(recorded[name])}"
            if name not in recorded:
                return f"{at} has the field {name!r} with {_shown(now[name])}, recorded is none"
            if _written(recorded[name]) != _written(now[name]):
                return describe_difference(recorded[name], now[name], f"{path}.{name}")
    if isinstance(recorded, list) and isinstance(now, list):
        for place, (was, is_) in enumerate(zip(recorded, now, strict=False)):
            if _written(was) != _written(is_):
                return describe_difference(was, is_, f"{path}[{place}]")
        return f"{at} has {len(now)} items, recorded are {len(recorded)}"
    if isinstance(recorded, str) and isinstance(now, str):
        same = zip(recorded, now, strict=False)
        place = next((i for i, (a, b) in enumerate(same) if a != b), min(len(recorded), len(now)))
        begin = max(0, place - _AROUND)
        was, is_ = (text[begin : place + _AROUND] for text in (recorded, now))
        return f"{at} differs from character {place + 1} on: recorded {was!r}, now {is_!r}"
    return f"{at} is {_shown(now)}, recorded is {_shown(recorded)}"


def _shown(value: Any) -> str:
    text = _written(value)
    return text if len(text) <= 2 * _AROUND else f"{text[: 2 * _AROUND]}…"
