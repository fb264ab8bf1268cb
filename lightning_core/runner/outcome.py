"""How one run of the user's function ended: a reward, or the text of what went wrong."""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_core.errors import RewardError
from lightning_core.insight.failures import find_refused, is_users
from lightning_core.records.types import REWARD_RANGE, Call, Task
from lightning_core.tracing.rewards import as_reward

Solve = Callable[[Task], Any]
"""Runs the app once on a task and returns (or is awaited for) the reward."""

FRAMES = 4
"""Frames that are kept: the innermost ones, and the innermost of the user's own code."""
MOST_CHARACTERS = 2000
NOTE = 1500
"""Characters of one note."""


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """How an attempt ended."""

    reward: float | None = None
    """The function's return value; None if it returned None, or failed."""
    error: str | None = None
    """Why it failed, as it is stored; None if it did not."""
    world: bool = False
    """Whether what failed was the world around the app: see `is_of_world`."""
    left_behind: bool = False
    """Whether it could not be ended and still runs; its outcome is then ignored."""


# rewards ------------------------------------------------------------------------------------
def to_reward(value: object, task: Task, solve: Callable[..., object]) -> float:
    """A reward from a bool, int, float or a scalar of numpy or torch. Raises RewardError."""
    number = as_reward(value)
    if number is None:
        raise RewardError(
            f"the reward of task {task.id!r} is {reprlib.repr(value)}, not {REWARD_RANGE}: "
            f"return one float from {name_of(solve)}, such as 1.0 when the task is solved and 0.0 when not"
        )
    return number


def no_reward(task: Task, solve: Callable[..., object]) -> RewardError:
    """Nothing was returned, and nothing was given otherwise."""
    hint = getattr(solve, "reward_hint", None) or (
        "return one float, call lightning.reward(value) inside it, or post one to LIGHTNING_REWARD_URL"
    )
    return RewardError(
        f"task {task.id!r} ended without a final reward, and {name_of(solve)} returned None: {hint}. (A "
        "judge scores training rollouts only: evaluations need a reward of their own, or leave validation "
        "empty)"
    )


def name_of(solve: object) -> str:
    """Returns the name of the user's function in messages."""
    return getattr(solve, "__name__", type(solve).__name__)


# errors -------------------------------------------------------------------------------------
def failed(error: BaseException) -> AttemptOutcome:
    """The outcome of a function that raised."""
    return AttemptOutcome(error=describe(error), world=is_of_world(error))


def is_of_world(error: BaseException) -> bool:
    """Whether a server or a connection failed, and not the app: by the types of the error and its causes.

    A server's error is known by its status: 408, 429, 5xx. A bare TimeoutError is the app's own: what it
    waited for, such as a query of the policy's, may never have ended.
    """
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        status = _status(each)
        if _AWAY.intersection(kind.__name__ for kind in type(each).__mro__):
            return True
        if status is not None and (status in (408, 429) or status >= 500):
            return True
        if isinstance(each, TimeoutError) and each.errno is not None:  # the system's, of a connection
            return True
        causes = each.__cause__, None if each.__suppress_context__ else each.__context__
        waiting += filter(None, causes)
        waiting += getattr(each, "exceptions", ())
    return False


_AWAY = frozenset(
    {
        "ConnectionError",  # Python's own; also requests', urllib3's, redis'
        "APIConnectionError",  # openai, anthropic; with their time-outs
        "TransportError",  # httpx, httpx2; with their time-outs
        "ClientConnectionError",  # aiohttp
        "Timeout",  # requests
        "UnseenCallsError",  # calls went by; the policy has no part in that
    }
)
"""Classes by name, as the libraries need not be installed."""


def _status(error: BaseException) -> int | None:
    """The HTTP status of an answer that was raised as an error."""
    found = getattr(error, "status_code", None) or getattr(error, "status", None)
    found = found or getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else None


def describe(error: BaseException) -> str:
    """`Type: message`, its causes, its notes, the parts of a group, and its frames, the innermost last."""
    lines = [_summary(error), *_causes(error), *_notes(error), *_parts(error), *_frames(error)]
    text = "\n".join(lines).encode("utf-8", "replace").decode()
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def with_refused(error: str, calls: Iterable[Call]) -> str:
    """The error of an attempt, and how many of its calls were refused: the app may have hidden that."""
    refused = find_refused(calls)
    if refused is None or refused.error in error:
        return error
    return f"{error}\n  {refused.text[:NOTE]}"


def _summary(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:
        message = "(its message can't be shown)"
    message = message[: MOST_CHARACTERS // 2]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _causes(error: BaseException) -> list[str]:
    """Returns the causes of an error, such as a closed event loop behind an SDK's "Connection error."."""
    lines: list[str] = []
    cause = _cause(error)
    while cause is not None and len(lines) < FRAMES:
        lines.append(f"  caused by {_summary(cause)}")
        cause = _cause(cause)
    return list(dict.fromkeys(lines))  # each layer of an HTTP client says the same again


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _notes(error: BaseException) -> list[str]:
    """Its first notes; a long one is cut at its start, as a program's last lines tell the cause."""
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return [note if len(note) <= NOTE else "…" + note[1 - NOTE :] for note in notes[:FRAMES]]


def _parts(error: BaseException, indent: str = "  ") -> list[str]:
    if not isinstance(error, BaseExceptionGroup):
        return []
    return [
        line
        for part in error.exceptions[:FRAMES]
        for line in (f"{indent}- {_summary(part)}", *_parts(part, indent + "  "))
    ]


def _frames(error: BaseException) -> list[str]:
    ours = str(Path(__file__).parents[1])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    shown = frames[-FRAMES:]
    if not any(is_users(frame.filename) for frame in shown):
        own = [frame for frame in frames if is_users(frame.filename)]
        shown = [*own[-1:], *shown[len(own[-1:]) :]]
    return [f"  at {frame.filename}:{frame.lineno} in {frame.name}" for frame in shown]
