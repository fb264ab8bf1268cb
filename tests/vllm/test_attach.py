"""Servers that were started elsewhere: taken if they can be used, refused by name if not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from aiohttp import ClientSession, UnixConnector, web
from aiohttp.test_utils import TestServer

from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.backends.vllm.client import SOCKET, Piece
from lightning_core.backends.vllm.dispatch import _write
from lightning_core.backends.vllm.server import ServerOptions, VllmServer
from lightning_core.backends.vllm.upstream import Replicas, VllmUpstream
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.errors import ConfigError, EngineError, GatewayError, UnsupportedError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.stores.sqlite import MemoryStore
from tests.backends.serving import serving, user


@pytest.fixture
def nobody() -> Iterator[Callable[[], str]]:
    """Gives addresses where nothing listens, and nothing can."""
    with ExitStack() as held:

        def address() -> str:
            found = held.enter_context(socket.socket())
            found.bind(("127.0.0.1", 0))
            return f"http://127.0.0.1:{found.getsockname()[1]}"

        yield address


async def test_a_server_that_is_away_is_named(nobody: Callable[[], str]) -> None:
    replicas = Replicas([nobody()], "tiny")
    with pytest.raises(
        EngineError, match=rf"{replicas.urls[0]}/v1/models does not answer: .*start vLLM there"
    ):
        await VllmUpstream("tiny", replicas).chat(ChatRequest(user("hi")))
    await replicas.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "megatron"},
        {"overrides": {"actor_rollout_ref.model.use_fused_kernels": True}},
        {"overrides": {"actor_rollout_ref.actor": {"ulysses_sequence_parallel_size": 2}}},
    ],
)
async def test_a_form_is_refused_by_name_where_the_update_has_no_masks(
    nobody: Callable[[], str], settings: dict[str, Any]
) -> None:
    replicas = Replicas([nobody()], "tiny")
    asked = ChatRequest(user("hi"), constraint=Constraint(regex="a"))
    unmasked = VerlSettings("tiny", **settings).unmasked
    with pytest.raises(UnsupportedError, match=r"form \(regex\) with .*(megatron|True|size=2).*could not"):
        await VllmUpstream("tiny", replicas, unmasked=unmasked).chat(asked)
    await replicas.close()


async def test_a_token_against_the_grammar_is_found_out(nobody: Callable[[], str]) -> None:
    """As of a server that does not know the option, and samples freely."""
    replicas = Replicas([nobody()], "tiny")
    grammars = VllmUpstream("tiny", replicas).grammars
    held = Completion(
        [5], SamplingOptions(max_tokens=9), CompletionRequest(), grammars.start('start: "SELECT"')
    )
    token = grammars._tokenizer.convert_tokens_to_ids("S")
    _write(held, Piece([token], [0.0]))
    with pytest.raises(EngineError, match=r"holds replies to no form.*backend guidance"):
        _write(held, Piece([token], [-1.0]))
    assert held.ids == [token]
    await replicas.close()


async def test_a_reply_waits_for_servers_only_so_long_and_then_names_them(nobody: Callable[[], str]) -> None:
    replicas = Replicas([nobody(), nobody()], "tiny", server_timeout=0.1, probe_seconds=0.02)
    while replicas.dead != replicas.urls:  # a reply finds that its server is away, or a probe does
        assert isinstance(await failed(replicas), EngineError)
        await asyncio.sleep(0.02)
    error = await failed(replicas)
    assert isinstance(error, EngineError)
    assert str(error).startswith("no server of model 'tiny' has answered for 0.1 s")
    assert all(url in str(error) for url in replicas.urls)
    await replicas.close()


async def failed(replicas: Replicas) -> BaseException | None:
    """The error of a reply."""
    completion = Completion([5], SamplingOptions(max_tokens=3), CompletionRequest())
    replicas.submit(completion, frozenset())
    while not completion.finished:
        await completion.request.wait()
    return completion.error


async def test_after_the_end_nothing_is_taken_and_what_ran_is_told(nobody: Callable[[], str]) -> None:
    replicas = Replicas([nobody()], "tiny")
    waiting = Completion([5], SamplingOptions(max_tokens=3), CompletionRequest())
    replicas.submit(waiting, frozenset())
    await replicas.close()
    await replicas.close()
    assert isinstance(waiting.error, GatewayError)
    with pytest.raises(GatewayError, match="was closed"):
        replicas.submit(Completion([5], SamplingOptions(max_tokens=3), CompletionRequest()), frozenset())


def test_no_address_and_no_room_are_refused() -> None:
    with pytest.raises(ConfigError, match="no servers"):
        Replicas([], "tiny")
    with pytest.raises(ConfigError, match="max_running=0 must be at least 1"):
        Replicas(["http://127.0.0.1:1"], "tiny", max_running=0)


async def test_another_kind_of_server_is_refused() -> None:
    async with serving(tiny_folder()) as backend:
        gateway = Gateway(backend.upstream, MemoryStore(), Tokens(b"0123456789abcdef"), agents=None)
        async with GatewayServer(gateway) as server:
            replicas = Replicas([server.url], "tiny")
            with pytest.raises(EngineError, match=f"{server.url}"):
                await replicas.check()
            await replicas.close()


@asynccontextmanager
async def without_token_ids(url: str) -> AsyncIterator[str]:
    """In front of a server, what makes of it one from before there were token ids in replies."""

    async def models(_: web.Request) -> web.Response:
        async with session.get("http://localhost/v1/models") as reply:
            return web.json_response(await reply.json())

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        del body["return_token_ids"]
        async with session.post("http://localhost/v1/completions", json=body) as reply:
            return web.json_response(await reply.json())

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", complete)])
    there = UnixConnector(url.removeprefix(SOCKET))
    async with ClientSession(connector=there) as session, TestServer(app) as old:
        yield str(old.make_url("")).rstrip("/")


async def test_a_server_whose_replies_can_not_be_trained_on_is_refused() -> None:
    pytest.importorskip("vllm")
    raw = ServerOptions(dtype="float32", extra=("--logprobs-mode", "raw_logprobs"))
    server = VllmServer(tiny_folder(), options=raw)
    try:
        await server.start()
        await refused(server.url, "tiny", "start it with --logprobs-mode processed_logprobs")
        await refused(server.url, "gpt", r"does not serve 'gpt' but \['tiny'\]")
        async with without_token_ids(server.url) as old:
            await refused(old, "tiny", "answers without token ids .*use vLLM 0.10.2 or newer")
    finally:
        await server.close()


async def refused(url: str, model: str, words: str) -> None:
    replicas = Replicas([url], model)
    with pytest.raises(EngineError, match=f"{url} .*{words}"):
        await replicas.check()
    await replicas.close()
