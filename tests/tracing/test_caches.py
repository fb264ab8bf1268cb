"""Reply caches of frameworks: a trained agent's calls pass them by, and others' do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing import unseen as caches
from lightning_core.tracing.scope import Scope, agent, rollout_scope

pytestmark = pytest.mark.usefixtures("tagging")
TEXT = mark(rollout="r1", agent="writer")


def langchain(url: str, *, kind: str = "ChatOpenAI", later: bool = False) -> Any:
    """A model with LangChain's cache in memory."""
    openai, cache = pytest.importorskip("langchain_openai"), pytest.importorskip("langchain_core.caches")
    options = {"model": "m", "api_key": "sk-mine", "base_url": f"{url}/v1", "cache": cache.InMemoryCache()}

    def run() -> None:
        with DefaultHttpxClient() as http:
            getattr(openai, kind)(http_client=http, **options).invoke(TEXT)

    async def run_later() -> None:
        async with DefaultAsyncHttpxClient() as http:
            await getattr(openai, kind)(http_async_client=http, **options).ainvoke(TEXT)

    return (lambda: asyncio.run(run_later())) if later else run


def langchain_completions(url: str) -> Any:
    return langchain(url, kind="OpenAI")


def langchain_completions_async(url: str) -> Any:
    return langchain(url, kind="OpenAI", later=True)


def langchain_async(url: str) -> Any:
    """The cache that is set for all models, async."""
    openai, cache = pytest.importorskip("langchain_openai"), pytest.importorskip("langchain_core.caches")
    settings = pytest.importorskip("langchain_core.globals")
    store = cache.InMemoryCache()

    async def run() -> None:
        settings.set_llm_cache(store)
        try:
            async with DefaultAsyncHttpxClient() as http:
                key = {"api_key": "sk-mine", "base_url": f"{url}/v1"}
                await openai.ChatOpenAI(model="m", http_async_client=http, **key).ainvoke(TEXT)
        finally:
            settings.set_llm_cache(None)

    return lambda: asyncio.run(run())


def autogen(url: str, *, stream: bool = False) -> Any:
    cache = pytest.importorskip("autogen_ext.models.cache")
    models, core = pytest.importorskip("autogen_ext.models.openai"), pytest.importorskip("autogen_core")
    can = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown"}
    said = core.models.UserMessage(content=TEXT, source="user")
    store = core.InMemoryStore()

    async def run() -> None:
        info = {**can, "structured_output": False}
        async with DefaultAsyncHttpxClient() as http:
            client = models.OpenAIChatCompletionClient(
                model="played", model_info=info, base_url=f"{url}/v1", api_key="sk-mine", http_client=http
            )
            cached = cache.ChatCompletionCache(client, store)
            if stream:
                async for _ in cached.create_stream([said]):
                    pass
            else:
                await cached.create([said])

    return lambda: asyncio.run(run())


def autogen_stream(url: str) -> Any:
    return autogen(url, stream=True)


def litellm(url: str) -> Any:
    library = pytest.importorskip("litellm")
    caching = pytest.importorskip("litellm.caching.caching")
    store = caching.Cache(type="local")

    def run() -> None:
        before, library.cache = library.cache, store
        try:
            with OpenAI(base_url=f"{url}/v1", api_key="sk-mine") as client:
                messages = [{"role": "user", "content": TEXT}]
                library.completion("openai/m", messages=messages, client=client, caching=True)
        finally:
            library.cache = before

    return run


def dspy(url: str, *, later: bool = False) -> Any:
    """DSPy's cache, which is on by default, and its own transport."""
    library = pytest.importorskip("dspy")
    library.configure_cache(enable_disk_cache=False)
    library.cache.reset_memory_cache()
    model = library.LM("openai/m", api_base=f"{url}/v1", api_key="sk-mine")
    return (lambda: asyncio.run(model.acall(TEXT))) if later else (lambda: model(TEXT))


def dspy_async(url: str) -> Any:
    return dspy(url, later=True)


APPS = {
    app.__name__: app
    for app in (
        *(langchain, langchain_async, langchain_completions, langchain_completions_async),
        *(autogen, autogen_stream, litellm, dspy, dspy_async),
    )
}


@pytest.mark.parametrize("app", APPS)
def test_a_trained_agent_is_answered_by_the_policy_each_time(
    app: str, gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    ask = APPS[app](hosted.url)
    for rollout in ("r1", "r2", "r3"):
        with rollout_scope(Scope(rollout, 1, gateway.url, "token", ("writer",))), agent("writer"):
            ask()
    assert [seen.headers["x-lightning-rollout"] for seen in gateway.seen] == ["r1", "r2", "r3"]
    assert hosted.seen == []


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("why", ["another agent", "kept", "outside a rollout"])
def test_a_cache_works_as_the_app_set_it_for_all_others(
    app: str, why: str, gateway: GatewayDouble, hosted: GatewayDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "kept":
        monkeypatch.setenv(caches.KEEP, "keep")
    ask = APPS[app](hosted.url)
    for rollout in ("r1", "r2", "r3"):
        if why == "outside a rollout":
            ask()
            continue
        name = "writer" if why == "kept" else "checker"
        with rollout_scope(Scope(rollout, 1, gateway.url, "token", ("writer",))), agent(name):
            ask()
    assert len(gateway.seen) + len(hosted.seen) == 1


def test_a_model_without_a_cache_is_the_apps_own_object(gateway: GatewayDouble) -> None:
    openai = pytest.importorskip("langchain_openai")

    class Counting(openai.ChatOpenAI):  # type: ignore[misc, name-defined]
        calls: int = 0

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super()._generate(*args, **kwargs)

    with DefaultHttpxClient() as http:
        model = Counting(model="m", http_client=http, api_key="sk-mine")
        with rollout_scope(Scope("r1", 1, gateway.url, "token", ("writer",))), agent("writer"):
            model.invoke(TEXT)
            model.invoke(TEXT)
    assert model.calls == len(gateway.seen) == 2
