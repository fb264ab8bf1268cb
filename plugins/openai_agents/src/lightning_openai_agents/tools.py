"""Runs of function tools, from the spans that the SDK opens around them. Imports the SDK.

A span knows the tool's name, what it returned and that it failed, with tracing on or off. It knows neither
which request it answers nor, in newer versions, why it failed. Both are known by identity all the same: while
a tool's span is current the SDK makes the tool's `ToolContext` (with id and arguments), and it marks the span
as failed while it handles the very exception. So the making of a few of the SDK's public values is watched,
and each is written down on the span in whose context it was made.

A request for an unknown tool gets no span. It is reported when the SDK notes "Tool not found" on the span of
the agent's turn, with the id from that agent's last reply.
"""

from __future__ import annotations

import sys
import time
from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

from agents import ModelBehaviorError, ModelResponse
from agents.exceptions import ToolTimeoutError
from agents.items import ToolApprovalItem
from agents.tool import FunctionToolResult
from agents.tool_context import ToolContext
from agents.tracing import get_current_span

from lightning_core.tracing.patching import patch
from lightning_core.tracing.tools import report_tool
from lightning_core.types import UNNAMED, ToolErrorType
from lightning_openai_agents.naming import FRAMEWORK, find_who

_RUN = "_lightning_tool_run"
_REPLIES = "_lightning_replies"
_UNDO = "_lightning_openai_agents_undo"
_CHANGING = Lock()
"""Held while classes are patched or restored: providers in other threads may start at the same time."""


class _Run:
    """What is known of the run that a function span stands for."""

    def __init__(self) -> None:
        self.context: ToolContext[Any] | None = None
        """None for a function span of the app's own."""
        self.awaits_approval = False
        self.error: BaseException | str | None = None
        self.error_type: ToolErrorType | None = None
        self.started_at = time.time()

    def fail(self, error: BaseException | str) -> None:
        """The first failure is the tool's, a later one is of those who handled it."""
        if self.error is None:
            self.error = error
            self.error_type = self.error_type or self._kind(error)

    def _kind(self, error: BaseException | str) -> ToolErrorType:
        if isinstance(error, TimeoutError):
            return "timed_out"
        name = self.context.tool_name if self.context is not None else ""
        refused = isinstance(error, ModelBehaviorError) and str(error).startswith(
            f"Invalid JSON input for tool {name}"
        )
        return "invalid_arguments" if refused else "raised"


class _Replies:
    """An agent's last reply, as far as its requests for tools were not refused yet."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def take(self, name: str) -> Any:
        """The next request for a tool of this name, or None."""
        for index, item in enumerate(self.asked):
            if item.name == name:
                return self.asked.pop(index)
        return None


def prepare(span_data: Any, *around: Any) -> None:
    """Make room on a new span for what will be known, given the spans around it."""
    noted = vars(span_data)
    if _REPLIES in noted:  # by another provider of ours, around this one
        return
    if span_data.type == "function":
        noted[_RUN] = _Run()
    shared = None if span_data.type == "agent" else next(filter(None, map(_find_replies, around)), None)
    noted[_REPLIES] = shared or _Replies()


def watch(span: Any) -> None:
    """Have the span's failure and end noticed."""
    own = vars(span)
    if "set_error" in own:
        return
    own["set_error"] = partial(_failed, span, span.set_error)
    if span.span_data.type == "function":
        own["finish"] = partial(_finished, span, span.finish)


def watch_values() -> None:
    """Have what the SDK makes written down on the span that is current then; a second time does nothing."""
    with _CHANGING:
        for owner, note in _notes().items():
            if _UNDO not in vars(owner):
                setattr(owner, _UNDO, patch(owner, "__init__", note, _noting))


def unwatch_values() -> None:
    """Take that back; if nothing is watched, do nothing."""
    with _CHANGING:
        for owner in _notes():
            if _UNDO in vars(owner):
                vars(owner)[_UNDO]()
                delattr(owner, _UNDO)


def _notes() -> dict[type, Callable[[Any], None]]:
    return {
        ToolContext: _note_context,
        ToolTimeoutError: _note_timeout,
        FunctionToolResult: _note_approval,
        ModelResponse: _note_reply,
    }


def _noting(original: Callable[..., None], users: list[Callable[[Any], None]]) -> Callable[..., None]:
    def __init__(value: Any, *args: Any, **kwargs: Any) -> None:
        original(value, *args, **kwargs)
        if users:
            users[0](value)

    return __init__


def _note_context(context: Any) -> None:
    run = _current_run()
    if run is not None and run.context is None:  # later ones are of agents that the tool runs
        run.context = context


def _note_timeout(error: Any) -> None:
    run = _current_run()
    if run is not None and run.error is None:
        run.error, run.error_type = error, "timed_out"


def _note_approval(result: Any) -> None:
    run = _current_run()
    if run is not None:
        run.awaits_approval = isinstance(result.run_item, ToolApprovalItem)


def _note_reply(reply: Any) -> None:
    replies = _find_replies(get_current_span())
    if replies is not None:
        replies.asked = [item for item in reply.output if getattr(item, "type", "") == "function_call"]


def _current_run() -> _Run | None:
    span = get_current_span()
    return vars(span.span_data).get(_RUN) if span is not None else None


def _find_replies(span: Any) -> _Replies | None:
    return vars(span.span_data).get(_REPLIES) if span is not None else None


def _failed(span: Any, set_error: Callable[[Any], None], error: Any) -> None:
    set_error(error)
    run: _Run | None = vars(span.span_data).get(_RUN)
    details = error.get("data") or {}
    if run is not None:
        run.fail(sys.exc_info()[1] or str(details.get("error") or error["message"]))
    elif error["message"] == "Tool not found":
        _report_unknown(span, str(details.get("tool_name") or ""))


def _finished(span: Any, finish: Callable[..., None], reset_current: bool = False) -> None:
    run: _Run | None = vars(span.span_data).pop(_RUN, None)
    finish(reset_current=reset_current)
    if run is None or run.context is None or run.awaits_approval:
        return
    if run.error is None and isinstance(sys.exc_info()[1], CancelledError):
        return
    report_tool(
        run.context.tool_name,
        agent=_agent(span),
        framework=FRAMEWORK,
        arguments=run.context.tool_arguments,
        result=_told(span.span_data.output),
        error=run.error,
        error_type=run.error_type,
        tool_call_id=run.context.tool_call_id,
        started_at=run.started_at,
    )


def _report_unknown(span: Any, name: str) -> None:
    replies = _find_replies(span)
    asked = replies.take(name) if replies is not None else None
    agent = _agent(span)
    report_tool(
        name,
        agent=agent,
        framework=FRAMEWORK,
        arguments=asked.arguments if asked is not None else None,
        error=f"Tool {name} not found in agent {agent}",
        error_type="unknown_tool",
        tool_call_id=asked.call_id if asked is not None else None,
    )


def _agent(span: Any) -> str:
    who = find_who(span)
    return who.agent if who is not None else UNNAMED


def _told(output: Any) -> str | None:
    output = output.output if isinstance(output, FunctionToolResult) else output
    return output if output is None or isinstance(output, str) else str(output)
