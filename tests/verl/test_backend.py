"""The verl backend whole: Ray, verl's workers on two ranks, vLLM's servers, compared with the local backend.

One started backend serves this file; each test begins at its start.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lightning_core.algorithms.base import Algorithm, Critic
from lightning_core.algorithms.dpo import DPO
from lightning_core.algorithms.policy_gradient import GRPO, PPO
from lightning_core.algorithms.sft import SFT
from lightning_core.backends.base import Batch
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.credit.base import assign
from lightning_core.errors import EngineError, ModelError, TrainingError
from lightning_core.records.types import Trajectory
from lightning_core.trainer.demonstrations import encode_all
from tests.backends.serving import Reply, as_transition, ask, plain_logprobs
from tests.backends.test_constraints import sample as held
from tests.verl.conftest import RATE, WARMUP
from tests.verl.recorded import play, recorded_by

pytestmark = pytest.mark.asyncio(loop_scope="session")
TOLERANCE = 1e-4
COUNTED = {"update_seconds", "forward_tokens", "unmerged_tokens", "merge_ratio"}
"""Costs of a batch cut into rows, which change nothing of the learning."""
ROUNDING = {"logprob_gap_mean", "logprob_gap_max"}
"""Metrics with float32's rounding, where the weights are those that sampled."""
DEMONSTRATIONS = [
    {"messages": [{"role": "user", "content": f"List boat {n}."}], "reply": f"SELECT {n};"} for n in range(5)
]


async def sample(backend: Any) -> tuple[Trajectory, ...]:
    """Rollouts of the present policy in groups of two, of which the first was the better one. The prompts
    make no sense, so that replies differ, and begin alike, so that servers remember them."""
    draw = random.Random(0)
    trajectories, same = [], [draw.randrange(5, 300) for _ in range(300)]
    for r in range(4):
        prompt, transitions = [*same, *(draw.randrange(5, 300) for _ in range(12))], []
        for turn in range(2):
            reply = await insist(backend, [], prompt=prompt, max_tokens=12, seed=10 * r + turn)
            transitions.append(as_transition(reply, f"r{r}", f"c{turn}", advantage=1.0 - 2 * (r % 2)))
            prompt = [*prompt, *reply.ids, *(draw.randrange(5, 300) for _ in range(4))]
        group = f"g{r // 2}"
        trajectories.append(Trajectory(f"r{r}", group, group, float(1 - r % 2), tuple(transitions)))
    return tuple(trajectories)


async def insist(backend: Any, messages: Any, **options: Any) -> Reply:
    """Ask again where a server died during the reply, as an app's SDK does."""
    while True:
        with suppress(EngineError):
            return await ask(backend, messages, **options)


def credited(batch: Sequence[Trajectory], algorithm: Any) -> tuple[Trajectory, ...]:
    """The batch with the advantages that the algorithm gives it."""
    return tuple(assign(batch, algorithm.credit, algorithm.baseline, algorithm.scale)[0])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


async def exported(backend: Any, folder: Path) -> dict[str, torch.Tensor]:
    """The weights under training."""
    await backend.export(folder)
    return weights(folder)


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The farthest that any weight of the one is from the other's."""
    assert one.keys() == other.keys()
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


def gap(folder: Path, batch: Sequence[Trajectory]) -> float:
    """How far recorded log-probabilities are from those of the weights in a folder."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return max(
        abs(recorded - exact)
        for each in batch
        for t in each.transitions
        for recorded, exact in zip(
            t.logprobs, plain_logprobs(network, list(t.prompt_ids), list(t.completion_ids)), strict=True
        )
    )


@asynccontextmanager
async def local(**options: Any) -> AsyncIterator[LocalBackend]:
    made = LocalBackend("tiny", learning_rate=RATE, warmup_steps=WARMUP, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def test_what_is_published_is_what_answers(backend: Any, tmp_path: Path) -> None:
    """The servers' log-probabilities are those of the weights under training, after each publication."""
    batch = await sample(backend)
    for version in (1, 2):
        before = await exported(backend, tmp_path / f"{version - 1}")
        metrics = await backend.update(Batch(version, batch), GRPO())
        assert metrics["logprob_gap_max"] < TOLERANCE
        assert await backend.publish() == version
        batch = await sample(backend)
        assert {t.policy_version for each in batch for t in each.transitions} == {version}
        assert apart(await exported(backend, tmp_path / f"{version}"), before) > RATE / 10
        assert gap(tmp_path / f"{version}", batch) < TOLERANCE / 2
        assert gap(tmp_path / f"{version - 1}", batch) > 2 * TOLERANCE


async def test_replies_held_to_a_form_have_ratio_one_and_the_local_update(backend: Any) -> None:
    """Sampled by vLLM under its masks, trained by verl's workers under the same."""
    batch = await held(backend)
    assert sum(t.grammar is not None for each in batch for t in each.transitions) > len(batch)
    found = await backend.update(Batch(0, batch), GRPO(kl=0.1))
    assert found["logprob_gap_max"] < TOLERANCE
    assert found["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    async with local() as other:
        wanted = await other.update(Batch(0, batch), GRPO(kl=0.1))
    for name in wanted.keys() - COUNTED - ROUNDING:
        assert found[name] == pytest.approx(wanted[name], rel=TOLERANCE, abs=1e-6), name


async def test_updates_in_a_row_are_those_of_the_local_backend(backend: Any, tmp_path: Path) -> None:
    """With a reference, in two epochs with a proximal policy, by pairs, and from demonstrations: the same
    losses, gradient norms and metrics, and in the end the same policy."""
    network = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32).eval()
    batch = recorded_by(network, play(0))
    taught = SFT(demonstrations=DEMONSTRATIONS)
    assert taught.learns_from is not None
    updates: list[tuple[Sequence[Trajectory], Algorithm]] = [
        (batch, GRPO(kl=0.2)),
        (batch, GRPO(epochs=2)),
        (credited(batch, DPO()), DPO()),
        (credited(encode_all(taught.learns_from, backend, None), taught), taught),
    ]
    async with local() as other:
        for step, (given, algorithm) in enumerate(updates):
            wanted = await other.update(Batch(step, tuple(given)), algorithm)
            found = await backend.update(Batch(step, tuple(given)), algorithm)
            for name in wanted.keys() - COUNTED:
                assert found[name] == pytest.approx(wanted[name], rel=TOLERANCE, abs=1e-6), (algorithm, name)
            assert found["grad_norm"] > 0
        for each in (backend, other):
            await each.publish()
            await each.export(tmp_path / each.name)
        asked = {"max_tokens": 12, "temperature": 0.0}
        here, there = (
            await ask(backend, "List the boats", **asked),
            await ask(other, "List the boats", **asked),
        )
    assert here.ids == there.ids
    assert here.logprobs == pytest.approx(there.logprobs, abs=TOLERANCE)
    assert gap(tmp_path / "local", await sample(backend)) < TOLERANCE


async def test_the_first_update_with_a_reference_has_no_distance_and_the_second_has(backend: Any) -> None:
    batch = await sample(backend)
    first = await backend.update(Batch(0, batch), GRPO(kl=0.2))
    second = await backend.update(Batch(1, batch), GRPO(kl=0.2))
    assert first["kl_reference"] < 1e-6 < second["kl_reference"]


async def test_going_on_from_a_checkpoint_equals_never_having_stopped(backend: Any, tmp_path: Path) -> None:
    batch = await sample(backend)
    await backend.update(Batch(0, batch), GRPO())
    await backend.publish()
    await backend.save(tmp_path / "checkpoint")
    metrics = await backend.update(Batch(1, batch), GRPO())
    wanted = await exported(backend, tmp_path / "wanted")
    await backend.update(Batch(2, batch), GRPO())
    await backend.publish()
    await backend.load(tmp_path / "checkpoint")
    assert backend.policy_version == 1
    fresh = await sample(backend)
    assert fresh[0].transitions[0].policy_version == 1
    assert gap(tmp_path / "checkpoint" / "model", fresh) < TOLERANCE
    again = await backend.update(Batch(1, batch), GRPO())
    assert (again["loss"], again["grad_norm"]) == (metrics["loss"], metrics["grad_norm"])
    assert again["learning_rate"] == metrics["learning_rate"]
    assert apart(await exported(backend, tmp_path / "again"), wanted) == 0


async def test_the_local_backend_serves_what_is_exported(backend: Any, tmp_path: Path) -> None:
    await backend.update(Batch(0, await sample(backend)), GRPO())
    await backend.publish()
    await backend.export(tmp_path / "model")
    asked = {"max_tokens": 12, "temperature": 0.0}
    wanted = await ask(backend, "List the boats", **asked)
    made = LocalBackend(tmp_path / "model")
    await made.start()
    found = await ask(made, "List the boats", **asked)
    stop_ids = made.upstream.model.stop_ids
    await made.close()
    assert found.ids == wanted.ids
    assert found.logprobs == pytest.approx(wanted.logprobs, abs=TOLERANCE)
    for file in ("config.json", "generation_config.json"):
        ends = json.loads((tmp_path / "model" / file).read_text())["eos_token_id"]
        assert {*(ends if isinstance(ends, list) else [ends])} == stop_ids


async def test_a_checkpoint_of_another_backend_is_refused(backend: Any, tmp_path: Path) -> None:
    async with local() as other:
        await other.save(tmp_path / "checkpoint")
    with pytest.raises(ModelError, match="was not written by the verl backend"):
        await backend.load(tmp_path / "checkpoint")
    with pytest.raises(ModelError, match="nowhere"):
        await backend.load(tmp_path / "nowhere")


async def test_the_critic_begins_at_nothing_learns_and_is_kept(backend: Any, tmp_path: Path) -> None:
    batch = await sample(backend)
    values = await backend.values(batch)
    assert values.keys() == {t.key for each in batch for t in each.transitions}
    assert max(map(abs, values.values())) < 1e-6
    algorithm = PPO(epochs=1, critic=Critic(epochs=2, learning_rate=1e-3))
    given = tuple(
        replace(
            each,
            transitions=tuple(
                replace(t, value=0.0, target=each.reward, advantage=each.reward - 0.5)
                for t in each.transitions
            ),
        )
        for each in batch
    )
    metrics = await backend.update(Batch(0, given), algorithm)
    assert metrics["value_loss"] == pytest.approx(0.25, abs=1e-5)  # half the mean of 1, 0, 1, 0 squared
    assert metrics["value_loss_last"] < metrics["value_loss"]
    learnt = await backend.values(batch)
    await backend.save(tmp_path / "checkpoint")
    await backend.update(Batch(1, given), algorithm)
    assert await backend.values(batch) != learnt
    await backend.load(tmp_path / "checkpoint")
    assert await backend.values(batch) == learnt


async def test_an_update_that_is_not_finite_changes_nothing(backend: Any, tmp_path: Path) -> None:
    batch = await sample(backend)
    await backend.update(Batch(0, batch), GRPO())
    before = await exported(backend, tmp_path / "before")
    first = batch[0].transitions[0]
    spoilt = replace(
        batch[0], transitions=(replace(first, advantage=float("nan")), *batch[0].transitions[1:])
    )
    with pytest.raises(TrainingError, match="the weights were left as they were"):
        await backend.update(Batch(1, (spoilt, *batch[1:])), GRPO())
    assert apart(await exported(backend, tmp_path / "after"), before) == 0
    metrics = await backend.update(Batch(2, batch), GRPO())
    assert metrics["learning_rate"] == RATE  # the second step that was made, at the end of the warm-up
    assert apart(await exported(backend, tmp_path / "next"), before) > 0
