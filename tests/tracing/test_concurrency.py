"""The headline law: 2,000 calls in flight at once, and not one tag wrong or missing."""

from __future__ import annotations

import resource

from lightning_core.testing.server import serving
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope
from tests.tracing.traffic import send

ROLLOUTS, CALLS = 112, 18


async def test_two_thousand_concurrent_calls_carry_the_right_rollout_agent_and_call() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gather = 2000 if hard == resource.RLIM_INFINITY or hard >= 5000 else 200
    try:
        with serving(gather) as server, instrument(lambda: None):
            made = await send(
                lambda rollout: Scope(rollout, 1, server.url, f"token-of-{rollout}"), ROLLOUTS, CALLS
            )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    answered = [request for request in server.seen if request.status == 200]
    assert server.mistakes() == []
    assert len(answered) == made == ROLLOUTS * CALLS
    assert len({request.tagged().call for request in answered}) == made
    assert server.peak >= gather
    for request in server.seen:
        assert request.headers["authorization"] == f"Bearer token-of-{request.tagged().marks['rollout']}"
