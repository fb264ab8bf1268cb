"""A routed call goes straight to the gateway, with the rollout's token, whatever the app's client adds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest
import requests
from openai import AsyncOpenAI, OpenAI

from lightning_core.testing.server import GatewayDouble
from lightning_core.tracing.scope import Scope, agent, read_unseen, rollout_scope

pytestmark = pytest.mark.usefixtures("tagging")
NOWHERE = "http://127.0.0.1:1"
"""No proxy listens there."""
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, NOWHERE)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def by_sdk(url: str, http_client: httpx.Client | None = None) -> None:
    with OpenAI(api_key="sk-mine", base_url=url, max_retries=0, http_client=http_client) as client:
        for _ in range(2):
            client.chat.completions.create(**ASKED)


def by_async_sdk(url: str, http_client: httpx.AsyncClient | None = None) -> None:
    async def send() -> None:
        async with AsyncOpenAI(
            api_key="sk-mine", base_url=url, max_retries=0, http_client=http_client
        ) as client:
            for _ in range(2):
                await client.chat.completions.create(**ASKED)

    asyncio.run(send())


def by_httpx(url: str, *, library: Any = httpx, **options: Any) -> None:
    with library.Client(**options) as client:
        for _ in range(2):
            client.post(f"{url}/chat/completions", json=ASKED).raise_for_status()


def by_requests(url: str, **options: str) -> None:
    with requests.Session() as session:
        session.proxies.update(options)
        for _ in range(2):
            session.post(f"{url}/chat/completions", json=ASKED, timeout=60).raise_for_status()


def fresh(request: httpx.Request) -> None:
    request.headers["Authorization"] = "Bearer sk-fresh"
    request.headers["X-Hook"] = "ran"


async def fresh_async(request: httpx.Request) -> None:
    fresh(request)


def arrived(gateway: GatewayDouble) -> set[tuple[str, str]]:
    assert len(gateway.seen) == 2
    return {(seen.headers["authorization"], seen.headers["x-lightning-agent"]) for seen in gateway.seen}


@pytest.fixture
def rollout(gateway: GatewayDouble) -> Iterator[None]:
    with rollout_scope(Scope("r1", 1, gateway.url, "token", ("writer",))), agent("writer"):
        yield


@pytest.mark.parametrize(
    "send",
    [
        lambda url: by_sdk(url, httpx.Client(proxy=NOWHERE)),
        lambda url: by_async_sdk(url, httpx.AsyncClient(proxy=NOWHERE)),
        lambda url: by_httpx(url, proxy=NOWHERE),
        lambda url: by_httpx(url, library=httpx2, proxy=NOWHERE),
        lambda url: by_httpx(url, mounts={"http://": httpx.HTTPTransport(proxy=NOWHERE)}),
        lambda url: by_requests(url, http=NOWHERE),
    ],
)
@pytest.mark.usefixtures("rollout")
def test_a_proxy_of_the_apps_client_is_left_out(send: Callable[[str], None], gateway: GatewayDouble) -> None:
    send("http://endpoint.invalid/v1")
    assert arrived(gateway) == {("Bearer token", "writer")}


@pytest.mark.parametrize("send", [by_sdk, by_async_sdk, by_httpx, by_requests])
@pytest.mark.usefixtures("rollout", "proxied")
def test_a_proxy_of_the_environment_is_left_out(send: Callable[[str], None], gateway: GatewayDouble) -> None:
    send("http://endpoint.invalid/v1")
    assert arrived(gateway) == {("Bearer token", "writer")}


@pytest.mark.parametrize(
    "send",
    [
        lambda url: by_sdk(url, httpx.Client(event_hooks={"request": [fresh]})),
        lambda url: by_async_sdk(url, httpx.AsyncClient(event_hooks={"request": [fresh_async]})),
        lambda url: by_httpx(url, event_hooks={"request": [fresh]}),
    ],
)
@pytest.mark.usefixtures("rollout")
def test_a_hook_that_gives_other_credentials_runs_and_does_not_replace_the_token(
    send: Callable[[str], None], gateway: GatewayDouble
) -> None:
    send("http://endpoint.invalid/v1")
    assert arrived(gateway) == {("Bearer token", "writer")}
    assert {seen.headers["x-hook"] for seen in gateway.seen} == {"ran"}


def test_calls_that_are_not_routed_keep_the_proxy_and_the_hooks(
    gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    client = httpx.Client(event_hooks={"request": [fresh]})
    with rollout_scope(Scope("r1", 1, gateway.url, "token", ("writer",))), agent("reader"):
        by_sdk(f"{hosted.url}/v1", client)
        with pytest.raises(httpx.ConnectError):
            by_httpx(f"{hosted.url}/v1", proxy=NOWHERE)
    assert {seen.headers["authorization"] for seen in hosted.seen} == {"Bearer sk-fresh"}
    assert gateway.seen == []


def test_a_call_that_aiohttp_can_send_by_a_proxy_alone_is_noticed(gateway: GatewayDouble) -> None:
    aiohttp = pytest.importorskip("aiohttp")

    async def send() -> None:
        async with aiohttp.ClientSession(proxy=NOWHERE) as session:
            await session.post("http://endpoint.invalid/v1/chat/completions", json=ASKED)

    scope = Scope("r1", 1, gateway.url, "token", ("writer",))
    with rollout_scope(scope), agent("writer"), pytest.raises(aiohttp.ClientConnectorError):
        asyncio.run(send())
    assert gateway.seen == []
    [(unseen, count)] = filter(None, map(read_unseen, scope.noticed()[1]))
    assert (unseen.library, unseen.host, count) == ("aiohttp", "endpoint.invalid", 1)
