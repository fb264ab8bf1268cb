from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextvars import copy_context

import pytest

from lightning_core.errors import ConfigError
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


def name() -> str | None:
    who = current_agent()
    return who.agent if who else None


async def test_a_function_of_either_kind_can_be_named_and_a_generator_can_not() -> None:
    @agent("planner")
    def plan(depth: int) -> list[str | None]:
        return [name(), *(plan(depth - 1) if depth else [])]

    @agent("writer")
    async def write(inside: str) -> tuple[str | None, str | None, str | None]:
        before = name()
        await asyncio.sleep(0)
        with agent(inside):
            return before, name(), inside

    assert plan(1) == ["planner", "planner"]
    both = tuple(await asyncio.gather(write("a"), write("b")))
    assert both == (("writer", "a", "a"), ("writer", "b", "b"))
    assert write.__name__ == "write"
    assert name() is None
    with pytest.raises(ConfigError, match=r"can't decorate .*pieces, as it is a generator"):

        @agent("writer")
        def pieces() -> Iterator[int]:
            yield 1


async def test_a_block_that_a_generator_never_finished_can_be_closed_in_another_context() -> None:
    async def pieces() -> AsyncGenerator[str | None]:
        with agent("writer"):
            yield name()

    with agent("reader"):
        open_ones = pieces()
        assert await asyncio.wait_for(anext(open_ones), 5) == "writer"
        await open_ones.aclose()
        assert name() == "reader"


@pytest.mark.parametrize(
    "name", ["plain", "two words", " edge ", "a/b?c=d&e", "éà", "检查", "100%", "a\r\nb"]
)
def test_any_agent_name_survives_a_header(name: str) -> None:
    value = encode_name(name)
    assert value.isascii()
    assert not set(value) & set(" /?\r\n")
    assert decode_name(value) == name
