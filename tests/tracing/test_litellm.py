"""LiteLLM's providers: a trained agent's calls are routed, another's recorded, and other APIs noticed."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import Scope, agent, read_unseen, rollout_scope

pytestmark = [
    pytest.mark.skipif(find_spec("litellm") is None, reason="not installed"),
    pytest.mark.usefixtures("tagging"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _its_clients_end_here() -> Iterator[None]:
    """It keeps its clients, and closes none."""
    yield
    import litellm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm.in_memory_llm_clients_cache.flush_cache()
        gc.collect()


SAID: Any = [{"role": "user", "content": mark(rollout="r1", agent="writer")}]
SPOKEN = ("openai/m", "hosted_vllm/m", "anthropic/m", "mistral/m", "together_ai/m", "groq/m", "openrouter/m")


def ask(model: str, server: GatewayDouble, **options: Any) -> Any:
    import litellm  # five seconds, which every worker would spend at collection

    base = server.url if model.startswith(("anthropic", "ollama", "gemini")) else f"{server.url}/v1"
    given = {"api_base": base, "api_key": "sk-mine", "timeout": 60, "max_retries": 0}
    return litellm.completion(model, messages=SAID, **given, **options)


def scope_at(server: GatewayDouble) -> Scope:
    return Scope("r1", 1, server.url, "token", ("writer",))


@pytest.mark.parametrize("model", SPOKEN)
def test_a_provider_whose_api_the_gateway_speaks_is_right(
    model: str, gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    scope = scope_at(gateway)
    with rollout_scope(scope), agent("writer"):
        ask(model, hosted)
    with rollout_scope(scope), agent("checker"):
        ask(model, hosted)
    assert [seen.headers["x-lightning-agent"] for seen in gateway.seen] == ["writer"]
    assert len(hosted.seen) == 1
    [call], events = scope.noticed()
    assert (call.agent, call.status, events) == ("checker", "completed", [])


def test_azure_is_right(gateway: GatewayDouble, hosted: GatewayDouble) -> None:
    with rollout_scope(scope_at(gateway)), agent("writer"):
        ask("azure/m", hosted, api_version="2024-10-21")
    assert [seen.path for seen in gateway.seen] == ["/v1/chat/completions"]
    assert hosted.seen == []


@pytest.mark.parametrize("model", ["ollama/m", "ollama_chat/m", "gemini/m"])
def test_a_provider_with_an_api_of_its_own_is_noticed(
    model: str, gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    import litellm

    scope = scope_at(gateway)
    with rollout_scope(scope), agent("writer"), pytest.raises(litellm.NotFoundError):
        ask(model, hosted)
    [found] = filter(None, map(read_unseen, scope.noticed()[1]))
    assert (found[0].agent, found[1], gateway.seen) == ("writer", 1, [])


def test_its_responses_and_its_async_calls_are_right_too(
    gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    import litellm

    given = {"api_base": f"{hosted.url}/v1", "api_key": "sk-mine", "timeout": 60}

    async def run() -> None:
        await litellm.aresponses(model="openai/m", input=SAID[0]["content"], **given)
        await litellm.acompletion("hosted_vllm/m", messages=SAID, **given)

    with rollout_scope(scope_at(gateway)), agent("writer"):
        litellm.responses(model="openai/m", input=SAID[0]["content"], **given)
        asyncio.run(run())
    assert [seen.path for seen in gateway.seen] == ["/v1/responses", "/v1/responses", "/v1/chat/completions"]
    assert hosted.seen == []


@pytest.mark.parametrize("model", ["openai/m", "anthropic/m"])
def test_the_model_that_the_agents_sdk_has_of_it_is_right(
    model: str, gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    agents = pytest.importorskip("agents")
    from agents.extensions.models.litellm_model import LitellmModel

    base = hosted.url if model.startswith("anthropic") else f"{hosted.url}/v1"
    writer = agents.Agent("writer", model=LitellmModel(model, base_url=base, api_key="sk-mine"))
    with rollout_scope(scope_at(gateway)), agent("writer"):
        asyncio.run(agents.Runner.run(writer, SAID[0]["content"]))
    assert [seen.headers["x-lightning-agent"] for seen in gateway.seen] == ["writer"]
    assert hosted.seen == []
