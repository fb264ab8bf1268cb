"""Shared parts of several resources' bodies: kinds of fields, examples and answers."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import ConfigDict, Field, JsonValue, create_model

from lightning_core.errors import DataError
from lightning_core.records.types import Integer, Record

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
    """Describes an answer in the OpenAPI document, whose fields each have a type and a description."""
    made: dict[str, Any] = {
        field: (kind, Field(description=words)) for field, (kind, words) in fields.items()
    }
    return create_model(name, __base__=Record, __doc__=about, **made)


class Held(Record):
    """An attempt by name, in place of the key of its lease: an admin needs no proof."""

    rollout_id: Name
    attempt: Integer
    worker: Name


Key = Name | Held
Keys = Annotated[list[Key], Field(max_length=MOST_RECORDS)]
Nothing = answer("Nothing", "It is done.")


class FieldError(DataError):
    """A field that can't be used."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(f"{field} {words}")
        self.field = field
