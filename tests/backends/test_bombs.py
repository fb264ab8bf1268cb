"""Constraints that would take the stack, the time or the memory of the process: refused, and no other request
sees anything of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.backends.serving import constraints
from lightning_core.backends.serving.constraints import Grammars, MaskMeter, Matcher, Words
from lightning_core.backends.serving.trials import Trials
from lightning_core.backends.weights.sources import load_tokenizer, tiny_folder
from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.errors import ConstraintError, EngineError, UnsupportedError
from tests.backends.bombs import BOMBS, PATTERNS_REFUSED, patterns, references, rules
from tests.backends.serving import ask, serving, user

PAIR = ChatRequest([], constraint=Constraint(regex="a{2,4}"))


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    tokenizer = load_tokenizer(tiny_folder())
    return Grammars(tokenizer, len(tokenizer))


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_by_name_and_the_next_constraint_is_read(grammars: Grammars, bomb: str) -> None:
    constraint, named = BOMBS[bomb]
    with pytest.raises(UnsupportedError, match=named):
        grammars.write(ChatRequest([], constraint=constraint))
    assert grammars.write(PAIR) is not None


def test_a_tool_with_such_parameters_is_refused_too(grammars: Grammars) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": references(1_000)}}
    with pytest.raises(UnsupportedError, match=r"calls of these tools: .* nested too deeply"):
        grammars.write(ChatRequest([], [tool], constraint=Constraint(tools=("add",))))


def test_what_is_large_and_harmless_is_read(grammars: Grammars) -> None:
    names = [f"value {i}" for i in range(10_000)]
    for constraint in (
        Constraint(schema=references(60)),
        Constraint(grammar=rules(200)),
        Constraint(schema={"enum": names}),
        Constraint(choice=tuple(names)),
        Constraint(
            schema={"type": "object", "properties": {name: {"type": "string"} for name in names[:500]}}
        ),
    ):
        grammar = grammars.write(ChatRequest([], constraint=constraint))
        assert grammar is not None
        matcher = grammars.start(grammar)
        matcher.fill(words(grammars))


def words(grammars: Grammars) -> Words:
    return np.zeros(grammars.words, np.uint32)


async def test_no_prompt_and_no_constraint_that_is_ready_waits_for_bombs(qwen: Path) -> None:
    """While bombs are tried, and more wait for their turn, others get replies."""
    async with serving(qwen) as backend:
        ready = {"constraint": PAIR.constraint, "max_tokens": 9}
        alone = await ask(backend, "hello", seed=1, **ready)
        bombs = [
            asyncio.create_task(ask(backend, "hello", constraint=Constraint(schema=patterns(20 + i))))
            for i in range(4)
        ]
        await asyncio.sleep(0.2)
        plain = await ask(backend, "hello", max_tokens=20)
        held = await ask(backend, "hello", seed=1, **ready)
        assert not any(bomb.done() for bomb in bombs[-2:])
        assert held.ids == alone.ids
        assert len(plain.ids) > 0
        await give_up(bombs)


async def test_one_rollouts_bombs_leave_another_rollout_its_turn(qwen: Path) -> None:
    async with serving(qwen) as backend:
        await ask(backend, "hello", constraint=PAIR.constraint, max_tokens=2)
        bombs = [
            asyncio.create_task(
                ask(backend, "hello", constraint=Constraint(schema=patterns(20 + i)), attempt=("odd", 1))
            )
            for i in range(4)
        ]
        await asyncio.sleep(0.1)
        fresh = Constraint(regex="b{2,4}")
        assert (await ask(backend, "hello", constraint=fresh, max_tokens=9, attempt=("even", 1))).ids
        assert sum(bomb.done() for bomb in bombs) < len(bombs)
        await give_up(bombs)


async def give_up(bombs: list[asyncio.Task[Any]]) -> None:
    for bomb in bombs:
        bomb.cancel()
    await asyncio.gather(*bombs, return_exceptions=True)


async def test_a_request_that_is_cancelled_ends_its_trial(qwen: Path) -> None:
    async with serving(qwen) as backend:
        await ask(backend, "hello", constraint=PAIR.constraint, max_tokens=2)
        processes = backend.upstream.grammars._trials.begin()
        assert processes is not None
        before = children(processes.pid)
        bomb = asyncio.create_task(backend.upstream.chat(asking(patterns(24))))
        await until(lambda: children(processes.pid) > before)
        bomb.cancel()
        with pytest.raises(asyncio.CancelledError):
            await bomb
        await until(lambda: children(processes.pid) == before)
        with pytest.raises(UnsupportedError, match=PATTERNS_REFUSED):  # it is not remembered as a verdict
            await backend.upstream.chat(asking(patterns(24)))


def asking(schema: dict[str, Any]) -> ChatRequest:
    return ChatRequest(user("hello"), constraint=Constraint(schema=schema))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  of another process, which sets no event
            await asyncio.sleep(0.01)


def children(group: int) -> int:
    """Processes of a group that run."""
    found = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of = status.read_text().rpartition(")")[2].split()[:3]
            found += int(of) == group and state != "Z"
    return found


def test_processes_that_were_killed_start_again(grammars: Grammars) -> None:
    assert grammars.write(PAIR)
    processes = grammars._trials.begin()
    assert processes is not None
    os.killpg(processes.pid, 9)
    fresh = [ChatRequest([], constraint=Constraint(regex=f"c{{2,{i}}}")) for i in (3, 4)]
    with pytest.raises(EngineError, match="send the request again"):
        grammars.write(fresh[0])
    assert grammars.write(fresh[0])
    assert grammars.write(fresh[1])


def test_processes_end_with_their_owner() -> None:
    tokenizer = load_tokenizer(tiny_folder())
    owner = Grammars(tokenizer, len(tokenizer))
    owner.write(PAIR)
    processes = owner._trials.begin()
    assert processes is not None
    group = processes.pid
    assert children(group) == 2
    del owner, processes
    while children(group):
        time.sleep(0.01)


def test_without_a_constraint_no_process_starts() -> None:
    trials = Trials(dict)
    assert trials._running is None
    tokenizer = load_tokenizer(tiny_folder())
    grammars = Grammars(tokenizer, len(tokenizer))
    grammars.write(ChatRequest([]))
    grammars.replay('start: "a"', [], "here")
    assert grammars._trials._running is None


async def test_a_reply_whose_masks_take_too_long_ends_alone(
    qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "SECONDS", 0.0)
    monkeypatch.setattr(constraints, "EACH", 0.0)
    async with serving(qwen) as backend:
        with pytest.raises(ConstraintError, match="s of processor time for 0 tokens"):
            await ask(backend, "hello", constraint=PAIR.constraint, max_tokens=9)
        assert (await ask(backend, "hello", max_tokens=9)).ids
        grammar = backend.upstream.grammars.write(PAIR)
        assert grammar is not None
        token = backend.upstream.model.tokenizer.convert_tokens_to_ids("a")
        assert len(backend.upstream.grammars.replay(grammar, [token], "here")) == 1  # not of a recorded one


def test_a_token_that_the_library_would_take_seconds_for_ends_its_reply(grammars: Grammars) -> None:
    """The next reply begins afresh, as all replies under a grammar share what the library may spend."""
    late = Constraint(grammar="start: /[bc]{50}/ /(a{1000}){1000}/")
    grammar = grammars.write(ChatRequest([], constraint=late))
    assert grammar is not None
    (token,) = grammars._tokenizer.encode("b", add_special_tokens=False)
    for _ in range(2):
        matcher = grammars.start(grammar)
        walk(matcher, token, words(grammars), 20)  # not yet in sight
        with pytest.raises(ConstraintError, match="the grammar of this reply"):
            walk(matcher, token, words(grammars), 40)


async def test_the_replies_to_one_request_share_their_time(qwen: Path) -> None:
    async with serving(qwen) as backend:
        grammars = backend.upstream.grammars
        grammar = grammars.write(PAIR)
        assert grammar is not None
        token = backend.upstream.model.tokenizer.convert_tokens_to_ids("a")
        first, second = backend.upstream._starts(grammar, 2)
        assert first is not None
        assert second is not None
        walk(first, token, words(grammars), 2)
        walk(second, token, words(grammars), 2)
        assert first._meter is second._meter
        assert isinstance(first._meter, MaskMeter)
        assert first._meter.tokens == 4
        assert first._meter.spent > 0.0


def walk(matcher: Matcher, token: int, into: Words, many: int) -> None:
    for _ in range(many):
        matcher.fill(into)
        matcher.take(token)
