"""Why rollouts failed: their errors grouped by kind and by the line of the user's code.

A stored error is text: `Type: message`, notes, then frames as `  at FILE:LINE in FUNCTION`, the innermost
last. It may come from another machine, so what is the user's code follows from the file's name alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lightning_core.records.types import Call, Record, Rollout, Status
from lightning_core.texts.masking import without_details

_FRAME = re.compile(r"^  at ((.+):\d+ in .+)$", re.MULTILINE)
"""A frame, and its file."""
_HINT = re.compile(r"^  hint: (.+)$", re.MULTILINE)
_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python3",
    "/lightning_core/",
    "/src/lightning_",
    "<",
)
_LONG = 300
"""Characters of an error that stand in one line."""
_SHORT = 80
"""The same behind a hint, which says more."""


class FailureReason(Record):
    """Failures of one kind."""

    error: str
    """Type and message of the first of them."""
    place: str | None = None
    """The innermost line of the user's code, as FILE:LINE in FUNCTION; None if the error names none."""
    hint: str | None = None
    """The cause and the remedy, where the calls show them; such failures are one kind."""
    count: int = 1
    rollout: str
    """Id of the newest of them."""

    @property
    def text(self) -> str:
        """Error and place on one line; a very long error is cut."""
        most = _LONG if self.hint is None else _SHORT
        error = self.error if len(self.error) <= most else f"{self.error[:most]}…"
        place = "" if self.place is None else f" (at {self.place})"
        return f"{error}{place}" if self.hint is None else f"{self.hint}; the app ended with {error}{place}"


def is_users(filename: str) -> bool:
    """Whether code in this file is the user's: not of a library, Python, this package or a plugin."""
    name = filename.replace("\\", "/")
    return not any(part in name for part in _LIBRARIES)


def reason_of(rollout: Rollout) -> FailureReason:
    """Why one rollout failed."""
    text = rollout.error or "no error was stored"
    places = [place for place, file in _FRAME.findall(text) if is_users(file)]
    hint = _HINT.search(text)
    return FailureReason(
        error=text.partition("\n")[0],
        place=places[-1] if places else None,
        hint=hint and hint[1],
        rollout=rollout.id,
    )


def kind_of(reason: FailureReason) -> tuple[str, str]:
    """Equal for failures of one cause: the hint, type and place, or the message without what varies."""
    if reason.hint is not None:
        return without_details(reason.hint), ""
    if reason.place is not None:
        return reason.error.partition(":")[0], reason.place
    return without_details(reason.error), ""


def is_cut(call: Call) -> bool:
    """Whether a reply ended because it was as long as it may be."""
    return any(choice.finish_reason == "length" for choice in call.choices)


def with_hint(error: str, calls: Iterable[Call]) -> str:
    """The error of an attempt, after its first line a hint.

    The hint says that its last reply was cut, or that a client has no key; without either the error stays.
    """
    answered = [call for call in calls if call.status == "completed" and call.choices]
    first, newline, rest = error.partition("\n")
    if answered and is_cut(answered[-1]):
        hint: str | None = _cut(answered[-1])
    else:
        hint = key_hint(first)
    if hint is None:
        return error
    return f"{first}\n  hint: {hint}{newline}{rest}"


def key_hint(error: str) -> str | None:
    """The advice for an error of a client without a key; None for another error."""
    found = _WITHOUT_KEY.search(error)
    if found is None:
        return None
    name = "ANTHROPIC_API_KEY" if found[1] is None else "OPENAI_API_KEY"
    return f"the app's client has no key; for trained agents any value will do: export {name}=none"


def _cut(call: Call) -> str:
    limit = next((call.request[name] for name in _LIMITS if call.request.get(name) is not None), None)
    bound = "the end of the context" if limit is None else f"max_tokens={limit}"
    do = "shorten the prompt, or raise `context`" if limit is None else "raise max_tokens, or ask for less"
    said = str((call.choices[0].message or {}).get("content") or "").lstrip()
    where = ""
    if said.startswith(("{", "[", "```")):
        where = " in the middle of its JSON"
        do += "; if what it says has no end, bound it in the schema (maxLength, or {1,3} in a pattern)"
    return f"the reply of agent {call.agent!r} was cut at {bound}{where}: {do}"


_WITHOUT_KEY = re.compile(
    r"(Missing credentials|api_key client option must be set|Set the `OPENAI_API_KEY`)"
    r"|Could not resolve authentication method"
)
"""Messages of OpenAI's SDKs and of Pydantic AI, the group, and of Anthropic's, for a client without a key."""
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class Refused(Record):
    """Calls of rollouts that were refused, because they asked for what can't be done."""

    count: int
    calls: int
    """All calls of these rollouts."""
    agent: str
    """The agent that made the first refused call."""
    error: str
    """Error of the first call."""

    @property
    def text(self) -> str:
        """All of it on one line."""
        return (
            f"{self.count} of {self.calls} LLM calls were refused, the first, of agent {self.agent!r}, with: "
            f"{' '.join(self.error.split())}"
        )


def find_refused(calls: Iterable[Call]) -> Refused | None:
    """The refused calls among these; None if there are none."""
    every = list(calls)
    refused = [call for call in every if call.status == "refused"]
    if not refused:
        return None
    first = min(refused, key=lambda call: call.started_at)
    return Refused(count=len(refused), calls=len(every), agent=first.agent, error=first.error or "no reason")


def group_failures(rollouts: Iterable[Rollout]) -> list[FailureReason]:
    """The reasons of the failed rollouts among these, the most frequent first."""
    groups: dict[tuple[str, str], FailureReason] = {}
    for rollout in rollouts:
        if rollout.status is Status.FAILED:
            reason = reason_of(rollout)
            kind = kind_of(reason)
            count = groups[kind].count + 1 if kind in groups else 1
            groups[kind] = groups.get(kind, reason).model_copy(update={"count": count, "rollout": rollout.id})
    return sorted(groups.values(), key=lambda reason: -reason.count)
