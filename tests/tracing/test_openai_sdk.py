"""Where a request goes and what it carries, seen by the server that received it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, AzureOpenAI, OpenAI
from openai._base_client import BaseClient

from lightning_core.errors import InstrumentationError
from lightning_core.records.types import UNNAMED, Who
from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, agent, enter_order, rollout_scope


def scope_at(server: GatewayDouble, rollout: str = "r1", agents: tuple[str, ...] | None = None) -> Scope:
    return Scope(rollout, 1, server.url, f"token-of-{rollout}", agents)


def ask(client: OpenAI, **marks: object) -> None:
    messages = [{"role": "user", "content": mark(**marks)}]
    client.chat.completions.create(model="any", messages=messages)  # type: ignore[arg-type]


def leaked(server: GatewayDouble) -> list[str]:
    return [name for seen in server.seen for name in seen.headers if "lightning" in name]


@pytest.mark.usefixtures("tagging")
def test_a_trained_agent_goes_to_the_gateway_whatever_endpoint_its_client_names(
    gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    client = OpenAI(api_key="sk-mine", base_url=f"{hosted.url}/some/v1", organization="org")
    with client, rollout_scope(scope_at(gateway, agents=("write*",))), agent("write query"):
        ask(client, rollout="r1", agent="write query")
    [seen] = gateway.seen
    assert hosted.seen == []
    assert gateway.mistakes() == []
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["host"] == gateway.url.removeprefix("http://")
    assert seen.headers["authorization"] == "Bearer token-of-r1"
    assert "sk-mine" not in repr(seen.headers)
    assert "openai-organization" not in seen.headers


@pytest.mark.usefixtures("tagging")
def test_an_untrained_agent_with_an_endpoint_is_left_exactly_as_it_was(
    gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    with OpenAI(api_key="sk-mine", base_url=f"{hosted.url}/v1") as client:
        ask(client)
        with rollout_scope(scope_at(gateway, agents=("writer",))), agent("checker"):
            ask(client)
    outside, inside = hosted.seen
    assert gateway.seen == []
    assert inside == outside
    assert leaked(hosted) == []


@pytest.mark.usefixtures("tagging")
def test_an_untrained_agent_without_an_endpoint_is_served_by_the_policy(gateway: GatewayDouble) -> None:
    with OpenAI(api_key="none") as client, rollout_scope(scope_at(gateway, agents=("writer",))):
        with agent("checker"):
            ask(client, rollout="r1", agent="checker")
        ask(client, rollout="r1", agent=UNNAMED)
    assert len(gateway.seen) == 2
    assert gateway.mistakes() == []


@pytest.mark.usefixtures("tagging")
@pytest.mark.parametrize("key", ["sk-mine", "eyJhbGciOi"])
def test_an_untrained_agent_with_an_openai_key_keeps_openai_as_its_endpoint(
    gateway: GatewayDouble, key: str
) -> None:
    with OpenAI(api_key=key) as client, rollout_scope(scope_at(gateway, agents=("writer",))):
        request = client._build_request(_options("/chat/completions"))
    assert str(request.url) == "https://api.openai.com/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {key}"


@pytest.mark.usefixtures("tagging")
def test_outside_a_rollout_nothing_is_touched(hosted: GatewayDouble) -> None:
    with OpenAI(api_key="none", base_url=f"{hosted.url}/v1") as client, agent("writer"):
        ask(client)
    assert len(hosted.seen) == 1
    assert leaked(hosted) == []


@pytest.mark.usefixtures("tagging")
def test_a_late_call_of_an_ended_rollout_is_nobodys(gateway: GatewayDouble, hosted: GatewayDouble) -> None:
    async def app(client: AsyncOpenAI) -> asyncio.Task[object]:
        with rollout_scope(scope_at(gateway)):
            return asyncio.create_task(
                client.chat.completions.create(model="any", messages=[{"role": "user", "content": ""}])
            )

    async def main() -> None:
        async with AsyncOpenAI(api_key="none", base_url=f"{hosted.url}/v1") as client:
            await (await app(client))

    asyncio.run(main())
    assert gateway.seen == []
    assert leaked(hosted) == []


@pytest.mark.usefixtures("tagging")
def test_what_the_policy_cannot_answer_goes_where_the_app_sends_it(
    gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    with OpenAI(api_key="key", base_url=f"{hosted.url}/v1") as client, rollout_scope(scope_at(gateway)):
        for path in ("/embeddings", "/organization/usage/completions"):
            client.post(path, body={}, cast_to=object)
    assert [seen.path for seen in hosted.seen] == ["/v1/embeddings", "/v1/organization/usage/completions"]
    assert gateway.seen == []


@pytest.mark.usefixtures("tagging")
@pytest.mark.parametrize("deployment", [None, "mine"])
def test_an_azure_client_arrives_at_the_plain_path_without_its_key(
    gateway: GatewayDouble, hosted: GatewayDouble, deployment: str | None
) -> None:
    with (
        AzureOpenAI(
            api_key="azure", api_version="2025-01-01", azure_endpoint=hosted.url, azure_deployment=deployment
        ) as client,
        rollout_scope(scope_at(gateway)),
    ):
        ask(client, rollout="r1", agent=UNNAMED)
        client.responses.create(model="any", input=mark(rollout="r1", agent=UNNAMED))
    assert [seen.path for seen in gateway.seen] == ["/v1/chat/completions", "/v1/responses"]
    assert {seen.query for seen in gateway.seen} == {""}
    assert gateway.mistakes() == []
    assert not any("api-key" in seen.headers for seen in gateway.seen)


@pytest.mark.usefixtures("tagging")
def test_an_absolute_address_is_routed_by_what_it_asks_for(
    gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    with OpenAI(api_key="key") as client, rollout_scope(scope_at(gateway)):
        client.post(f"{hosted.url}/openai/v1/chat/completions?a=b", body={}, cast_to=object)
    assert [(seen.path, seen.query) for seen in gateway.seen] == [("/v1/chat/completions", "a=b")]


@pytest.mark.skipif(openai.__version__.startswith("3."), reason="openai 3 sets no such name")
@pytest.mark.usefixtures("tagging")
def test_a_host_name_meant_for_tls_stays_behind(gateway: GatewayDouble) -> None:
    with OpenAI(api_key="key", base_url="https://my_host/v1") as client:
        assert "sni_hostname" in client._build_request(_options("/chat/completions")).extensions
        with rollout_scope(scope_at(gateway)):
            assert "sni_hostname" not in client._build_request(_options("/chat/completions")).extensions


def by_chat(client: OpenAI, messages: object) -> None:
    client.chat.completions.create(model="any", messages=messages)  # type: ignore[call-overload]


def by_stream(client: OpenAI, messages: object) -> None:
    for _ in client.chat.completions.create(model="any", messages=messages, stream=True):  # type: ignore[call-overload]
        pass


def by_stream_helper(client: OpenAI, messages: object) -> None:
    with client.chat.completions.stream(model="any", messages=messages) as stream:  # type: ignore[arg-type]
        stream.until_done()


def by_raw_response(client: OpenAI, messages: object) -> None:
    client.chat.completions.with_raw_response.create(model="any", messages=messages)  # type: ignore[call-overload]


def by_streaming_response(client: OpenAI, messages: object) -> None:
    create = client.chat.completions.with_streaming_response.create
    with create(model="any", messages=messages) as response:  # type: ignore[call-overload]
        response.read()


def by_options(client: OpenAI, messages: object) -> None:
    changed = client.with_options(timeout=9)
    changed.chat.completions.create(model="any", messages=messages)  # type: ignore[call-overload]


def by_responses(client: OpenAI, messages: object) -> None:
    client.responses.create(model="any", input=messages)  # type: ignore[call-overload]


@pytest.mark.usefixtures("tagging")
@pytest.mark.parametrize(
    "way",
    [by_chat, by_stream, by_stream_helper, by_raw_response, by_streaming_response, by_options, by_responses],
)
def test_every_way_to_call_is_tagged(gateway: GatewayDouble, way: Callable[[OpenAI, object], None]) -> None:
    with OpenAI(api_key="none") as client, rollout_scope(scope_at(gateway)), agent("检查 / é"):
        truth = mark(rollout="r1", agent="检查 / é", nonce=1, fail=1)
        way(client, [{"role": "user", "content": truth}])
    assert [seen.status for seen in gateway.seen] == [500, 200]
    assert gateway.mistakes() == []


@pytest.mark.usefixtures("tagging")
def test_retries_share_a_call_id_and_equal_prompts_do_not(gateway: GatewayDouble) -> None:
    with OpenAI(api_key="none", max_retries=3) as client, rollout_scope(scope_at(gateway)):
        ask(client, rollout="r1", agent=UNNAMED, nonce="a", fail=2)
        for _ in range(3):
            ask(client, rollout="r1", agent=UNNAMED)
    calls = [request.call for request in gateway.tagged()]
    assert len(calls) == 6
    assert calls[0] == calls[1] == calls[2]
    assert len(set(calls)) == 4


@pytest.mark.usefixtures("tagging")
def test_a_timed_out_attempt_and_its_retry_are_one_call(gateway: GatewayDouble) -> None:
    client = OpenAI(api_key="none", max_retries=1, timeout=1)
    with client, rollout_scope(scope_at(gateway)), pytest.raises(openai.APITimeoutError):
        ask(client, rollout="r1", agent=UNNAMED, nonce="a", slow=60)
    assert len(gateway.seen) == 2
    assert gateway.mistakes() == []


@pytest.mark.usefixtures("tagging")
def test_the_innermost_block_names_the_call(gateway: GatewayDouble) -> None:
    with OpenAI(api_key="none") as client, rollout_scope(scope_at(gateway)):
        with agent("outer"):
            with agent("inner"):
                ask(client, rollout="r1", agent="inner")
            ask(client, rollout="r1", agent="outer")
        ask(client, rollout="r1", agent=UNNAMED)
    assert gateway.mistakes() == []


def test_a_framework_scope_entered_inside_a_block_wins_and_a_block_inside_it_wins_again(
    gateway: GatewayDouble,
) -> None:
    with agent("outer"):
        node = Who("node", enter_order())
        with OpenAI(api_key="none") as client, instrument(lambda: node), rollout_scope(scope_at(gateway)):
            ask(client, rollout="r1", agent="node")
            with agent("inner"):
                ask(client, rollout="r1", agent="inner")
    assert gateway.mistakes() == []


def test_the_original_comes_back_when_the_last_instrumentation_leaves() -> None:
    original = BaseClient._build_request
    first = instrument(lambda: None)
    placed = BaseClient._build_request
    second = instrument(lambda: None)
    assert BaseClient._build_request is placed  # twice installed, once wrapped
    first.uninstall()
    first.uninstall()
    assert BaseClient._build_request is placed
    second.uninstall()
    assert BaseClient._build_request is original


def test_a_wrapper_that_others_put_on_top_survives(
    gateway: GatewayDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    instrumentation = instrument(lambda: Who("node"))
    ours = BaseClient._build_request
    theirs = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(BaseClient, "_build_request", theirs)
    with OpenAI(api_key="none") as client, rollout_scope(scope_at(gateway)):
        ask(client, rollout="r1", agent="node")
        instrumentation.uninstall()
        assert BaseClient._build_request is theirs
        request = client._build_request(_options("/chat/completions"))
    monkeypatch.undo()
    BaseClient._build_request = ours.__wrapped__  # type: ignore[attr-defined, method-assign]
    assert gateway.mistakes() == []
    assert request.url.host == "api.openai.com"


@pytest.mark.parametrize("name", ["_build_request", "_idempotency_key"])
def test_an_sdk_without_the_choke_point_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delattr(BaseClient, name)
    with pytest.raises(InstrumentationError) as caught:
        instrument(lambda: None)
    for part in (f"BaseClient.{name}", openai.__version__, "/rollouts/{rollout_id}/agents/{agent}/v1"):
        assert part in str(caught.value)


def _options(url: str) -> Any:
    from openai._models import FinalRequestOptions

    return FinalRequestOptions.construct(
        method="post", url=url, json_data={}, idempotency_key="k", security={"bearer_auth": True}
    )


@pytest.mark.usefixtures("tagging")
async def test_a_blocking_client_in_an_async_function_is_said_once_with_its_line(
    gateway: GatewayDouble, caplog: pytest.LogCaptureFixture
) -> None:
    with OpenAI(api_key="none") as client, rollout_scope(scope_at(gateway)):
        await asyncio.to_thread(ask, client)  # blocks its own thread only
        async with AsyncOpenAI(api_key="none") as other:
            await other.chat.completions.create(model="any", messages=[{"role": "user", "content": "a"}])
        assert "blocking" not in caplog.text
        ask(client)
        ask(client)
    [said] = [record.getMessage() for record in caplog.records if "blocking client" in record.getMessage()]
    assert f"{__file__}:" in said
    assert "rollouts run one after another" in said
