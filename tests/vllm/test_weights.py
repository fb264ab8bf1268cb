"""New weights in place: what answers afterwards, what waits meanwhile, what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from lightning_core.backends.chat.folder import tiny_folder
from lightning_core.backends.vllm.engine import VllmEngine
from lightning_core.errors import EngineError
from lightning_core.upstream import ChatRequest
from tests.backends.serving import ask_all, plain_logprobs, user
from tests.vllm.weights import PROMPT, all_agree, changed, tiny, until

OTHER_MODEL = Path(__file__).parents[2] / "examples/calc/policy"


async def test_every_server_answers_by_new_weights(engine: VllmEngine, tmp_path: Path) -> None:
    start = engine.replicas.policy_version
    old = tiny()
    await all_agree(engine, old, start)
    for step in (1, 2):
        new = changed(tmp_path / str(step), step)
        assert await engine.refresh(tmp_path / str(step)) == start + step
        await all_agree(engine, new, start + step)
    await engine.refresh(tiny_folder())
    await all_agree(engine, old, start + 3)


async def test_what_runs_ends_by_the_old_weights_and_what_comes_waits(
    engine: VllmEngine, rambler: Any, tmp_path: Path
) -> None:
    before = engine.replicas.policy_version
    new = changed(tmp_path / "new", 3)
    generation = await engine.upstream.chat(ChatRequest([], prompt=PROMPT, max_tokens=300))
    deltas = aiter(generation)
    seen = [await anext(deltas)]
    refreshing = asyncio.create_task(engine.refresh(tmp_path / "new"))
    await until(lambda: engine.replicas.held)
    late = asyncio.create_task(ask_all(engine, user("hi"), n=3, max_tokens=5))
    seen += [delta async for delta in deltas]
    ids = [i for delta in seen for i in delta.token_ids]
    logprobs = [p for delta in seen for p in delta.logprobs]
    assert generation.policy_version == before
    assert logprobs == pytest.approx(plain_logprobs(rambler, PROMPT, ids), abs=1e-3)
    assert await refreshing == before + 1
    for reply in await late:
        assert reply.policy_version == before + 1
        assert reply.logprobs == pytest.approx(plain_logprobs(new, reply.prompt_ids, reply.ids), abs=1e-3)


async def test_weights_of_another_model_are_refused_and_the_old_ones_put_back(engine: VllmEngine) -> None:
    before = engine.replicas.policy_version
    old = tiny()
    with pytest.raises(
        EngineError, match=f"no server took version {before + 1} .* can't take the weights in"
    ):
        await engine.refresh(OTHER_MODEL)
    await until(lambda: not engine.replicas.dead)
    await all_agree(engine, old, before)
