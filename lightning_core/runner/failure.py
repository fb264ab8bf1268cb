"""An app's exception as text: what is stored as a rollout's `error`."""

from __future__ import annotations

import traceback
from pathlib import Path

FRAMES = 4
"""The innermost frames of the app that are kept: enough to find the line."""
MOST_CHARACTERS = 2000
NOTE = 1500
"""Characters of one note."""


def describe(error: BaseException) -> str:
    """`Type: message`, its notes, the parts of a group, and the last frames of the app's own code."""
    lines = [_summary(error), *_notes(error), *_parts(error), *_frames(error)]
    text = "\n".join(lines).encode("utf-8", "replace").decode()
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def _summary(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:
        message = "(its message can't be shown)"
    message = message[: MOST_CHARACTERS // 2]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _notes(error: BaseException) -> list[str]:
    """What was added to it; of a long note the end, as a program's last words are the ones that tell."""
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
    ours = str(Path(__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    return [f"  at {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames[-FRAMES:]]
