"""The wrapped parts of the framework: the run of an agent, and the run of a tool.

Every way to run an agent passes `RawAgent.run`: alone, as a tool, in a workflow or an orchestration. A
stream is made by its reader, so it takes the name for each of its pulls.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from agent_framework import FunctionTool, MiddlewareTermination, RawAgent, _tools
from agent_framework.exceptions import UserInputRequiredException

from lightning_agent_framework import adapter, working
from lightning_core.records.types import UNNAMED
from lightning_core.tracing.tools import report_tool

_INVALID: Any = getattr(_tools, "_FunctionArgumentValidationError", ())


def _named(original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    def run(agent: Any, *args: Any, stream: bool = False, **kwargs: Any) -> Any:
        made = original(agent, *args, stream=stream, **kwargs)
        if not users:
            return made
        return made.with_pull_context_manager(partial(working, agent.name)) if stream else whole(agent, made)

    async def whole(agent: Any, made: Awaitable[Any]) -> Any:
        with working(agent.name):
            return await made

    return run


def _reported(original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    async def invoke(tool: Any, **kwargs: Any) -> Any:
        who, call_id = adapter.lightning_who(), kwargs.get("tool_call_id")
        if not users or call_id is None:
            return await original(tool, **kwargs)
        run: dict[str, Any] = {"agent": who.agent if who else UNNAMED, "framework": adapter.framework}
        run |= {
            "arguments": _plain(kwargs.get("arguments")),
            "tool_call_id": call_id,
            "started_at": time.time(),
        }
        try:
            result = await original(tool, **kwargs)
        except (UserInputRequiredException, MiddlewareTermination):  # it has not run yet
            raise
        except Exception as error:
            kind: Any = "invalid_arguments" if isinstance(error, _INVALID) else "raised"
            report_tool(tool.name, error=error, error_type=kind, **run)
            raise
        report_tool(tool.name, result=_plain(result), **run)
        return result

    return invoke


def _plain(value: Any) -> Any:
    """Arguments as a model, or a result as contents, as what they hold."""
    if isinstance(value, list):
        return "\n".join(str(getattr(each, "text", None) or each) for each in value)
    return value.model_dump() if hasattr(value, "model_dump") else value


WRAPPED = [(RawAgent, "run", _named), (FunctionTool, "invoke", _reported)]
