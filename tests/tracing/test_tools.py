"""Reports of tool runs: whatever a tool is given, returns or raises is kept as text."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.records.types import ToolEvent
from lightning_core.tracing.scope import Scope, rollout_scope
from lightning_core.tracing.tools import report_tool


class Broken(Exception):
    """Can be shown in no way."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


def circular() -> list[Any]:
    own: list[Any] = [1]
    own.append(own)
    return own


def reported(**run: Any) -> ToolEvent:
    with rollout_scope(Scope("r1", 1, "http://gateway", "token")) as scope:
        report_tool("look", agent="writer", framework="own", **run)
    (event,) = scope.seen
    assert isinstance(event, ToolEvent)
    return event


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ({"a": [1, None, "é"]}, '{"a": [1, null, "é"]}'),
        ({"a": {1}}, '{"a": "{1}"}'),
        ({(1, 2): "cell"}, "{(1, 2): 'cell'}"),
        (circular(), "[1, [...]]"),
        ("half \ud83d", "half ?"),
    ],
)
def test_any_value_is_kept_as_text(value: object, text: str) -> None:
    event = reported(arguments=value, result=value)
    assert (event.arguments, event.result) == (text, text)


def test_a_value_or_an_error_that_can_t_be_shown_is_named() -> None:
    event = reported(result=Broken(), error=Broken())
    assert event.result is not None
    assert event.error is not None
    assert "Broken object at" in event.result
    assert event.error.startswith("Broken: ")
    assert event.error_type == "raised"


def test_an_error_is_its_type_and_words() -> None:
    assert reported(error=ValueError("too long")).error == "ValueError: too long"
    assert reported(error="refused").error == "refused"
    assert reported().error is None
