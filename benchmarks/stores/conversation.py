"""A harness's conversation: each call has all that came before, and 450 new words.

Measures what 60 such calls of one rollout take in the store, and the CPU of recording and reading them. The
last request is 310 KiB and its prompt 81,000 tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from benchmarks.stores.sites import Site
from benchmarks.stores.timing import cost
from lightning_core.records.types import Call, Choice, Rollout, Task

TURNS = 60
FEW = 5
"""Calls at either end of the conversation whose cost is told."""
TOOL: JsonValue = {"type": "function", "function": {"name": "bash", "description": "Runs a command. " * 200}}


@dataclass(frozen=True, slots=True)
class Talk:
    """Space and CPU of the calls of a conversation."""

    mib: float
    first_ms: float
    """CPU of recording one of the first calls, caller and server together."""
    last_ms: float
    """The same of the last."""
    read_ms: float
    """CPU of reading the whole conversation."""


def words(seed: int = 0) -> Iterator[tuple[str, list[int]]]:
    """Words and their three tokens, by chance out of 20,000."""
    chance = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["".join(chance.choices(letters, k=chance.randint(6, 15))) for _ in range(20_000)]
    tokens = {word: [chance.randrange(32_000) for _ in range(3)] for word in known}
    while True:
        word = chance.choice(known)
        yield word, tokens[word]


def calls(rollout_id: str, turns: int = TURNS, *, new: int = 400, reply: int = 50) -> list[Call]:
    """The calls of a rollout's first attempt, each with `new` more words of the app and then `reply` words of
    the model."""
    source, found = words(), list[Call]()
    ids: list[int] = []
    messages: list[JsonValue] = []

    def text(count: int) -> tuple[str, list[int]]:
        drawn = [next(source) for _ in range(count)]
        return " ".join(word for word, _ in drawn), [token for _, three in drawn for token in three]

    for turn in range(turns):
        said, tokens = text(new)
        ids += tokens
        messages.append({"role": "user", "content": said})
        answer, sampled = text(reply)
        message: dict[str, JsonValue] = {"role": "assistant", "content": answer}
        call = Call(
            id=f"c{turn}",
            rollout_id=rollout_id,
            attempt=1,
            agent="coder",
            trained=True,
            request={"model": "policy", "messages": list(messages), "tools": [TOOL], "temperature": 1.0},
            prompt_ids=list(ids),
            choices=[Choice(completion_ids=sampled, logprobs=[-0.5] * len(sampled), message=message)],
            started_at=float(turn),
            ended_at=turn + 0.5,
        )
        found.append(call)
        ids += sampled
        messages.append(message)
    return found


async def measure(site: Site) -> Talk:
    """The conversation, written call by call and read back. Raises RuntimeError if it is not the same."""
    given = calls("r")
    async with site.open() as store:
        await store.enqueue([Rollout(id="r", run_id="run", task=Task(input={}), group_id="g", step=0)])
        await store.lease("w", 1, 600.0)
        remaining = iter(given)
        costs = [
            await cost(site.server_cpu, lambda _: store.add_call(next(remaining)), FEW)
            for _ in range(TURNS // FEW)
        ]
        read = await cost(site.server_cpu, lambda _: store.get_calls(["r"]), 1)
        if (await store.get_calls(["r"]))["r"] != given:
            raise RuntimeError(f"the conversation came back from {site.name} as another one")
    assert site.held is not None
    return Talk(site.held() / 2**20, costs[0].cpu_ms, costs[-1].cpu_ms, read.cpu_ms)
