"""The wrapped parts of smolagents: a run, which is one generator, and the tools that a reply asked for.

Planning, steps, the last answer after too many steps and managed agents all happen inside `_run_stream`.
A generator runs in its reader's context, so the name is set for each item and taken back before it is given.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from typing import Any

from smolagents.agents import MultiStepAgent, ToolCallingAgent

from lightning_core.records.types import UNNAMED
from lightning_core.tracing.tools import report_tool
from lightning_smolagents import adapter, working

_ids: ContextVar[dict[tuple[str, str], deque[str]]] = ContextVar("lightning_smolagents_ids")
"""The ids of the tool calls of one reply, by tool and arguments."""


def _named(original: Callable[..., Generator[Any]], users: list[object]) -> Callable[..., Iterator[Any]]:
    def _run_stream(agent: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        steps, end = original(agent, *args, **kwargs), object()
        try:
            while True:
                with working(agent.name):
                    step = next(steps, end)
                if step is end:
                    return
                yield step
        finally:
            steps.close()

    return lambda *args, **kwargs: (_run_stream if users else original)(*args, **kwargs)


def _with_ids(original: Callable[..., Iterator[Any]], users: list[object]) -> Callable[..., Iterator[Any]]:
    def process_tool_calls(agent: Any, message: Any, step: Any) -> Iterator[Any]:
        ids = defaultdict[tuple[str, str], deque[str]](deque)
        for call in message.tool_calls:
            ids[call.function.name, repr(call.function.arguments or {})].append(call.id)
        _ids.set(ids)  # the next reply, which is read in the same context, sets its own
        return original(agent, message, step)

    return process_tool_calls


def _reported(original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    def execute_tool_call(agent: Any, tool_name: str, arguments: Any) -> Any:
        ids = _ids.get({}).get((tool_name, repr(arguments)))
        run: dict[str, Any] = {
            "agent": agent.name or UNNAMED,
            "framework": adapter.framework,
            "arguments": arguments,
        }
        run |= {"tool_call_id": ids.popleft() if ids else None, "started_at": time.time()}
        try:
            result = original(agent, tool_name, arguments)
        except Exception as error:
            unknown = tool_name not in {**agent.tools, **agent.managed_agents}
            kind: Any = "unknown_tool" if unknown else "raised"
            report_tool(tool_name, error=error.__cause__ or error, error_type=kind, **run)
            raise
        report_tool(tool_name, result=result, **run)
        return result

    return execute_tool_call


WRAPPED = [
    (MultiStepAgent, "_run_stream", _named),
    (ToolCallingAgent, "process_tool_calls", _with_ids),
    (ToolCallingAgent, "execute_tool_call", _reported),
]
