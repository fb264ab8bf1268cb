"""The wrapped parts of ADK: the run of an agent, which is a generator, and its plugins' view of tools.

Every way to run an agent passes `BaseAgent.run_async`: by a runner, after a transfer, in a workflow, as a
tool. A generator runs in its reader's context, so the name is set for each event and taken back before it
is given.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.plugins.plugin_manager import PluginManager

from lightning_core.tracing.tools import report_tool
from lightning_google_adk import adapter, working

_STARTED = "_lightning_started_at"


def _named(original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    async def run_async(agent: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        events, end = original(agent, *args, **kwargs), object()
        try:
            while True:
                with working(agent.name):
                    event = await anext(events, end)
                if event is end:
                    return
                yield event
        finally:
            with working(agent.name):
                await events.aclose()

    return lambda *args, **kwargs: (run_async if users else original)(*args, **kwargs)


def _timed(original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    async def run_before_tool_callback(manager: Any, *, tool_context: Any, **given: Any) -> Any:
        setattr(tool_context, _STARTED, time.time())
        return await original(manager, tool_context=tool_context, **given)

    return run_before_tool_callback


def _reported(original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    async def run_after_tool_callback(manager: Any, *, tool_context: Any, **given: Any) -> Any:
        waits = tool_context.function_call_id in tool_context.actions.requested_tool_confirmations
        if users and not waits and hasattr(tool_context, _STARTED):  # if not, its error is reported already
            _report(tool_context, given, result=given["result"])
        return await original(manager, tool_context=tool_context, **given)

    return run_after_tool_callback


def _failed(original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    async def run_on_tool_error_callback(manager: Any, *, tool_context: Any, **given: Any) -> Any:
        if users:
            unknown = given["tool"].description == "Tool not found"
            kind = "unknown_tool" if unknown else "raised"
            _report(tool_context, given, error=given["error"], error_type=kind)
        return await original(manager, tool_context=tool_context, **given)

    return run_on_tool_error_callback


def _report(tool_context: Any, given: dict[str, Any], **outcome: Any) -> None:
    report_tool(
        given["tool"].name,
        agent=tool_context.agent_name,
        framework=adapter.framework,
        arguments=given["tool_args"],
        tool_call_id=tool_context.function_call_id,
        started_at=vars(tool_context).pop(_STARTED, None),
        **outcome,
    )


WRAPPED = [
    (BaseAgent, "run_async", _named),
    (PluginManager, "run_before_tool_callback", _timed),
    (PluginManager, "run_after_tool_callback", _reported),
    (PluginManager, "run_on_tool_error_callback", _failed),
]
