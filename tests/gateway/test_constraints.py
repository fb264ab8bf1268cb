"""Constraints on a reply, as the gateway hands them to the engine and records them."""

from __future__ import annotations

import pytest

from lightning_core.dialects.upstream import Constraint


def test_a_constraint_is_exactly_one_thing() -> None:
    assert Constraint(schema={"type": "object"}).kind == "schema"
    assert Constraint(tools=("look_up",), parallel=False).kind == "tools"
    for given in ({}, {"regex": "a", "choice": ("a", "b")}):
        with pytest.raises(ValueError, match="one of schema, regex, choice, grammar, tools"):
            Constraint(**given)  # type: ignore[arg-type]
