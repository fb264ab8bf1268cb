"""Runs of tools, as an agent announces them in its own stream: asked for, then executed.

Both events pass through the wrapped stream of the agent that made them, in the context in which it works,
and then once more through the stream of each agent around it (behind an `AgentTool`, say). The innermost
stream sees an event first, and the agents that are nested share what they have seen.

AutoGen keeps only the text of what a tool raised. Arguments that don't fit a tool's schema are reported as
"raised"; AIR's `invalid_arguments` finds them by the schema that the request offered.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from lightning_core.records.types import ToolErrorType
from lightning_core.tracing.tools import report_tool


class Tools:
    """The tool runs of one step of an agent."""

    def __init__(self, worker: Any, framework: str, around: Tools | None) -> None:
        self._worker = worker
        self._framework = framework
        self._seen: set[str] = around._seen if around is not None else set()
        """Ids of events that the agent or one inside it has reported."""
        self._asked: list[Any] = []
        self._asked_at = 0.0

    def notice(self, item: Any) -> None:
        """Notes an item that the agent's stream has just produced."""
        messages = sys.modules["autogen_agentchat.messages"]
        if not isinstance(item, (messages.ToolCallRequestEvent, messages.ToolCallExecutionEvent)):
            return
        if item.source != self._worker.name or item.id in self._seen:
            return
        self._seen.add(item.id)
        if isinstance(item, messages.ToolCallRequestEvent):
            self._asked, self._asked_at = list(item.content), time.time()
        else:
            for result in item.content:
                self._report(result)

    def _report(self, result: Any) -> None:
        call = self._take(result)
        arguments = call.arguments if call is not None else ""
        failed = bool(result.is_error)
        report_tool(
            result.name,
            agent=self._worker.name,
            framework=self._framework,
            arguments=arguments,
            result=result.content,
            error=result.content if failed else None,
            error_type=_kind(result.name, arguments, result.content) if failed else None,
            tool_call_id=result.call_id or None,
            started_at=self._asked_at if call is not None else None,
        )

    def _take(self, result: Any) -> Any:
        """The request that is answered by it; None if the agent did not announce it."""
        for index, call in enumerate(self._asked):
            if (call.id, call.name) == (result.call_id, result.name):
                return self._asked.pop(index)
        return None


def _kind(name: str, arguments: str, error: str) -> ToolErrorType:
    if not _is_json(arguments):
        return "invalid_arguments"
    unknown = error == f"Error: tool '{name}' not found in any workbench"
    return "unknown_tool" if unknown else "raised"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
