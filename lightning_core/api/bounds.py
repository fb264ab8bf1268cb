"""Values that the types allow and a store can't keep: refused here, with the field named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from pydantic import BaseModel

from lightning_core.errors import DataError
from lightning_core.types import Call, Rollout, Status

_LARGEST: Final = 2**63 - 1
_LARGEST_ID: Final = 2**32 - 1
_MAY_BE_ANY_NUMBER: Final = ("values", "metrics", "logprobs")
"""A metric may be NaN, a log-probability minus infinity."""
_OF_ENDED: Final = ("reward", "error", "finished_at")


class FieldError(DataError):
    """A field that can't be used."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(f"{field} {words}")
        self.field = field


def check_all(name: str, records: Sequence[BaseModel]) -> None:
    """Raise FieldError for the first number of these records that no store keeps; `name` is their field."""
    for place, record in enumerate(records):
        check(record, f"{name}[{place}]")


def check(record: BaseModel, place: str = "") -> None:
    """The same for one record."""
    for name, value in record:
        if name not in _MAY_BE_ANY_NUMBER:
            _check_value(value, f"{place}.{name}".lstrip("."))


def _check_value(value: object, place: str) -> None:
    if isinstance(value, BaseModel):
        check(value, place)
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
        check_all(place, value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise FieldError(place, f"is {value}, which is no finite number")
    elif isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        raise FieldError(place, f"is {value}, which is too large a number")


def check_new(rollouts: Sequence[Rollout]) -> None:
    """Raise FieldError unless all are queued and were never tried."""
    check_all("rollouts", rollouts)
    for place, rollout in enumerate(rollouts):
        name = f"rollouts[{place}]"
        if rollout.status is not Status.QUEUED or rollout.attempts:
            raise FieldError(
                f"{name}.status", "can't be given: what is enqueued is queued, and was not tried"
            )
        if rollout.max_attempts < 1:
            raise FieldError(f"{name}.max_attempts", f"is {rollout.max_attempts}; give 1 or more")
        for field in _OF_ENDED:
            if getattr(rollout, field) is not None:
                raise FieldError(f"{name}.{field}", "can't be given: what is enqueued has not ended")


def check_calls(calls: Sequence[Call], *, seen_only: bool) -> None:
    """Raise FieldError for a call that can't be stored. With `seen_only` none may claim to be the policy's:
    the token ids that are trained on come from the gateway alone."""
    check_all("calls", calls)
    for place, call in enumerate(calls):
        name = f"calls[{place}]"
        _check_ids(f"{name}.prompt_ids", call.prompt_ids)
        for index, choice in enumerate(call.choices):
            _check_ids(f"{name}.choices[{index}].completion_ids", choice.completion_ids)
        if seen_only and not call.endpoint:
            raise FieldError(
                f"{name}.endpoint",
                "is missing: say where the call went; the policy's calls are recorded by the gateway",
            )


def _check_ids(name: str, ids: Iterable[int] | None) -> None:
    for place, token in enumerate(ids or ()):
        if not 0 <= token <= _LARGEST_ID:
            raise FieldError(f"{name}[{place}]", f"is {token}; a token id is an integer from 0 to 2**32 - 1")
