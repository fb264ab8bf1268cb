"""The driver's cost of handing a batch to verl: `python -m benchmarks.verl_rows`.

Rollouts of four calls that go on from one another, eight of a task, about 330 tokens to a transition, every
fifth with a history that the app changed. Measured are the arrays of what was read from a store, the rows,
their shares for 8 ranks, the tensors, and the values read back, in transitions per processor second. The goal
is a cost of a transition that does not grow with the batch. Each size runs once before it counts, as the
memory of a batch is kept for the next.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.report import Row as Measured
from benchmarks.report import publish
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.rows import make_rows, report_rows, share
from lightning_core.backends.verl.batch import BatchMemory, entry_values, fields
from lightning_core.records.sequences import as_ids, as_logprobs
from lightning_core.records.types import Trajectory, Transition

PROMPT, SAMPLED, OBSERVED, TURNS, GROUP, RANKS = 100, 80, 20, 4, 8, 8
VOCABULARY = 150_000


def make_batch(transitions: int) -> tuple[Trajectory, ...]:
    draw = np.random.default_rng(0)
    batch = []
    prompt = draw.integers(0, VOCABULARY, PROMPT)
    for r in range(transitions // TURNS):
        if r % GROUP == 0:
            prompt = draw.integers(0, VOCABULARY, PROMPT)
        history, calls = prompt, []
        for turn in range(TURNS):
            sampled = draw.integers(0, VOCABULARY, SAMPLED)
            calls.append(
                Transition(
                    f"r{r}",
                    f"c{turn}",
                    0,
                    "agent",
                    True,
                    as_ids(history.tolist()),
                    as_ids(sampled.tolist()),
                    as_logprobs((-draw.random(SAMPLED)).tolist()),
                    0,
                    advantage=(-1.0) ** r,
                )
            )
            history = np.concatenate((history, sampled, draw.integers(0, VOCABULARY, OBSERVED)))
            if r % 5 == 0 and turn == 0:
                history[-OBSERVED - 1] += 1
        batch.append(Trajectory(f"r{r}", f"g{r // GROUP}", f"t{r // GROUP}", 0.0, tuple(calls)))
    return tuple(batch)


def collect(batch: tuple[Trajectory, ...]) -> float:
    """Processor seconds of making arrays of what was read from a store, a rollout at a time."""
    spent = 0.0
    for trajectory in batch:
        read = [
            (list(t.prompt_ids), list(t.completion_ids), list(t.logprobs)) for t in trajectory.transitions
        ]
        started = time.process_time()
        for prompt, completion, logprobs in read:
            as_ids(prompt), as_ids(completion), as_logprobs(logprobs)
        spent += time.process_time() - started
    return spent


def hand_over(batch: tuple[Trajectory, ...], memory: BatchMemory) -> tuple[dict[str, float], float]:
    """Processor seconds of each step and of all, and the token ratio."""
    seconds = {"arrays": collect(batch)}
    gc.collect()

    def timed(name: str, step: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = step()
        seconds[name] = time.process_time() - started
        return result

    weights = timed("weights", lambda: GRPO().weigh(batch))
    rows = timed("rows", lambda: make_rows(batch, weights))
    rows = timed("shares", lambda: share(rows, RANKS))
    report = timed("report", lambda: report_rows(batch, rows))
    data = timed("tensors", lambda: fields(rows, memory))
    output = data["input_ids"].float()  # as large as what a worker gives back
    timed("values back", lambda: entry_values(output, rows))
    return {"all": sum(seconds.values()), **seconds}, report.ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--transitions", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    speeds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    notes: dict[str, Any] = {}
    for transitions in asked.transitions:
        batch, size, memory = make_batch(transitions), f"{transitions:,}", BatchMemory()
        for repeat in range(asked.repeats + 1):
            seconds, ratio = hand_over(batch, memory)
            for step, spent in seconds.items() if repeat else ():
                speeds[step][size].append(transitions / spent)
        notes[size] = {"token_ratio": ratio}
    baseline = f"{asked.transitions[0]:,}"
    rows = [Measured(step, baseline, dict(values), "transitions/s") for step, values in speeds.items()]
    publish("verl_rows", "Handing a batch to verl, by its size", rows, notes)
    for size in notes:
        each = 1e6 / statistics.median(speeds["all"][size])
        print(f"{size} transitions: {each:.1f} µs each, token ratio {notes[size]['token_ratio']:.2f}")


if __name__ == "__main__":
    main()
