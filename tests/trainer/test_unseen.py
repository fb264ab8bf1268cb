"""A run in which calls pass by the SDKs says so, and fails those rollouts if it is to be strict."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest
import requests

import lightning_core as lightning
from lightning_core.errors import TrainingError
from lightning_core.records.types import Alert, Rollout, Status
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.testing.server import serving
from tests.trainer.watching import fit, grpo

ASKED = {"model": "policy", "messages": [{"role": "user", "content": "?"}], "max_tokens": 2}


def train(folder: Path, hosted: str, strict: bool) -> tuple[list[Alert], list[Rollout]]:
    """Two agents call with requests: the trained one is routed, the other one stays where it points."""

    def solve(task: lightning.Task) -> float:
        for name in ("writer", "checker"):
            with lightning.agent(name):
                reply = requests.post(f"{hosted}/v1/chat/completions", json=ASKED, timeout=60)
        return float(len(reply.text) % 7)

    policy = lightning.FailurePolicy(retries=0, strict=strict)
    with pytest.raises(TrainingError, match="UnseenCallsError") if strict else nullcontext():
        fit(folder, grpo(), solve, steps=1, on_failure=policy)

    async def read() -> tuple[list[Alert], list[Rollout]]:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            return await store.list_alerts(folder.name), await store.find_rollouts(folder.name)

    return asyncio.run(read())


def test_calls_that_could_not_be_recorded_are_told_and_fail_rollouts_only_if_that_was_asked_for(tmp_path):
    with serving() as hosted:
        alerts, rollouts = train(tmp_path / "lenient", hosted.url, strict=False)
        _, strict_rollouts = train(tmp_path / "strict", hosted.url, strict=True)
    [alert] = [each for each in alerts if each.rule == "unseen_calls"]
    assert "calls of agent 'checker' (POST /v1/chat/completions to 127.0.0.1" in alert.message
    assert "by requests) were not recorded" in alert.message
    assert {rollout.status for rollout in rollouts} == {Status.SUCCEEDED}
    assert {rollout.status for rollout in strict_rollouts} == {Status.FAILED}
    assert all("UnseenCallsError: calls of agent 'checker'" in str(each.error) for each in strict_rollouts)


def test_a_step_whose_rollouts_ask_no_model_half_of_the_time_is_told(tmp_path):
    cache: dict[str, float] = {}

    def solve(task: lightning.Task) -> float:
        if task.id not in cache:  # an app with a cache of its own
            with lightning.agent("writer"):
                reply = requests.post("http://127.0.0.1:1/v1/chat/completions", json=ASKED, timeout=60)
            cache[task.id] = float(len(reply.text) % 7)
        return cache[task.id]

    fit(tmp_path / "run", grpo(), solve, steps=1, concurrency=1)

    async def read() -> list[Alert]:
        async with SqliteStore(f"sqlite:///{tmp_path / 'run' / 'store.db'}") as store:
            return await store.list_alerts("run")

    [alert] = [each for each in asyncio.run(read()) if each.rule == "rollouts_without_calls"]
    assert "succeeded without a call of a model" in alert.message
