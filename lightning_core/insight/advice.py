"""The first advice where no rollout earned anything: look at a reply.

From equal rewards nothing is learnt, and their cause is seldom in the training: the app can't read the
replies, the reward asks for all at once, or the model is too small.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from lightning_core.dialects import transcript
from lightning_core.experience.returns import reward_of
from lightning_core.insight.failures import is_cut
from lightning_core.records.types import Call, Rollout, Status

FEWEST: Final = 4
"""Rollouts below which nothing is said."""
_SHOWN: Final = 400
"""Characters of a prompt's last message and of a reply."""
TINY_KNOWS: Final = "the model 'tiny' knows only the SQLite questions of its examples: give model=\"smollm2\""


def nothing_earned(
    rollouts: Sequence[Rollout], calls: Mapping[str, Sequence[Call]], *, tiny: Collection[str | None] = ()
) -> str | None:
    """A reply and what to try, if none of these rollouts earned anything; else None. `tiny`: the policies
    whose model is the one that is shipped for the examples."""
    if len(rollouts) < FEWEST or any(reward_of(one) for one in rollouts):
        return None
    answered = [
        call
        for one in rollouts
        for call in calls.get(one.id, ())
        if call.trained and call.status == "completed" and call.choices
    ]
    if not answered and all(one.status is Status.FAILED for one in rollouts):
        return None  # the app broke before a model was asked: its own error says more
    lines = [f"None of {len(rollouts)} rollouts earned anything, and from equal rewards nothing is learnt."]
    if answered:
        lines += _reply(answered[0])
    return "\n".join(
        [*lines, "What to try, the likeliest first:", *(f"  - {each}" for each in _tries(answered, tiny))]
    )


def _reply(call: Call) -> list[str]:
    asked = _short(transcript.text(transcript.prompt(call)[-1:]))
    return [f"A reply of agent {call.agent!r}:", f"  asked    {asked}", f"  replied  {_replied(call)}"]


def _replied(call: Call) -> str:
    return _short(transcript.text(transcript.replies(call))) or "(nothing)"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _tries(answered: Sequence[Call], tiny: Collection[str | None]) -> Iterator[str]:
    if any(call.policy in tiny for call in answered):
        yield TINY_KNOWS
    yield (
        "the app can't read the reply: hold it to a schema (response_format; docs/first-hour.md says what "
        "frameworks call it), or give the prompt examples"
    )
    if cut := sum(map(is_cut, answered)):
        yield f"{cut} of {len(answered)} replies were cut at max_tokens: raise it, if the schema needs more"
    yield "the reply is partly right: give a part of the reward for a part of the way"
    yield "the reply makes no sense: take a larger model, or show it good replies first (SFT)"
