"""Runs in which the policy is its own teacher, on the shipped tiny model."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

import lightning_core as lightning
from lightning_core.algorithms.base import credit_batch
from lightning_core.algorithms.sdpo import taught
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.local.teaching import add_teachers
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.records.types import Metrics
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.batch import read_batch
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.teaching import add_hint, teach
from tests.backends.serving import plain_logprobs, serving

TASKS = [{"question": f"List the boats with speed above {n}."} for n in range(6)]
SMALL: Any = {"group_size": 4, "tasks_per_step": 2}


class App:
    """Two calls of the agent `writer`, the second after a result of a tool. The first rollout of each task
    has the reward 1, the others 0, or all the same."""

    def __init__(self, *, equal: bool = False, reason: str | None = None) -> None:
        self.seen: Counter[str] = Counter()
        self.equal, self.reason = equal, reason

    async def solve(self, task: lightning.Task) -> float | None:
        text = str(task.input["question"])
        self.seen[text] += 1
        turn = self.seen[text]
        async with openai.AsyncOpenAI(api_key="none") as client:
            messages: list[Any] = [{"role": "user", "content": text}]
            for _ in range(2):
                with lightning.agent("writer"):
                    reply = await client.chat.completions.create(
                        model="policy", messages=messages, max_completion_tokens=8
                    )
                messages = [
                    *messages,
                    {"role": "assistant", "content": reply.choices[0].message.content or "."},
                    {"role": "user", "content": f"Try {turn} failed."},
                ]
        lightning.reward(float(turn % 4 == 1 and not self.equal), reason=self.reason)
        return None


def train(folder: Path, app: App, *, steps: int = 1, **options: Any) -> list[Metrics]:
    """The metrics of each step of a run, on one rollout at a time."""
    settings = {"algorithm": lightning.SDPO(**SMALL), "backend": LocalBackend("tiny"), **options}
    lightning.Trainer(
        agents=["writer"], steps=steps, folder=folder, progress=False, concurrency=1, **settings
    ).fit(app.solve, train=TASKS)

    async def read() -> list[Metrics]:
        async with SqliteStore(RunFolder(folder, resume=True).store_url) as store:
            return await store.list_metrics(folder.name)

    return asyncio.run(read())


@pytest.mark.parametrize("lora", [None, lightning.LoraOptions()], ids=["all weights", "lora"])
def test_failures_learn_from_the_success_of_their_group(lora: Any, tmp_path: Path) -> None:
    backend = LocalBackend("tiny", lora=lora)
    [values] = [each.values for each in train(tmp_path / "run", App(), backend=backend)]
    assert values["teacher_share"] == 0.75
    assert values["agent/writer/transitions"] == 12
    assert values["teacher_too_long"] == values["teacher_otherwise"] == 0
    assert values["teacher_tokens"] > 0
    assert values["teacher_seconds"] > 0
    assert values["teacher_divergence"] != 0
    assert values["grad_norm"] > 0
    assert values["policy_version"] == 1


def test_a_group_without_success_makes_no_update(tmp_path: Path) -> None:
    [values] = [each.values for each in train(tmp_path / "run", App(equal=True))]
    assert values["skipped_updates"] == 1
    assert values["teacher_share"] == 0


def test_what_was_said_of_failures_teaches_where_nobody_succeeds(tmp_path: Path) -> None:
    [values] = [each.values for each in train(tmp_path / "run", App(equal=True, reason="no such boat"))]
    assert values["teacher_share"] == 1
    assert values["policy_version"] == 1


def test_prompts_too_long_for_the_context_are_left_out_and_counted(tmp_path: Path) -> None:
    long = lightning.SDPO(**SMALL, reply_hint="boats " * 9000 + "{reply}")
    [values] = [each.values for each in train(tmp_path / "run", App(), algorithm=long)]
    assert values["teacher_too_long"] == 12
    assert values["teacher_share"] == 0
    assert values["skipped_updates"] == 1


def test_the_teacher_is_the_policy_after_the_longer_prompt(tmp_path: Path) -> None:
    """Against transformers' own forward pass, and its own template with the text after the last message."""
    folder = tmp_path / "run"
    train(folder, App())

    async def check() -> None:
        async with SqliteStore(RunFolder(folder, resume=True).store_url) as store:
            rollouts = await store.find_rollouts(folder.name, step=0, split="train")
            batch = await read_batch(store, None, None, rollouts)
        algorithm = lightning.SDPO(**SMALL)
        async with serving(tiny_folder(), dtype="float32") as backend:
            batch = await teach(batch, algorithm, {None: backend})
            credited, _ = credit_batch(batch.trajectories, taught, algorithm)
            found, _ = add_teachers(tuple(credited), algorithm, backend._started.optimizer.score)
            tokenizer = backend.upstream.model.tokenizer
        network = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32).eval()
        best = {each.group_id: each.rollout_id for each in found if each.reward == 1}
        seen = 0
        for each in found:
            for place, t in enumerate(each.transitions):
                if t.teacher_logprobs is None:
                    assert each.reward == 1
                    continue
                reply = batch.calls[best[each.group_id]][place].choices[0].message["content"].strip()
                *before, last = batch.calls[each.rollout_id][place].request["messages"]
                hint = algorithm.reply_hint.replace("{reply}", reply)
                shown = [*before, {**last, "content": f"{last['content']}\n\n{hint}"}]
                text = tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
                assert list(t.teacher_ids) == tokenizer(text, add_special_tokens=False).input_ids
                wanted = plain_logprobs(network, list(t.teacher_ids), list(t.completion_ids), t.temperature)
                assert list(t.teacher_logprobs) == pytest.approx(wanted, abs=1e-5)
                seen += 1
        assert seen == 12

    asyncio.run(check())


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([{"role": "user", "content": "2 + 2?"}], [{"role": "user", "content": "2 + 2?\n\nIt is 4."}]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}],
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "2 + 2?"}, {"type": "text", "text": "\n\nIt is 4."}],
                }
            ],
        ),
        (
            [{"role": "user", "content": "2 + 2?"}, {"role": "tool", "content": "overflow"}],
            [
                {"role": "user", "content": "2 + 2?"},
                {"role": "tool", "content": "overflow"},
                {"role": "user", "content": "It is 4."},
            ],
        ),
    ],
    ids=["text", "parts", "after a tool"],
)
def test_the_text_is_the_last_that_the_teacher_is_told(messages: Any, shown: Any) -> None:
    assert add_hint(messages, "It is 4.") == shown


@pytest.mark.parametrize(
    "options", [{"mini_batch_size": 1, "epochs": 2}, {"grpo": 0.5, "gate": 5.0}, {"replay": 1}]
)
def test_a_resumed_run_equals_one_in_peace(options: Any, tmp_path: Path) -> None:
    def values(name: str, *lives: int) -> list[dict[str, float]]:
        app = App()
        for steps in lives:
            found = train(
                tmp_path / name, app, steps=steps, algorithm=lightning.SDPO(**SMALL, **options),
                resume=steps != lives[0], keep_checkpoints=1,
            )  # fmt: skip
        return [
            {k: v for k, v in each.values.items() if not k.endswith(("_seconds", "memory_gib"))}
            for each in found
        ]

    for resumed, peace in zip(values("resumed", 1, 2), values("peace", 2), strict=True):
        assert resumed == pytest.approx(peace, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("backend", ["verl", "tinker"])
def test_other_backends_refuse_it_by_name(backend: str, tmp_path: Path) -> None:
    trainer = lightning.Trainer(
        model="tiny", backend=backend, algorithm="sdpo", folder=tmp_path / "run", progress=False
    )
    with pytest.raises(lightning.LightningError, match="'sdpo'"):
        trainer.fit(App().solve, train=TASKS)
