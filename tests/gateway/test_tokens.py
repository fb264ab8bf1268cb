"""A token opens its own attempt and nothing else."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import httpx
import openai
import pytest

from lightning_core.errors import AccessError, ConfigError
from lightning_core.gateway.tokens import GRACE_SECONDS, Grant, Tokens
from lightning_core.records.types import Attempt, Call, Rollout, Run, Sampling, Task
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.trainer.roles.runner import scopes
from tests.gateway.conftest import House, open_house

SECRET = b"0123456789abcdef"
ROLLOUT = Rollout(
    id="r/ö",
    run_id="run",
    task=Task(input={}),
    group_id="g",
    step=0,
    sampling=Sampling(temperature=0.0, top_p=0.9),
)
HI: Any = [{"role": "user", "content": "hi"}]
BODY = {"model": "m", "messages": HI}


def test_what_is_issued_is_read_back() -> None:
    tokens = Tokens(SECRET)
    assert tokens.read(tokens.issue(ROLLOUT, 3)) == Grant("r/ö", 3, Sampling(temperature=0.0, top_p=0.9))


def test_an_attempt_draws_other_numbers_after_a_failure_and_the_same_after_a_loss() -> None:
    def seed(attempt: int, error: str | None = None) -> int | None:
        lost = ROLLOUT.model_copy(update={"error": error, "sampling": Sampling(seed=2**63 - 1)})
        return Tokens(SECRET).read(Tokens(SECRET).issue(lost, attempt)).sampling.seed

    assert seed(1) == seed(2) == 2**63 - 1
    assert len({seed(1), seed(2, "KeyError: 'sql'"), seed(3, "KeyError: 'sql'")}) == 3


def test_tokens_need_no_memory_of_their_issuer() -> None:
    assert Tokens(SECRET).read(Tokens(SECRET).issue(ROLLOUT, 1)).rollout_id == "r/ö"


def test_any_change_makes_a_token_worthless() -> None:
    tokens = Tokens(SECRET)
    token = tokens.issue(ROLLOUT, 1)
    for place in range(len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(AccessError):
            tokens.read(changed)
    for wrong in ("", "sk-123", "lt-", "lt-.", token[:-1], token + "=", Tokens(b"x" * 16).issue(ROLLOUT, 1)):
        with pytest.raises(AccessError):
            tokens.read(wrong)


def test_an_expired_token_opens_nothing() -> None:
    tokens = Tokens(SECRET)
    assert tokens.read(tokens.issue(ROLLOUT, 1, expires_at=time.time() + 60))
    with pytest.raises(AccessError, match="expired"):
        tokens.read(tokens.issue(ROLLOUT, 1, expires_at=time.time() - 1))


def test_a_token_outlives_the_time_out_of_its_attempt_by_no_more_than_a_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = Tokens(SECRET)
    attempt = Attempt(rollout=ROLLOUT, number=1, worker="w", lease_until=0.0)
    limited = scopes(Run(id="run", secret=SECRET.hex()), 300.0)(attempt, "", "")
    unlimited = scopes(Run(id="run", secret=SECRET.hex()), None)(attempt, "", "")
    now = time.time()
    for later, opens in ((299.0, True), (300.0 + GRACE_SECONDS + 1.0, False)):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        assert tokens.read(unlimited.token)
        with nullcontext() if opens else pytest.raises(AccessError, match="has expired"):
            tokens.read(limited.token)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        Tokens(b"short")


async def test_a_call_without_or_with_a_forged_token_is_refused(house: House, web: httpx.AsyncClient) -> None:
    reply = await web.post("/v1/chat/completions", json=BODY)
    assert reply.status_code == 401
    assert "no API key" in reply.json()["error"]["message"]
    token = await house.rollout()
    for forged in ("sk-123", token[:-3] + "abc"):
        with pytest.raises(openai.AuthenticationError) as caught:
            await house.client(forged).models.list()
        assert caught.value.code == "invalid_api_key"
    assert not house.engine.requests


async def test_a_token_does_not_open_another_rollout(house: House, web: httpx.AsyncClient) -> None:
    token = await house.rollout("r1")
    await house.rollout("r2")
    with pytest.raises(openai.PermissionDeniedError, match="r2") as caught:
        await house.client(token, base="/rollouts/r2/agents/a/v1").models.list()
    assert caught.value.code == "other_rollout"
    headers = {"authorization": f"Bearer {token}", "x-lightning-rollout": "r2"}
    reply = await web.post("/v1/chat/completions", json=BODY, headers=headers)
    assert reply.status_code == 403
    assert not house.engine.requests
    reply = await web.post(
        "/v1/chat/completions", json=BODY, headers={**headers, "x-lightning-rollout": "r1"}
    )
    assert reply.status_code == 200


async def test_an_anonymous_gateway_serves_any_key_but_no_claim() -> None:
    async with open_house(anonymous=True) as house, httpx.AsyncClient(base_url=house.url) as web:
        for headers in ({}, {"authorization": "Bearer sk-123"}):
            reply = await web.post("/v1/chat/completions", json=BODY, headers=headers)
            assert reply.status_code == 200
        assert (await web.get("/v1/models")).status_code == 200
        claims = {"x-lightning-rollout": "r1"}
        assert (await web.post("/v1/chat/completions", json=BODY, headers=claims)).status_code == 401
        forged = {"authorization": "Bearer lt-abc.def"}
        assert (await web.post("/v1/chat/completions", json=BODY, headers=forged)).status_code == 401


async def test_an_anonymous_call_belongs_to_no_rollout_and_is_never_trained() -> None:
    added: list[Call] = []

    class Noting(MemoryStore):
        async def add_call(self, call: Call, *, running: bool = False) -> None:
            added.append(call)

    async with open_house(store=Noting(), anonymous=True) as house:
        await house.client("sk-1", agent="a").chat.completions.create(model="m", messages=HI)
    (call,) = added
    assert (call.rollout_id, call.attempt, call.trained, call.agent) == (None, None, False, "a")
