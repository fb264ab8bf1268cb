"""Bootstrap: prompts with demonstrations, which are the agents' own replies in rollouts that went well.

The seed is run on training tasks. Random sets of its successes are added to the prompts, each set a
candidate, and the tasks that choose decide. No second model is needed. More demonstrations are not better,
and those of other tasks may hurt, so a prompt without any is always among the candidates.

After DSPy's BootstrapFewShotWithRandomSearch (Khattab et al., DSPy, arXiv 2310.03714, section 4). Left out: a
stronger teacher, as its replies are for SFT to learn from.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from lightning_core.algorithms.search import Bench, Candidate, Search, Trial, mean
from lightning_core.dialects import transcript
from lightning_core.errors import ConfigError
from lightning_core.records.types import Call

Example = tuple[str, str]
"""The instructions of an agent, and its reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap(Search):
    """Adds the agents' own successes to their prompts."""

    shots: Sequence[int] = (1, 2, 3)
    """How many demonstrations a candidate has, in turn."""

    def __post_init__(self) -> None:
        Search.__post_init__(self)
        if not self.shots or min(self.shots) < 1:
            raise ConfigError(f"Bootstrap(shots={self.shots!r}): give whole numbers of 1 or more")

    async def search(self, bench: Bench) -> Candidate:
        price = len(bench.choosing) * self.repeats
        tasks = bench.train[: max(1, (bench.left - price) // (2 * self.repeats))]
        seen, before = await bench.evaluate([(bench.seed, tasks), (bench.seed, bench.choosing)])
        pools = {name: examples(seen, name, bench.prompts[name].placeholders) for name in bench.seed}
        drawn = random.Random(f"bootstrap-{bench.random_seed}")
        candidates: list[Candidate] = []
        for number in range(bench.left // price):
            shots = self.shots[number % len(self.shots)]
            texts = {
                name: with_examples(bench.seed[name], _draw(drawn, pool, shots))
                for name, pool in pools.items()
            }
            candidate = await bench.propose(bench.seed, texts)
            if candidate is not None and candidate not in candidates:
                candidates.append(candidate)
        tried = await bench.evaluate([(each, bench.choosing) for each in candidates])
        found = max(range(len(tried)), key=lambda each: mean(tried[each]), default=None)
        if found is None or mean(tried[found]) <= mean(before):
            return bench.seed
        return candidates[found]


def examples(trials: Sequence[Trial], agent: str, placeholders: Sequence[str]) -> list[Example]:
    """The agent's first reply in each rollout that went well: one with more than the mean reward, or any with
    a reward above 0 if all are alike. Texts with a placeholder are left out."""
    episodes = [each for trial in trials for each in trial.episodes]
    usual = fmean(each.reward for each in episodes)
    alike = len({each.reward for each in episodes}) == 1
    good = [each for each in episodes if (each.reward > 0 if alike else each.reward > usual)]
    first = (next((call for call in each.calls if call.agent == agent), None) for each in good)
    found = [_example(call) for call in first if call is not None]
    told = dict.fromkeys(each for each in found if each is not None)
    return [each for each in told if not any(place in part for place in placeholders for part in each)]


def with_examples(text: str, chosen: Sequence[Example]) -> str:
    """The prompt with demonstrations after it."""
    told = [f"Input:\n{asked}\nReply:\n{replied}" for asked, replied in chosen]
    return "\n\n".join([text, "Examples:", *told]) if told else text


def _example(call: Call) -> Example | None:
    told = [message for message in transcript.prompt(call) if message["role"] not in ("system", "developer")]
    replied = transcript.replies(call)[:1]
    asked, answer = (
        "\n".join(transcript.said(part) for message in part_of for part in message["parts"])
        for part_of in (told, replied)
    )
    return (asked, answer) if call.status == "completed" and asked and answer else None


def _draw(drawn: random.Random, pool: Sequence[Example], shots: int) -> Sequence[Example]:
    return drawn.sample(pool, min(shots, len(pool)))
