"""Rules about requests for tools, one function each.

They read the reply, the tools that its request offered, and what came of the request (`reading.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from lightning_core.air.base import Records, Signal, ToolRequest
from lightning_core.air.outcomes import is_empty
from lightning_core.air.schemas import offered_tools, problem_of
from lightning_core.types import ToolErrorType


def tool_raised(records: Records) -> Iterator[Signal]:
    """The tool was run and failed."""
    return _failed(records, "raised")


def timed_out(records: Records) -> Iterator[Signal]:
    """The tool took too long."""
    return _failed(records, "timed_out")


def unknown_tool(records: Records) -> Iterator[Signal]:
    """There is no such tool: the framework says so, or the request offered others and it did not run."""
    yield from _failed(records, "unknown_tool")
    for request in records.requests:
        offered = offered_tools(request.call.request)
        if offered and request.name not in offered and not _ran(request) and not _is(request, "unknown_tool"):
            yield _about(request, f"offered were {', '.join(map(repr, sorted(offered)))}")


def invalid_arguments(records: Records) -> Iterator[Signal]:
    """The arguments are not JSON, or not what the tool's schema asks for, or the framework refused them."""
    yield from _failed(records, "invalid_arguments")
    for request in records.requests:
        offered = offered_tools(request.call.request)
        if request.name in offered and not _is(request, "invalid_arguments"):
            problem = problem_of(request.arguments, offered[request.name])
            if problem is not None:
                yield _about(request, problem)


def empty_result(records: Records) -> Iterator[Signal]:
    """The tool ran well and says that it found nothing: an empty list or object, or one without rows."""
    for request in records.requests:
        if _ran(request) and request.outcome is not None and is_empty(request.outcome.result):
            yield _about(request, f"nothing for {request.arguments}")


def _failed(records: Records, kind: ToolErrorType) -> Iterator[Signal]:
    for request in records.requests:
        if _is(request, kind) and request.outcome is not None:
            yield _about(request, request.outcome.error or "")


def _is(request: ToolRequest, kind: ToolErrorType) -> bool:
    return request.outcome is not None and request.outcome.error_type == kind


def _ran(request: ToolRequest) -> bool:
    return request.outcome is not None and request.outcome.error is None


def _about(request: ToolRequest, detail: str) -> Signal:
    return Signal(request.call.id, f"{request.name}: {detail}", request.tool_call_id)
