"""The price of a second policy at equal tokens: `python -m benchmarks.policies`.

One policy answers n prompts at once, or two answer half of them each, at the same time. Then one policy is
updated from n replies, or two from half of them each. All are LoRA of rank 16 on one frozen base, as
`Trainer(policies=...)` has them. Given is the CPU time of two in units of that of one, in pairs that take
turns. The goal is 1.3.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.base import Batch
from lightning_core.backends.local.backend import LocalBackend
from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.backends.settings import LoraOptions, PolicyOptions
from lightning_core.records.types import Trajectory, Transition

RESULT = Path("benchmarks/results/policies.json")
PROMPT, REPLY = 150, 40
COUNTS = (8, 32, 64)
GOAL = 1.3


def make_prompts(count: int, vocabulary: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(5, vocabulary) for _ in range(PROMPT)] for _ in range(count)]


async def answer(backends: Sequence[LocalBackend], prompts: Sequence[Sequence[int]]) -> list[Completion]:
    """All replies, each policy in its turn of the prompts, all at once."""
    asked = []
    for index, prompt in enumerate(prompts):
        options = SamplingOptions(max_tokens=REPLY, seed=str(index))
        asked.append(Completion(list(prompt), options, CompletionRequest()))
        backends[index % len(backends)].sampler.submit(asked[-1])
    for each in asked:
        while not each.finished:
            await each.request.wait()
    return asked


async def update(backends: Sequence[LocalBackend], replies: Sequence[Completion], step: int) -> None:
    """An update of each policy from its own replies, half of them praised."""
    for index, backend in enumerate(backends):
        own = tuple(
            Trajectory(
                f"r{number}",
                "g",
                "t",
                0.0,
                (
                    Transition(
                        f"r{number}",
                        "c",
                        0,
                        "agent",
                        True,
                        reply.prompt_ids,
                        reply.ids,
                        reply.logprobs,
                        None,
                        advantage=(-1.0) ** (number // 2),
                    ),
                ),
            )
            for number, reply in enumerate(replies)
            if number % len(backends) == index
        )
        await backend.update(Batch(step, own), GRPO(correction=None))


async def measure(model: str, counts: Sequence[int], repeats: int) -> dict[str, list[float]]:
    """Ratios by what was measured."""
    own = LocalBackend(model, lora=LoraOptions(rank=16), dtype="float32", context=256)
    await own.start()
    second = own.another(PolicyOptions("b"))
    await second.start()
    for each in (own, second):
        each.sampler._stop_ids = frozenset()  # every reply has as many tokens
    ratios: dict[str, list[float]] = {}
    vocabulary = own._started.policy.base.config.vocab_size
    for repeat in range(repeats + 1):  # the first warms up
        for count in counts:
            took: dict[str, list[float]] = {"replies": [], "update": []}
            for backends in ([own], [own, second])[:: 1 if repeat % 2 else -1]:
                began = time.process_time()
                replies = await answer(backends, make_prompts(count, vocabulary, repeat))
                sampled = time.process_time()
                await update(backends, replies, repeat)
                took["replies"].append(sampled - began)
                took["update"].append(time.process_time() - sampled)
            for name, (first, other) in took.items():
                two, one = (other, first) if repeat % 2 else (first, other)
                ratios.setdefault(f"{name}, {count}", []).extend([two / one] if repeat else [])
    for each in (second, own):
        await each.close()
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="replies at once")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {model: asyncio.run(measure(model, options.counts, options.repeats)) for model in options.models}
    table = Table("model", "what", f"CPU of two policies over one (goal {GOAL})", "least", "most")
    for model, ratios in found.items():
        for name, values in ratios.items():
            middle = statistics.median(values)
            table.add_row(model, name, *(f"{value:.2f}" for value in (middle, min(values), max(values))))
    Console().print(table)
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps({**known, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
