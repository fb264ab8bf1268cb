"""Calls that pass by the SDKs: each library's are routed, recorded or noticed, and never lost in silence."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import importlib.util
import json
import logging
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import requests
import urllib3

from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing import unseen
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, Unseen, agent, read_unseen, rollout_scope
from tests.gateway.conftest import open_house

pytestmark = pytest.mark.usefixtures("tagging")
Send = Callable[[str, dict[str, Any], dict[str, str]], Any]
KEY = {"Authorization": "Bearer sk-mine", "X-Own": "kept"}


def by_httpx(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    with httpx.Client(timeout=60) as client:
        return client.post(url, json=body, headers=headers).json()


def by_httpx_async(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    async def send() -> Any:
        async with httpx.AsyncClient(timeout=60, headers=headers) as client:
            return (await client.post(url, json=body)).json()

    return asyncio.run(send())


def by_requests(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    return requests.post(url, json=body, headers=headers, timeout=60).json()


def by_urllib3(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    with urllib3.PoolManager() as pools:
        return pools.request("POST", url, json=body, headers=headers, timeout=60).json()


def by_aiohttp(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    import aiohttp

    async def send() -> Any:
        async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as reply:
            return json.loads(await reply.text())

    return asyncio.run(send())


def by_dspy(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    from dspy._vendor.lm15.transports import StdlibTransport, TransportRequest

    sent = [("Content-Type", "application/json"), *headers.items()]
    with StdlibTransport() as transport:
        request = TransportRequest("POST", url, sent, json.dumps(body).encode())
        with transport.stream(request) as reply:
            return json.loads(reply.read())


def by_urllib3_pool(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    at = urlsplit(url)
    with urllib3.HTTPConnectionPool(str(at.hostname), at.port) as pool:
        return pool.request("POST", at.path, json=body, headers=headers, timeout=60).json()


def by_urllib(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return json.load(reply)


def by_http_client(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    at = urlsplit(url)
    connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=60)
    connection.request("POST", at.path, json.dumps(body), headers)
    said = json.loads(connection.getresponse().read())
    connection.close()
    return said


ROUTING = {
    "httpx": by_httpx,
    "httpx async": by_httpx_async,
    "requests": by_requests,
    "urllib3": by_urllib3,
    "aiohttp": by_aiohttp,
    "dspy": by_dspy,
}
NOTICING = {
    "requests": by_requests,
    "urllib3": by_urllib3,
    "aiohttp": by_aiohttp,
    "dspy": by_dspy,
    "urllib3 pool": by_urllib3_pool,
    "http.client urllib": by_urllib,
    "http.client": by_http_client,
}

for library in ("aiohttp", "dspy"):
    if importlib.util.find_spec(library) is None:
        del ROUTING[library], NOTICING[library]


def chat(name: str = "writer", rollout: str = "r1") -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": mark(rollout=rollout, agent=name)}]}


def scope_at(gateway: GatewayDouble, *agents: str) -> Scope:
    return Scope("r1", 1, gateway.url, "token", agents or None)


def noticed(scope: Scope) -> dict[Unseen, int]:
    return dict(found for event in scope.noticed()[1] if (found := read_unseen(event)))


@pytest.mark.parametrize("library", ROUTING)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_trained_agents_call_goes_to_the_gateway(
    library: str, path: str, gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    scope = scope_at(gateway, "writer")
    with rollout_scope(scope), agent("writer"):
        said = ROUTING[library](hosted.url + path, {**chat(), "max_tokens": 9}, KEY)
    assert said["id"]
    assert hosted.seen == []
    [seen] = gateway.seen
    assert (seen.path, seen.headers["x-lightning-agent"], seen.headers["x-own"]) == (path, "writer", "kept")
    assert "sk-mine" not in str(seen.headers)
    assert "token" in str(seen.headers)
    assert seen.tagged().rollout == "r1"
    assert noticed(scope) == {}


@pytest.mark.parametrize("library", NOTICING)
def test_another_agents_call_stays_and_is_noticed_once(
    library: str, gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    scope = scope_at(gateway, "writer")
    with rollout_scope(scope), agent("checker"):
        NOTICING[library](f"{hosted.url}/v1/chat/completions", chat("checker"), KEY)
        NOTICING[library](f"{hosted.url}/v1/chat/completions", chat("checker"), KEY)
    assert gateway.seen == []
    assert len(hosted.seen) == 2
    netloc = urlsplit(hosted.url).netloc
    assert noticed(scope) == {Unseen(netloc, library.split()[0], "checker", "/v1/chat/completions"): 2}


@pytest.mark.parametrize("library", ["httpx", "httpx async"])
def test_another_agents_call_by_httpx_is_recorded_where_it_stays(
    library: str, gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    scope = scope_at(gateway, "writer")
    with rollout_scope(scope), agent("checker"):
        said = ROUTING[library](f"{hosted.url}/v1/chat/completions", chat("checker"), KEY)
    [call], events = scope.noticed()
    assert (call.agent, call.status, call.endpoint) == ("checker", "completed", f"{hosted.url}/v1")
    assert call.response_id == said["id"]
    assert events == []
    assert gateway.seen == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1beta/models/gemini:generateContent", {"contents": []}),
        ("/api/chat", {"model": "llama3", "messages": []}),
        ("/model/anthropic.claude/invoke", {"max_tokens": 9}),
        ("/v2/chat", {"model": "command", "messages": []}),
        ("/generate", {"inputs": "Once"}),
    ],
)
@pytest.mark.parametrize("library", [name for name in ROUTING if name != "httpx async"])
def test_an_api_that_the_gateway_does_not_speak_is_noticed_of_a_trained_agent_too(
    library: str, path: str, body: dict[str, Any], gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    scope = scope_at(gateway)
    with rollout_scope(scope), agent("writer"), suppress(ValueError):
        ROUTING[library](hosted.url + path, body, KEY)  # 404: this endpoint does not speak it either
    [(found, count)] = noticed(scope).items()
    assert (found.library, found.agent, found.path, count) == (library, "writer", path, 1)
    assert gateway.seen == []


@pytest.mark.parametrize("library", [name for name in ROUTING if name != "httpx async"])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/messages", {"to": "+44", "text": "hi"}), ("/v1/embeddings", {"model": "m", "input": "hi"})],
)
def test_what_is_no_call_of_a_model_is_left_alone(
    library: str, path: str, body: dict[str, Any], gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    scope = scope_at(gateway)
    with rollout_scope(scope), agent("writer"), suppress(ValueError):
        ROUTING[library](hosted.url + path, body, KEY)
    assert noticed(scope) == {}
    assert gateway.seen == []


def test_a_call_that_the_app_sends_to_the_gateway_itself_is_left_alone(gateway: GatewayDouble) -> None:
    scope = scope_at(gateway)
    with rollout_scope(scope):
        for send in {**ROUTING, **NOTICING}.values():
            send(f"{gateway.url}/rollouts/r1/agents/own/v1/chat/completions", chat("own"), {})
    assert noticed(scope) == {}
    assert scope.noticed()[0] == []
    assert len(gateway.seen) == len({**ROUTING, **NOTICING})


@pytest.mark.parametrize("library", {**ROUTING, **NOTICING})
def test_a_call_outside_every_rollout_is_noticed_with_the_apps_own_line(
    library: str, gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()

    def work() -> None:
        while (job := jobs.get()) is not None:
            job()

    worker = threading.Thread(target=work)
    worker.start()  # before the rollout: it has the context of none
    send = {**ROUTING, **NOTICING}[library]
    scope = scope_at(gateway)
    with rollout_scope(scope):
        jobs.put(lambda: send(f"{hosted.url}/v1/chat/completions", chat(), KEY))
        jobs.put(None)
        worker.join()
    assert gateway.seen == []
    assert len(hosted.seen) == 1
    [(found, count)] = noticed(scope).items()
    assert found.line.startswith(__file__)
    assert count == 1
    assert "copy_context" in found.said()
    assert __file__ in found.said()


def test_while_no_rollout_runs_nothing_is_noticed(hosted: GatewayDouble, gateway: GatewayDouble) -> None:
    for send in {**ROUTING, **NOTICING}.values():
        send(f"{hosted.url}/v1/chat/completions", chat(), KEY)
    scope = scope_at(gateway)
    with rollout_scope(scope):
        pass
    assert noticed(scope) == {}


def test_a_library_is_restored_when_tagging_ends(gateway: GatewayDouble) -> None:
    instrumentation = instrument(lambda: None)
    for module, (owner, name, _) in unseen.LIBRARIES.items():
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            assert hasattr(getattr(getattr(importlib.import_module(module), owner), name), "__wrapped__")
    instrumentation.uninstall()


def test_a_library_without_its_step_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        unseen, "LIBRARIES", {"requests.sessions": ("Session", "gone", unseen.LIBRARIES["http.client"][2])}
    )
    with caplog.at_level(logging.WARNING), instrument(lambda: None):
        pass
    assert "requests.sessions has no Session.gone" in caplog.text


async def test_routed_calls_of_every_library_are_recorded_by_the_real_gateway() -> None:
    async with open_house() as house:
        token = await house.rollout("r1")
        scope = Scope("r1", 1, house.url, token)
        for name, send in ROUTING.items():
            with rollout_scope(scope), agent(name):
                # an address where nothing listens: the call must not go there
                await asyncio.to_thread(send, "http://127.0.0.1:1/v1/chat/completions", chat(name), KEY)
        calls = await house.calls()
    assert sorted(call.agent for call in calls) == sorted(ROUTING)
    assert all(call.status == "completed" and call.trained for call in calls)
