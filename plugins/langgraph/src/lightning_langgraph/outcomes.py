"""Tools in LangChain's values: messages in an output, tools in a request, the kind of an error."""

from __future__ import annotations

import json
from asyncio import CancelledError
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.messages.tool import ToolOutputMixin
from pydantic import ValidationError

from lightning_core.records.types import ToolErrorType


def tool_messages(output: Any) -> Iterator[ToolMessage]:
    """Yields the tool messages in an output of a tool or a node: messages, lists, states and commands, as
    deep as they nest."""
    if isinstance(output, ToolMessage):
        yield output
    elif isinstance(output, ToolOutputMixin):
        yield from tool_messages(getattr(output, "update", None))
    elif isinstance(output, Mapping):
        for value in output.values():
            if isinstance(value, (list, tuple, ToolOutputMixin)):
                yield from tool_messages(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tool_messages(value)


def offered_in(tools: Any) -> frozenset[str] | None:
    """The names of the tools in a request's `tools`; None if they can't be read."""
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in tools):
        return None
    return frozenset(str((tool.get("function") or tool).get("name")) for tool in tools)


def same_arguments(asked: object, given: object) -> bool:
    """Whether a tool was given just what a model asked for, which may still be JSON text."""
    if isinstance(asked, str) and isinstance(given, Mapping):
        try:
            asked = json.loads(asked)
        except (ValueError, RecursionError):
            return False
    return asked == given


def is_unfinished(error: BaseException) -> bool:
    """An interrupt, after which the tool runs again when the graph goes on, or a cancellation, of which
    LangChain tells from langchain-core 1.8 on."""
    return isinstance(error, CancelledError) or any(
        kind.__name__ == "GraphBubbleUp" for kind in type(error).__mro__
    )


def error_kind(error: BaseException) -> ToolErrorType:
    """Returns the kind of the failure that a tool raised, or was refused with."""
    if isinstance(error, TimeoutError):
        return "timed_out"
    refused = isinstance(error, ValidationError) and not _reached_body(error)
    return "invalid_arguments" if refused else "raised"


def _reached_body(error: BaseException) -> bool:
    """Whether the tool's own code was running: `_run` and `_arun` are what a tool defines."""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_name in ("_run", "_arun"):
            return True
        frame = frame.tb_next
    return False
