"""Rollouts are sampled at the run's temperature, recorded with it, and trained on at it."""

from __future__ import annotations

import logging
from pathlib import Path

import openai
import pytest

import lightning_core as lightning
from lightning_core.errors import ConfigError
from lightning_core.tracing.scope import current_scope
from tests.trainer.watching import WatchedLocal, fit, grpo, records


async def solve(task: lightning.Task) -> float:
    """A trained agent and another one, with settings of their own; the reward follows from the place in the
    group, so that no group is equal."""
    async with openai.AsyncOpenAI(api_key="none") as client:
        for name in ("writer", "checker"):
            with lightning.agent(name):
                await client.chat.completions.create(
                    model="policy",
                    messages=[{"role": "user", "content": str(task.input["question"])}],
                    max_completion_tokens=6,
                    temperature=0.25,
                    top_p=0.9,
                )
    scope = current_scope()
    assert scope is not None
    return float(scope.rollout_id.rpartition("-")[2])


def test_a_run_s_temperature_is_sampled_recorded_and_trained_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = WatchedLocal()
    with caplog.at_level(logging.WARNING):
        fit(tmp_path / "run", grpo(), solve, steps=1, backend=backend, temperature=0.7)
    found = records(tmp_path / "run")
    calls = [call for part in found.calls.values() for call in part]
    assert {(call.agent, call.temperature) for call in calls} == {("writer", 0.7), ("checker", 0.25)}
    [batch] = backend.batches[0]
    assert {t.temperature for each in batch for t in each.transitions if t.trained} == {0.7}
    assert found.metrics[0].values["logprob_gap_max"] < 1e-3  # of training at it, against the engine's
    said = [each.getMessage() for each in caplog.records if "without effect" in each.getMessage()]
    assert len(said) == 1
    assert "'writer' is trained and asks for temperature=0.25, without effect" in said[0]
    kept = {(call.agent, choice.kept is not None) for call in calls for choice in call.choices}
    assert kept == {("writer", True), ("checker", False)}  # top_p is theirs; see the gap above


async def solve_with_a_penalty(task: lightning.Task) -> float:
    """The same agent, once with a penalty and once without."""
    async with openai.AsyncOpenAI(api_key="none") as client:
        for penalty in (0.5, 0.0):
            with lightning.agent("writer"):
                await client.chat.completions.create(
                    model="policy",
                    messages=[{"role": "user", "content": f"{task.input['question']} {penalty}"}],
                    max_completion_tokens=6,
                    presence_penalty=penalty,
                )
    scope = current_scope()
    assert scope is not None
    return float(scope.rollout_id.rpartition("-")[2])


def test_a_call_with_a_penalty_alone_is_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = WatchedLocal()
    with caplog.at_level(logging.WARNING):
        fit(tmp_path / "run", grpo(), solve_with_a_penalty, steps=1, backend=backend)
    found = records(tmp_path / "run")
    values = found.metrics[0].values
    assert values["agent/writer/calls"] == 2 * values["agent/writer/left_out_calls"] > 0
    assert values["agent/writer/transitions"] == values["agent/writer/left_out_calls"]
    assert values["failures"] == 0
    assert values["logprob_gap_max"] < 1e-3
    said = [each.getMessage() for each in caplog.records if "are not trained on" in each.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("calls of agent 'writer' are not trained on: an update computes no penalties")


def test_a_temperature_that_explores_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="temperature"):
        lightning.Trainer(temperature=0.0)
