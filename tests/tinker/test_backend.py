"""The tinker backend through a real server: it samples, learns, keeps and exports as the local one does."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tinker", reason="Tinker's client lives in an environment of its own: make test-tinker")
pytest.importorskip("skyrl", reason="its server lives in an environment of its own: make test-tinker")

import peft
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import lightning_core as lightning
from lightning_core.backends.base import Batch
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.settings import LoraOptions, TrainingSettings
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.dialects.upstream import Constraint
from lightning_core.errors import ConfigError, ModelError, TrainingError, UnsupportedError
from lightning_core.records.types import Trajectory, Transition
from research.tinker.server import Server
from tests.backends.serving import Reply, ask_all, user
from tests.tinker.conftest import serving_by

pytestmark = [
    # the client leaves its connections open when it is closed
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(3600),
]
RATE = 1e-3
QUESTIONS = ("List the boats with speed above 3.", "How many boats are there?")


def trajectories(replies: list[Reply], version: int) -> tuple[Trajectory, ...]:
    """A group of rollouts of one call each, with advantages of both signs."""
    made = []
    for index, reply in enumerate(replies):
        call = Transition(
            f"r{index}",
            "c",
            0,
            "writer",
            True,
            reply.prompt_ids,
            reply.ids,
            reply.logprobs,
            version,
            advantage=(1.0, -0.5)[index % 2],
        )
        made.append(Trajectory(f"r{index}", "g", "t", 0.0, (call,)))
    return tuple(made)


async def sample(backend: object) -> list[Reply]:
    """Two replies to each question."""
    replies: list[Reply] = []
    for question in QUESTIONS:
        replies += await ask_all(backend, user(question), n=2, max_tokens=16, trained=True)
    return replies


def own_logprobs(network: torch.nn.Module, reply: Reply) -> torch.Tensor:
    """(E,) of the sampled tokens, by transformers."""
    ids = torch.tensor([reply.prompt_ids + reply.ids])
    with torch.no_grad():
        logprobs = network(ids).logits[0].log_softmax(-1)
    return logprobs[len(reply.prompt_ids) - 1 : -1].gather(1, ids[0, len(reply.prompt_ids) :, None])[:, 0]


def adapters(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a PEFT folder."""
    return load_file(folder / "adapter_model.safetensors")


async def test_an_update_is_the_local_backend_s_and_is_kept(server: Server, tmp_path: Path) -> None:
    """Two updates, with the adapters beside the local backend's; saved, loaded elsewhere, exported."""
    algorithm = lightning.GRPO(group_size=4, tasks_per_step=1)
    network = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32).eval()
    async with serving_by(server, learning_rate=RATE, warmup_steps=0) as backend:
        await asyncio.to_thread(backend._started.service.download, "begin", tmp_path / "begin")
        first = trajectories(replies := await sample(backend), 0)
        for reply in replies:
            assert (reply.policy_version, reply.finish_reason in ("stop", "length")) == (0, True)
            torch.testing.assert_close(
                torch.tensor(reply.logprobs), own_logprobs(network, reply), rtol=0, atol=1e-4
            )
        ours = await backend.update(Batch(0, first), algorithm)
        assert await backend.publish() == 1
        second = trajectories(await sample(backend), 1)
        assert all(t.policy_version == 1 for each in second for t in each.transitions)
        again = await backend.update(Batch(1, second), algorithm)
        assert await backend.publish() == 2
        await asyncio.to_thread(backend._started.service.download, "end", tmp_path / "end")
        assert backend.spent["service_sampled_tokens"] == sum(
            len(t.completion_ids) for each in first + second for t in each.transitions
        )
        await backend.save(tmp_path / "checkpoint")
        await backend.export(tmp_path / "policy")

    policy, theirs = by_the_local_backend(tmp_path / "begin", [first, second], algorithm)
    for mine, other in zip((ours, again), theirs, strict=True):
        assert mine["logprob_gap_max"] < 1e-4
        for name in ("loss", "sampled_entropy", "trained_logprob", "tokens", "importance_weight"):
            assert mine[name] == pytest.approx(other[name], abs=2e-5), name
    # of the second, A has a gradient too, and the service shares one A among the layers that it fuses
    assert ours["grad_norm"] == pytest.approx(theirs[0]["grad_norm"], rel=2e-3)
    check_same(adapters(tmp_path / "end"), peft.get_peft_model_state_dict(policy.network))

    state = json.loads((tmp_path / "checkpoint/state.json").read_text())
    assert (state["policy_version"], state["optimizer_steps"]) == (2, 2)
    assert state["path"].startswith("tinker://")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.float32).eval()
    async with serving_by(server, learning_rate=RATE) as resumed:
        await resumed.load(tmp_path / "checkpoint")
        assert resumed.policy_version == 2
        (reply,) = await ask_all(resumed, user(QUESTIONS[0]), max_tokens=16, trained=True)
        assert reply.policy_version == 2
        torch.testing.assert_close(
            torch.tensor(reply.logprobs), own_logprobs(exported, reply), rtol=0, atol=1e-4
        )
        assert resumed.spent["service_sampled_tokens"] > state["service_sampled_tokens"]


def by_the_local_backend(
    begin: Path, batches: list[tuple[Trajectory, ...]], algorithm: lightning.GRPO
) -> tuple[Policy, list[dict[str, float]]]:
    """The same updates from the same adapters: the policy, and the metrics of each."""
    model = load_model(str(tiny_folder()), context=None, device="cpu")
    policy = Policy(model, LoraOptions(rank=8, alpha=32.0))
    loaded = peft.set_peft_model_state_dict(policy.network, adapters(begin))
    assert not loaded.unexpected_keys
    pace = TrainingSettings(learning_rate=RATE, warmup_steps=0, max_grad_norm=1e12)
    optimizer = Optimizer(policy, pace, source=str(tiny_folder()))
    return policy, [optimizer.update(each, algorithm, version) for version, each in enumerate(batches)]


def check_same(theirs: dict[str, torch.Tensor], ours: dict[str, torch.Tensor]) -> None:
    """All B of two updates are equal.

    AdamW divides a gradient by its size, so where that is near 0 its rounding shows: at most one element in a
    hundred may be further off than a hundredth of a step. A has no gradient before B has moved, and is left
    out: the service shares one A among the layers that it fuses.
    """
    assert theirs.keys() == ours.keys()
    far = total = 0
    for name, mine in ours.items():
        if ".lora_B." in name:
            assert mine.abs().max() > RATE / 2
            far += int(((theirs[name] - mine).abs() > RATE / 100).sum())
            total += mine.numel()
    assert far / total < 0.01


async def test_what_can_not_be_sampled_is_refused_and_what_can_not_be_trained_on_is_left_out(
    server: Server,
) -> None:
    async with serving_by(server) as backend:
        for options, words in (
            ({"constraint": Constraint(regex="a+")}, "held to a form"),
            ({"top_logprobs": 2}, "top_logprobs=2"),
        ):
            with pytest.raises(UnsupportedError, match=words):
                await ask_all(backend, user("x"), max_tokens=16, **options)
        (cool,) = await ask_all(backend, user(QUESTIONS[0]), max_tokens=16, temperature=0.5, trained=True)
        assert "temperature 1" in (cool.deltas[-1].left_out or "")
        one, two = [
            (await ask_all(backend, user(QUESTIONS[0]), max_tokens=16, temperature=0.0))[0] for _ in range(2)
        ]
        assert (one.ids, one.deltas[-1].left_out) == (two.ids, None)  # greedy, for validation


async def test_a_batch_that_is_not_finite_is_not_sent_and_serving_goes_on(
    server: Server, tmp_path: Path
) -> None:
    async with serving_by(server) as backend:
        (batch,) = trajectories(await ask_all(backend, user(QUESTIONS[0]), max_tokens=16), 0)
        broken = replace(
            batch, transitions=tuple(replace(t, advantage=float("nan")) for t in batch.transitions)
        )
        with pytest.raises(TrainingError, match="not finite"):
            await backend.update(Batch(0, (broken,)), lightning.GRPO(entropy=0.0))
        (reply,) = await ask_all(backend, user(QUESTIONS[0]), max_tokens=16)
        assert reply.policy_version == 0
        (tmp_path / "state.json").write_text('{"policy_version": 1}')
        with pytest.raises(ModelError, match="not written by the tinker backend"):
            await backend.load(tmp_path)


async def test_a_model_that_the_service_does_not_serve_is_refused_by_name(server: Server) -> None:
    backend = lightning.TinkerBackend("tiny", url=server.url, base_model="Qwen/Qwen3-8B")
    with pytest.raises(ConfigError, match=r"does not serve 'Qwen/Qwen3-8B' but \['.*tiny'\]"):
        await backend.start()
    await backend.close()


async def test_a_tokenizer_that_is_not_the_service_s_is_refused(server: Server, tmp_path: Path) -> None:
    """A copy of the model is as good as the model; one with two ids exchanged is refused."""
    copy = shutil.copytree(tiny_folder(), tmp_path / "copy")
    theirs = str(tiny_folder().absolute())
    async with serving_by(server, model=copy, base_model=theirs) as backend:
        assert backend.policy_version == 0
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    names = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    first, second = sorted((names[300], names[301]))
    here = {names[300]: 301, names[301]: 300}
    tokenizer["model"]["vocab"] |= here
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    there = here[second]
    told = (
        rf"tokenizer of '{theirs}', .* token '{re.escape(first)}' has the id {here[first]} here and {there}"
    )
    with pytest.raises(ConfigError, match=told):
        async with serving_by(server, model=copy, base_model=theirs):
            pass


async def test_the_hosted_service_needs_a_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="set TINKER_API_KEY in the environment"):
        await lightning.TinkerBackend("tiny").start()
