"""Recorded batches with branches, several agents and temperatures, and a model run as verl runs it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lightning_core.backends.rows import Row
from lightning_core.experience.trajectories import Floats
from lightning_core.records.types import Key, Trajectory, Transition

VOCABULARY = 300


def play(seed: int, rollouts: int = 4, calls: int = 6) -> tuple[Trajectory, ...]:
    """A group of rollouts in which two agents take turns and a third is not trained; histories go on, branch,
    or are changed, and now and then two rollouts sample the same. Final rewards differ."""
    draw = random.Random(seed)

    def tokens(least: int, most: int) -> list[int]:
        return [draw.randrange(5, VOCABULARY) for _ in range(draw.randrange(least, most))]

    prompts = [tokens(5, 30), tokens(5, 12), tokens(5, 8)]
    same = tokens(2, 5)
    batch = []
    for r in range(rollouts):
        histories, transitions = [list(p) for p in prompts], []
        for c in range(calls):
            agent = draw.choice([0, 0, 1, 1, 2])
            reply = same if draw.random() < 0.2 else tokens(1, 12)
            transitions.append(
                Transition(
                    f"r{r}", f"c{c}", 0, f"a{agent}", agent < 2, list(histories[agent]), reply,
                    [0.0] * len(reply), 0, temperature=[1.0, 0.7, 1.0][agent],
                    advantage=draw.uniform(-1, 1), value=draw.uniform(-1, 1), target=draw.uniform(-1, 1),
                )
            )  # fmt: skip
            kind = draw.random()
            if kind < 0.6:
                histories[agent] += reply + tokens(1, 8)
            elif kind < 0.8:
                histories[agent] += reply[:-1] + tokens(1, 8)
        batch.append(Trajectory(f"r{r}", f"g{r // 2}", f"t{r // 2}", float(r % 2), tuple(transitions)))
    return tuple(batch)


def parents(row: Row) -> list[int]:
    """The index of each entry's parent in its row, told from the spans one by one."""
    return [
        first + i
        for first, count in zip(row.spans["first"].tolist(), row.spans["count"].tolist(), strict=True)
        for i in range(count)
    ]


@torch.no_grad()
def score(network: torch.nn.Module, batch: Sequence[Trajectory]) -> dict[Key, list[float]]:
    """The logprobs of each reply under that network, each by itself."""
    found = {}
    for t in (t for each in batch for t in each.transitions):
        ids = torch.tensor([*t.prompt_ids, *t.completion_ids])
        logits = network(input_ids=ids[None]).logits[0] / t.temperature
        first = len(t.prompt_ids)
        found[t.key] = logits.log_softmax(-1)[first - 1 : -1].gather(1, ids[first:, None])[:, 0].tolist()
    return found


def recorded_by(network: torch.nn.Module, batch: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """The batch with the logprobs of that network, each off by a little."""
    draw = random.Random(0)
    exact = score(network, batch)
    return tuple(
        replace(
            each,
            transitions=tuple(
                replace(t, logprobs=[p + draw.gauss(0, 0.3) for p in exact[t.key]]) for t in each.transitions
            ),
        )
        for each in batch
    )


def arrange(numbers: Mapping[Key, Sequence[float]], keys: Iterable[Key]) -> Floats:
    """The numbers of these transitions, one after another."""
    return np.concatenate([np.empty(0), *(np.asarray(numbers[key]) for key in keys)]).astype(np.float32)


def run(network: torch.nn.Module, data: Mapping[str, Any]) -> torch.Tensor:
    """Returns the output of verl's engine for a micro-batch: each token's next one's log-probability,
    nested."""
    temperatures = data["temperature"].tolist()
    found = []
    for ids, positions, temperature in zip(
        data["input_ids"].unbind(), data["position_ids"].unbind(), temperatures, strict=True
    ):
        logits = network(input_ids=ids[None], position_ids=positions[None]).logits[0] / temperature
        found.append(logits.log_softmax(-1).gather(1, ids.roll(-1)[:, None])[:, 0])
    return torch.nested.as_nested_tensor(found, layout=torch.jagged)


def scatter(rows: Sequence[Row], parts: int, seed: int) -> list[list[Row]]:
    """The rows thrown into so many parts at most, none of them empty."""
    draw = random.Random(seed)
    places: list[list[Row]] = [[] for _ in range(parts)]
    for row in draw.sample(list(rows), len(rows)):
        draw.choice(places).append(row)
    return [place for place in places if place]
