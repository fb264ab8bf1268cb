from __future__ import annotations

from contextvars import copy_context

import pytest

from lightning_core.tracing.headers import decode_name, encode_name
from lightning_core.tracing.scope import (
    Scope,
    agent,
    current_agent,
    current_scope,
    rollout_of,
    rollout_scope,
)


def scope(agents: tuple[str, ...] | None = None) -> Scope:
    return Scope("r1", 1, "http://gateway", "token", agents)


def test_agents_are_names_or_globs_and_none_is_all() -> None:
    assert scope().trains("anyone")
    assert scope(("write_*", "sql")).trains("write_query")
    assert scope(("write_*", "sql")).trains("sql")
    assert not scope(("write_*", "sql")).trains("SQL")
    assert scope(("Analyst [US]",)).trains("Analyst [US]")
    assert not scope(()).trains("anyone")


def test_scopes_nest_and_end_with_their_block_even_by_exception() -> None:
    inner = Scope("r2", 1, "http://gateway", "token")
    with rollout_scope(scope()) as outer:
        with pytest.raises(KeyError), rollout_scope(inner):
            raise KeyError(current_scope() is inner)
        assert current_scope() is outer
    assert current_scope() is None


def test_a_scope_can_be_opened_again() -> None:
    for _ in range(2):
        with rollout_scope(scope()):
            assert current_scope() == scope()


def test_work_for_another_context_is_in_its_rollout_as_long_as_that_runs() -> None:
    nowhere = copy_context()
    with rollout_scope(Scope("r2", 1, "http://gateway", "token")) as other:
        asked = copy_context()
        with rollout_of(nowhere):
            assert current_scope() is None
        assert current_scope() is other
        with rollout_scope(scope()) as here:
            with rollout_of(asked):
                assert current_scope() is other
            assert current_scope() is here
    with rollout_of(asked):
        assert current_scope() is None


def test_an_inner_block_is_entered_later_than_an_outer_one() -> None:
    with agent("outer"):
        outer = current_agent()
        with agent("inner"):
            inner = current_agent()
        assert current_agent() is outer
    assert outer is not None
    assert inner is not None
    assert inner.entered > outer.entered


@pytest.mark.parametrize(
    "name", ["plain", "two words", " edge ", "a/b?c=d&e", "éà", "检查", "100%", "a\r\nb"]
)
def test_any_agent_name_survives_a_header(name: str) -> None:
    value = encode_name(name)
    assert value.isascii()
    assert not set(value) & set(" /?\r\n")
    assert decode_name(value) == name
