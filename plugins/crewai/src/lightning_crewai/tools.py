"""Report each run of a tool, with the id that the model's reply gave the request for it.

CrewAI's events say how a tool's run went, but not which request it answers, and its handlers get them in
other threads, some after the crew is done. So the functions through which agents run tools are wrapped:
they are given the request itself, with its id, in the rollout's own context. How the run went is read off
the events at the moment they are emitted in there.

A model without tool calls asks for tools in words ("Action: ..."), which have no ids. There the reply itself
is the link: it is handed on with the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from lightning_core.tracing.scope import current_scope
from lightning_core.tracing.tools import report_tool
from lightning_core.types import ToolErrorType
from lightning_crewai.naming import FRAMEWORK, agent_name

_REFUSED: dict[str, ToolErrorType] = {
    "unknown_tool": "unknown_tool",
    "invalid_input": "invalid_arguments",
}
"""CrewAI's reasons for not running a tool at all."""
_NEAR = 0.85
"""How like a tool's name the one asked for in words must be at least, for CrewAI to pick that tool."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Run:
    """A tool's run that is going on, and what is known of it so far."""

    worker: Any
    """The agent that asked for it."""
    name: str
    arguments: object
    tool_call_id: str | None = None
    reply: str | None = None
    """What the agent said to ask for it in words."""
    result: object = None
    """What the model is told."""
    error: BaseException | str | None = None
    error_type: ToolErrorType | None = None

    def note(self, source: Any, event: Any) -> None:
        """Learn from an event of CrewAI's bus that was emitted within the run."""
        if not self._is_about(source, event):
            return
        if event.type == "tool_usage_error":
            self.fail(event.error)
        elif event.type == "tool_selection_error":
            self.error, self.error_type = event.error, "unknown_tool"
        elif event.type == "tool_failure_detected":
            self.declare(event.failure)
        elif event.type == "tool_usage_finished" and event.failure is None:
            self.error = self.error_type = None  # CrewAI itself tried again, and it went well

    def _is_about(self, source: Any, event: Any) -> bool:
        """Not about a run further in: another agent's, or one that a model's object made by itself."""
        from crewai import BaseLLM
        from crewai.utilities.string_utils import sanitize_tool_name

        agent_id, name = getattr(event, "agent_id", None), getattr(event, "tool_name", None)
        if name is None or isinstance(source, BaseLLM):
            return False
        if agent_id not in (None, str(getattr(self.worker, "id", None))):
            return False
        asked, named = sanitize_tool_name(self.name), sanitize_tool_name(name)
        in_words = self.tool_call_id is None
        return asked == named or (in_words and SequenceMatcher(None, named, asked).ratio() > _NEAR)

    def fail(self, error: BaseException | str) -> None:
        """The tool raised, or its arguments did not fit."""
        self.error, self.error_type = error, _type_of(error)

    def declare(self, failure: Any) -> None:
        """CrewAI's own account of a failure, `ToolFailure`; an exception that was noted tells more."""
        if failure is None or self.error is not None or failure.reason == "repeated_call":
            return
        told = failure.message
        self.error = f"{failure.code}: {told}" if failure.reason == "exception" else told
        self.error_type = _REFUSED.get(failure.reason.value)


_run: ContextVar[Run | None] = ContextVar("lightning_crewai_tool_run", default=None)


def in_native_call(original: Callable[..., Any], users: list[str]) -> Callable[..., Any]:
    """For the executor's method that runs the tool which one `tool_call` of a reply asks for."""

    def execute(executor: Any, tool_call: Any) -> Any:
        if not _reporting(users):
            return original(executor, tool_call)
        with _running(_asked(executor.agent, tool_call)) as run:
            outcome = original(executor, tool_call)
            run.result = outcome["result"]
            run.declare(outcome.get("tool_failure"))
            return outcome

    return execute


def in_planned_call(original: Callable[..., Any], users: list[str]) -> Callable[..., Any]:
    """For the function that does so for an agent that works along a plan."""

    def execute(tool_call: Any, *args: Any, **kwargs: Any) -> Any:
        if not _reporting(users):
            return original(tool_call, *args, **kwargs)
        with _running(_asked(kwargs["agent"], tool_call)) as run:
            outcome = original(tool_call, *args, **kwargs)
            run.result = outcome.result
            return outcome

    return execute


def in_text_call(original: Callable[..., Any], users: list[str]) -> Callable[..., Any]:
    """For the function that runs the tool which a reply asks for in words."""

    def execute(agent_action: Any, *args: Any, **kwargs: Any) -> Any:
        if not _reporting(users):
            return original(agent_action, *args, **kwargs)
        asked = Run(kwargs["agent"], agent_action.tool, agent_action.tool_input, reply=agent_action.text)
        with _running(asked) as run:
            outcome = original(agent_action, *args, **kwargs)
            run.result = outcome.result
            return outcome

    return execute


def in_emit(original: Callable[..., Any], users: list[str]) -> Callable[..., Any]:
    """For the bus's `emit`, which is called where the thing happens: whatever is emitted, it goes on."""

    def emit(bus: Any, source: Any, event: Any) -> Any:
        run = _run.get()
        try:
            if run is not None:
                run.note(source, event)
        except Exception:
            _log.warning("could not learn from CrewAI's event %r of a tool", event, exc_info=True)
        return original(bus, source, event)

    return emit


def _reporting(users: list[str]) -> bool:
    return bool(users) and current_scope() is not None


def _asked(worker: Any, tool_call: Any) -> Run:
    from crewai.utilities.agent_utils import extract_tool_call_info

    call_id, name, arguments = extract_tool_call_info(tool_call) or (None, "", str(tool_call))
    return Run(worker, name, arguments, call_id)


@contextmanager
def _running(run: Run) -> Iterator[Run]:
    before, started_at = _run.get(), time.time()
    _run.set(run)
    try:
        yield run
    except BaseException as error:
        if run.error is None:
            run.fail(error)
        raise
    finally:
        _run.set(before)
        report_tool(
            run.name,
            agent=agent_name(run.worker),
            framework=FRAMEWORK,
            arguments=run.arguments,
            result=run.result,
            error=run.error,
            error_type=run.error_type,
            tool_call_id=run.tool_call_id,
            reply=run.reply,
            started_at=started_at,
        )


def _type_of(error: BaseException | str) -> ToolErrorType:
    from pydantic import ValidationError

    if isinstance(error, TimeoutError):
        return "timed_out"
    cause = getattr(error, "__cause__", None)
    refused = isinstance(cause, ValidationError) and "rguments validation failed" in str(error)
    return "invalid_arguments" if refused else "raised"
