"""What AIR gave, in numbers: for the metrics of a step and for `agentlightning show`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lightning_core.air.rulebook import SOURCE, is_automatic
from lightning_core.types import Reward, Rollout

SPAN = 5
"""Steps at the beginning and at the end of a run that are compared."""


@dataclass(frozen=True, slots=True)
class RuleLine:
    """One rule over a run."""

    rule: str
    count: int
    total: float
    """Sum of its rewards."""
    share: float
    """Of the rollouts, those that it concerns."""
    first: float
    """Signals for each rollout of the first five steps."""
    last: float
    """The same in the last five."""


def rule_numbers(rules: Iterable[str], rewards: Mapping[str, Sequence[Reward]]) -> dict[str, float]:
    """How often each rule spoke in the rollouts of a step, and the mean of their automatic rewards."""
    given = [reward for of_one in rewards.values() for reward in of_one if is_automatic(reward)]
    counts = Counter(rule_of(reward) for reward in given)
    numbers = {f"air/{rule}": float(counts[rule]) for rule in {**dict.fromkeys(rules), **counts}}
    return {**numbers, "air_reward": sum(reward.value for reward in given) / max(len(rewards), 1)}


def rule_lines(rollouts: Sequence[Rollout], rewards: Mapping[str, Sequence[Reward]]) -> list[RuleLine]:
    """One line for each rule that spoke in these rollouts, the most frequent first."""
    steps = sorted({rollout.step for rollout in rollouts})
    spoke: defaultdict[str, list[tuple[Rollout, float]]] = defaultdict(list)
    for rollout in rollouts:
        for reward in rewards.get(rollout.id, ()):
            if is_automatic(reward):
                spoke[rule_of(reward)].append((rollout, reward.value))

    def rate(given: list[tuple[Rollout, float]], of_steps: list[int]) -> float:
        among = sum(rollout.step in of_steps for rollout in rollouts)
        return sum(rollout.step in of_steps for rollout, _ in given) / max(among, 1)

    lines = [
        RuleLine(
            rule=rule,
            count=len(given),
            total=sum(value for _, value in given),
            share=len({rollout.id for rollout, _ in given}) / len(rollouts),
            first=rate(given, steps[:SPAN]),
            last=rate(given, steps[-SPAN:]),
        )
        for rule, given in spoke.items()
    ]
    return sorted(lines, key=lambda line: (-line.count, line.rule))


def rule_of(reward: Reward) -> str:
    """The name of the rule that gave it."""
    return reward.source.removeprefix(SOURCE)
