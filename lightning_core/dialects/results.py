"""The results of tools in a conversation: in the order of the calls that they answer.

Chat templates write results one after another, most without an id. So their order is all that tells the model
which call each answers, and apps that run tools at the same time send them as they end.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from lightning_core.dialects.lenient import Json
from lightning_core.dialects.strict import invalid, short


def in_call_order(messages: Iterable[Json], param: str) -> list[Json]:
    """The messages of a chat, each run of results in the order of their calls.

    Raises ApiError, which names `param`, for the result of a call that no message before it holds. A result
    without an id stays where it is, and so does any after calls without ids.
    """
    ordered: list[Json] = []
    run: list[Json] = []
    asked, places = dict[str | None, int](), count()
    for message in messages:
        if message.get("role") == "tool":
            run.append(message)
            continue
        ordered += _sorted(run, asked, param)
        run = []
        for call in message.get("tool_calls") or ():
            asked[_text(call.get("id")) if isinstance(call, dict) else None] = next(places)
        ordered.append(message)
    return [*ordered, *_sorted(run, asked, param)]


def _sorted(run: list[Json], asked: dict[str | None, int], param: str) -> list[Json]:
    ids = [_text(message.get("tool_call_id")) for message in run]
    if None in ids or None in asked:
        return run
    if (orphan := next((each for each in ids if each not in asked), None)) is not None:
        raise invalid(
            param,
            f"{param}: a tool's result answers {short(orphan)}, and no message before it holds a call with "
            "that id; send the assistant's message with the call too, or leave the result out",
        )
    return sorted(run, key=lambda message: asked[message["tool_call_id"]])


def _text(given: Any) -> str | None:
    return given if isinstance(given, str) else None
