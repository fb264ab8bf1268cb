"""SQL that the database refuses is the fault of the call that wrote it."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.air.sql import sql_error
from lightning_core.types import Span
from tests.air.records import asks, call, recorded, span, where

BAD = "SELECT nam FROM boats"
WHY = "OperationalError: no such column: nam"


def refused(statement: str = BAD, name: str = "db__query__text") -> Span:
    return span(WHY, **{name: statement})


def found(*items: Any) -> list[tuple[str, str | None]]:
    return where(sql_error(recorded(*items)))


@pytest.mark.parametrize(
    "reply",
    [
        BAD,
        f"  {BAD};\n",
        "SELECT nam\n  FROM boats",
        f"```sql\n{BAD};\n```",
        f"```\n{BAD}\n```",
        f"Here it is:\n```sqlite\n{BAD}\n```\nDone.",
        f"<think>\nboats, so\n</think>\n\n{BAD}",
        f'{{"sql": "{BAD}", "sure": true}}',
    ],
)
def test_the_reply_that_holds_the_statement_is_found(reply: str) -> None:
    assert found(call(1, text=reply), call(2, text="SELECT name FROM boats"), refused()) == [("c1", None)]


def test_the_statement_is_read_in_both_conventions_and_the_reason_says_what_the_database_said() -> None:
    for name in ("db__query__text", "db__statement"):
        (signal,) = sql_error(recorded(call(1, text=BAD), refused(name=name)))
        assert signal.detail == f"no such column: nam: {BAD}"


def test_a_statement_in_a_tool_s_arguments_is_found() -> None:
    asking = call(1, asks(name="run_sql", arguments={"query": f"{BAD};", "limit": 3}))
    assert found(asking, refused()) == [("c1", "t1")]


def test_every_call_that_wrote_it_is_found_once() -> None:
    spans = refused(), refused().model_copy(update={"id": "s2"})
    assert found(call(1, text=BAD), call(2, text=BAD), *spans) == [("c1", None), ("c2", None)]


def test_a_quotation_is_no_query() -> None:
    shown = f"Question: names?\nSQL: {BAD}\nResult: Error: no such column: nam"
    review = call(2, text=f"This can't run:\n```sql\n{BAD}\n```", prompt=shown)
    assert found(call(1, text=BAD), review, refused()) == [("c1", None)]
    # but the same query given again as the whole reply is a query
    assert found(call(1, text=BAD), call(2, text=BAD, prompt=shown), refused()) == [
        ("c1", None),
        ("c2", None),
    ]


@pytest.mark.parametrize(
    "reply", ["", "ok", f"{BAD} WHERE id = 1", f"I would not write {BAD}.", BAD.replace("nam", "NAM")]
)
def test_another_text_is_not_linked(reply: str) -> None:
    assert found(call(1, text=reply), refused(), refused("")) == []


def test_a_statement_that_also_ran_well_was_not_at_fault() -> None:
    assert found(call(1, text=BAD), refused(), span(None, db__statement=f"{BAD};")) == []


def test_a_span_that_is_no_database_s_says_nothing() -> None:
    assert found(call(1, text=BAD), span(WHY, code=BAD), span(WHY, db__statement=3)) == []
