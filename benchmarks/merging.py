"""Updates with shared prefixes trained once against updates on every call by itself: `python -m
benchmarks.merging`.

Groups of 8 rollouts of one task; a first prompt of 100 tokens, then each turn 25 sampled and 25 observed
tokens. The goal for 8 turns is a speed-up of at least 85 % of the token ratio: tokens through the model
unmerged to merged.
"""

from __future__ import annotations

import argparse
import random
import time

import torch

from benchmarks.report import Row, publish
from benchmarks.shapes import VOCABULARY, random_qwen3
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.local.attention import use_plans
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.packing import PACK_TOKENS
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.settings import TrainingSettings
from lightning_core.backends.weights.model import Model
from lightning_core.records.types import Trajectory, Transition

PROMPT, SAMPLED, OBSERVED, GROUP = 100, 25, 25, 8


def make_batch(turns: int, rollouts: int, seed: int) -> tuple[Trajectory, ...]:
    """Rollouts of `turns` calls, each going on from all before it; eight of a task begin alike."""
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(5, VOCABULARY) for _ in range(count)]

    trajectories = []
    prompt: list[int] = []
    for r in range(rollouts):
        if r % GROUP == 0:
            prompt = tokens(PROMPT)
        history, calls = list(prompt), []
        for turn in range(turns):
            sampled = tokens(SAMPLED)
            logprobs = [-7.0] * SAMPLED
            calls.append(
                Transition(
                    f"r{r}",
                    f"c{turn}",
                    0,
                    "agent",
                    True,
                    list(history),
                    sampled,
                    logprobs,
                    0,
                    advantage=(-1.0) ** r,
                )
            )
            history += sampled + tokens(OBSERVED)
        trajectories.append(Trajectory(f"r{r}", f"g{r // GROUP}", f"t{r // GROUP}", 0.0, tuple(calls)))
    return tuple(trajectories)


def make_optimizer(*, merge: bool, pack_tokens: int) -> Optimizer:
    """A fresh policy in the shape of the shipped one."""
    network = random_qwen3()
    use_plans(network)
    policy = Policy(Model("random", network, None, 4096, frozenset()), None)
    settings = TrainingSettings(pack_tokens=pack_tokens)
    settings.prefix_sharing = merge
    return Optimizer(policy, settings, source="random")


def measure(turns: int, rollouts: int, repeats: int, pack_tokens: int, cpu: bool) -> tuple[Row, float]:
    """Sampled tokens per second of an update, merged and not, and the token ratio."""
    now = time.process_time if cpu else time.perf_counter
    speeds: dict[str, list[float]] = {"unmerged": [], "merged": []}
    ratio = 1.0
    optimizers = {name: make_optimizer(merge=name == "merged", pack_tokens=pack_tokens) for name in speeds}
    for repeat in range(repeats + 1):
        batch = make_batch(turns, rollouts, repeat)
        for name, optimizer in optimizers.items():
            started = now()
            metrics = optimizer.update(batch, GRPO())
            if repeat:  # the first one warms up
                speeds[name].append(metrics["tokens"] / (now() - started))
            ratio = max(ratio, metrics["merge_ratio"])
    return Row(f"{turns} turns, token ratio {ratio:.2f}", "unmerged", speeds, "sampled tokens/s"), ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--turns", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--pack-tokens", type=int, default=PACK_TOKENS)
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor seconds, for a machine that is shared"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows, notes = [], {}
    for turns in asked.turns:
        row, ratio = measure(turns, asked.rollouts, asked.repeats, asked.pack_tokens, asked.cpu_time)
        rows.append(row)
        reached = sorted(r / ratio for r in row.ratios("merged"))[asked.repeats // 2]
        notes[f"{turns} turns"] = {"token_ratio": ratio, "share_of_token_ratio": reached}
    publish("merging", "Merged against unmerged updates", rows, notes)
    for setting, note in notes.items():
        print(f"{setting}: {note['share_of_token_ratio']:.0%} of the token ratio {note['token_ratio']:.2f}")


if __name__ == "__main__":
    main()
