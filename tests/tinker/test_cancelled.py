"""Requests that are given up, at the real service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("tinker", reason="Tinker's client lives in an environment of its own: make test-tinker")
pytest.importorskip("skyrl", reason="its server lives in an environment of its own: make test-tinker")

from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.backends.tinker.service import ServiceSampler
from lightning_core.errors import GatewayError
from research.tinker.server import Server
from tests.backends.serving import ask_all, user
from tests.tinker.conftest import serving_by

pytestmark = [
    # the client leaves its connections open when it is closed
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(3600),
]
QUESTION = "List the boats with speed above 3."
MANY = 2000
"""More than Python's calls go deep."""


class Hasty:
    """The service's own client, whose reply is given up just after it was asked for."""

    def __init__(self, client: Any, completion: Completion) -> None:
        self._client, self._completion = client, completion

    def sample(self, *asked: Any) -> Any:
        future = self._client.sample(*asked)
        self._completion.cancel()
        return future


async def test_what_is_cancelled_in_any_moment_ends_and_the_next_is_answered(server: Server) -> None:
    async with serving_by(server) as backend:
        engine = backend._started.engine
        (before,) = await ask_all(backend, user(QUESTION), max_tokens=16)
        options = SamplingOptions(16)

        given_up = Completion(before.prompt_ids, options, CompletionRequest())
        sampler = engine._sampler
        engine.release(ServiceSampler(Hasty(sampler._client, given_up), server.url), 0)
        engine.submit(given_up)
        while not given_up.finished:
            await given_up.request.wait()
        assert (type(given_up.error), given_up.ids) == (GatewayError, [])

        await asyncio.to_thread(engine.hold)  # as in an update
        waiting = [Completion(before.prompt_ids, options, CompletionRequest()) for _ in range(MANY)]
        for each in waiting:
            engine.submit(each)
            each.cancel()
        engine.release(sampler, 0)
        assert {type(each.error) for each in waiting} == {GatewayError}

        (after,) = await ask_all(backend, user(QUESTION), max_tokens=16)
        assert (after.policy_version, len(after.ids) > 0) == (0, True)
        assert backend.spent["service_sampled_tokens"] == len(before.ids) + len(after.ids)
