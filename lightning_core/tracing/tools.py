"""Runs of tools, as the plugins see them: noted in the rollout's scope, stored when its attempt ends.

A plugin reports from within the context that ran the tool (or under `rollout_of` that context), so a run
belongs to its rollout by identity. The link to the call that asked is the `tool_call_id`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from uuid import uuid4

from lightning_core.records.types import ToolErrorType, ToolEvent
from lightning_core.tracing.scope import current_scope, report


def report_tool(
    name: str,
    *,
    agent: str,
    framework: str,
    arguments: object = None,
    result: object = None,
    error: BaseException | str | None = None,
    error_type: ToolErrorType | None = None,
    tool_call_id: str | None = None,
    started_at: float | None = None,
    ended_at: float | None = None,
) -> None:
    """Note one run of a tool that has ended, or that was refused; outside a rollout nothing happens.

    `arguments` and `result` are kept as text: a string as it is, anything else as JSON, and what JSON
    can't hold by its `repr`. An `error` without a type is "raised". Times are in Unix seconds;
    by default the run has just ended and took no time. Nothing a tool was given or returned makes it raise.
    """
    scope = current_scope()
    if scope is None:
        return
    end = time.time() if ended_at is None else ended_at
    report(
        ToolEvent(
            id=uuid4().hex,
            rollout_id=scope.rollout_id,
            attempt=scope.attempt,
            agent=_text(agent) or "",
            framework=framework,
            name=_text(name) or "",
            arguments=_text(arguments) or "",
            result=_text(result),
            error=_described(error),
            error_type=error_type or ("raised" if error is not None else None),
            tool_call_id=_text(tool_call_id),
            started_at=end if started_at is None else started_at,
            ended_at=end,
        )
    )


def _text(value: object) -> str | None:
    """Text that can be stored, of anything: what a value's own methods raise is not the run's error."""
    if value is None:
        return None
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=repr, ensure_ascii=False)
    except Exception:  # JSON can't hold it
        text = _shown(value, repr)
    return text.encode(errors="replace").decode()  # half of a surrogate pair is no text


def _described(error: BaseException | str | None) -> str | None:
    if not isinstance(error, BaseException):
        return _text(error)
    return _text(f"{type(error).__name__}: {_shown(error, str)}")


def _shown(value: object, show: Callable[[object], str]) -> str:
    try:
        return show(value)
    except Exception:
        return object.__repr__(value)
