"""A client of the app's own that sends one request several times: the last time counts."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from lightning_core.testing.server import GatewayDouble
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import Scope, agent, rollout_scope
from tests.tracing.hosting import NOWHERE, library, one, said, scope_of

pytestmark = pytest.mark.usefixtures("tagging")


class Stubborn(library.Client):  # type: ignore[misc]
    """Asks once more after an error of the server, and forgets to close the first reply."""

    def send(self, request: Any, **kwargs: Any) -> Any:
        self.first = super().send(request, **kwargs)
        return super().send(request, **kwargs) if self.first.is_error else self.first


class AsyncStubborn(library.AsyncClient):  # type: ignore[misc]
    async def send(self, request: Any, **kwargs: Any) -> Any:
        self.first = await super().send(request, **kwargs)
        return await super().send(request, **kwargs) if self.first.is_error else self.first


def asking(fails: int) -> Any:
    return [{"role": "user", "content": mark(nonce=1, fail=fails)}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fails", "status"), [(1, "completed"), (2, "failed")])
def test_a_hosted_call_ends_as_it_did_the_last_time(
    hosted: GatewayDouble, stream: bool, fails: int, status: str
) -> None:
    with Stubborn() as http, rollout_scope(scope_of()) as scope, agent("checker"):
        client = OpenAI(api_key="sk-mine", base_url=f"{hosted.url}/v1", http_client=http, max_retries=0)
        try:
            answer: Any = client.chat.completions.create(model="m", messages=asking(fails), stream=stream)
            list(answer)
        except openai.InternalServerError:
            assert fails == 2
        http.first.close()
    assert len(hosted.seen) == 2
    assert one(scope).status == status
    assert fails == 2 or said(one(scope)) == "it is done"
    assert scope.under_way == {}


@pytest.mark.parametrize("stream", [False, True])
def test_an_async_hosted_call_ends_as_it_did_the_last_time(hosted: GatewayDouble, stream: bool) -> None:
    async def main() -> None:
        async with AsyncStubborn() as http:
            client = AsyncOpenAI(
                api_key="sk-mine", base_url=f"{hosted.url}/v1", http_client=http, max_retries=0
            )
            answer: Any = await client.chat.completions.create(model="m", messages=asking(1), stream=stream)
            if stream:
                assert [chunk async for chunk in answer]
            await http.first.aclose()

    with rollout_scope(scope_of()) as scope, agent("checker"):
        asyncio.run(main())
    assert (one(scope).status, said(one(scope))) == ("completed", "it is done")


def test_a_routed_request_has_the_rollouts_token_each_time(gateway: GatewayDouble) -> None:
    with Stubborn(auth=("user", "secret")) as http, rollout_scope(Scope("r1", 1, gateway.url, "token")):
        client = OpenAI(api_key="sk-mine", base_url=NOWHERE, http_client=http, max_retries=0)
        client.chat.completions.create(model="m", messages=asking(1))
    assert [seen.headers["authorization"] for seen in gateway.seen] == ["Bearer token"] * 2
