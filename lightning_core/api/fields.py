"""What the bodies of several resources have in common: kinds of fields, examples, answers, and bounds.

The bounds are of values that the types allow and a store can't keep: they are refused here, with the
field named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from lightning_core.errors import DataError
from lightning_core.types import Record

MOST_RECORDS: Final = 10_000
"""In one request."""
LONGEST_WAIT: Final = 60.0
"""Seconds of a long-poll: proxies cut what is silent for longer."""
_DAY: Final = 86_400.0
T = TypeVar("T")
Some = Annotated[list[T], Field(min_length=1, max_length=MOST_RECORDS)]
Name = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=_DAY)]
Wait = Annotated[float, Field(ge=0, le=LONGEST_WAIT)]
KEY_EXAMPLE: Final = "ll-WyJydW4iLCJyMSIsMSwidzEiXQ==.c2lnbmF0dXJl"
NEXT: Final = (str | None, "Give it as `after` to get the rest; None if this was the last page.")


def example(**fields: JsonValue) -> ConfigDict:
    """The example of a body in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


def answer(name: str, about: str, **fields: tuple[Any, str]) -> type[Record]:
    """What the OpenAPI document says of an answer, whose fields each have a type and a description."""
    made: dict[str, Any] = {
        field: (kind, Field(description=words)) for field, (kind, words) in fields.items()
    }
    return create_model(name, __base__=Record, __doc__=about, **made)


class Held(Record):
    """An attempt by name, in place of the key of its lease: an admin needs no proof."""

    rollout_id: Name
    attempt: int
    worker: Name


Key = Name | Held
Keys = Annotated[list[Key], Field(max_length=MOST_RECORDS)]
Nothing = answer("Nothing", "It is done.")


# values that no store keeps -------------------------------------------------------------------------
_LARGEST: Final = 2**63 - 1
_MAY_BE_ANY_NUMBER: Final = ("values", "metrics", "logprobs")
"""A metric may be NaN, a log-probability minus infinity."""


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
