"""From signals to rewards, with the bound that keeps the final reward first.

    r_k = s * w_k,    s = min(1, bound / sum of |w_k|)           over the signals k of one rollout

with w_k the worth of a signal. The rewards of a rollout keep their proportions, and any part of them, the sum
and every return-to-go included, lies between -bound and +bound. What that guarantees:

- Of two rollouts whose final rewards R differ by 1 or more, the better one never has the smaller return R + S
  as long as bound <= 0.5, because R1 + S1 - R2 - S2 >= 1 - 2 * bound.
- The default table only takes away. With it the better one stays ahead by 1 - bound = 0.5 or more.

A reward goes to a completed call of a trained agent with one choice. A call of another agent would change the
return of those that are trained by what somebody else did; of several choices it could not say which.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lightning_core.air.base import AIR, Finder, Records, Signal
from lightning_core.air.reading import read_records
from lightning_core.errors import RewardError
from lightning_core.records.types import REWARD_RANGE, Call, Event, Reward, Rollout, is_reward

SOURCE: Final = "air:"
"""The beginning of an automatic reward's `source`; the rule's name follows."""


class _Finding(NamedTuple):
    rule: str
    signal: Signal
    worth: float


@dataclass(frozen=True, slots=True)
class Rulebook:
    """An `AIR` whose rules have been found by their names."""

    air: AIR
    finders: tuple[tuple[str, Finder], ...]
    """The rules of its table, by name."""

    def rewards(self, rollout: Rollout, calls: Sequence[Call], events: Sequence[Event]) -> list[Reward]:
        """Returns the rewards of a rollout's signals, in the order of its calls.

        Raises RewardError, with the rule and the rollout, if a rule fails or gives what is no reward.
        """
        records = read_records(rollout, calls, events)
        places = {call.id: place for place, call in enumerate(calls) if _rewarded(call)}
        found = [each for each in self._find(records) if each.signal.call_id in places]
        kept = sorted(_strongest(found), key=lambda finding: places[finding.signal.call_id])
        share = _share(kept, self.air.bound)
        agents = {call.id: call.agent for call in calls}
        return [_reward(rollout, agents[each.signal.call_id], each, share) for each in kept]

    def _find(self, records: Records) -> Iterator[_Finding]:
        for name, finder in self.finders:
            yield from _signals(name, finder, records, self.air.rules[name])
        for function in self.air.functions:
            yield from _signals(_name(function), function, records, None)


def is_automatic(reward: Reward) -> bool:
    """Whether AIR gave it."""
    return reward.source.startswith(SOURCE)


def _rewarded(call: Call) -> bool:
    return call.trained and call.status == "completed" and len(call.choices) == 1


def _signals(rule: str, finder: Finder, records: Records, worth: float | None) -> Iterator[_Finding]:
    where = f"AIR rule {rule!r} in rollout {records.rollout.id!r}"
    try:
        signals = list(finder(records))
    except Exception as error:  # a user's own code: say whose, and of what
        raise RewardError(f"{where} failed: {error!r}; mend it and resume") from error
    for signal in signals:
        value = worth if signal.reward is None else signal.reward
        if value is None:
            raise RewardError(f"{where} does not say what its signal is worth; give Signal(..., reward=...)")
        if not is_reward(value):
            raise RewardError(f"{where} gave {value!r}; a reward is {REWARD_RANGE}")
        yield _Finding(rule, signal, float(value))


def _strongest(found: Iterable[_Finding]) -> list[_Finding]:
    """Returns the signal with the largest worth, in either direction, of each request for a tool; the first
    of equals.

    Those that are worth nothing stay beside it: they are there to be counted.
    """
    kept: dict[object, _Finding] = {}
    for place, finding in enumerate(found):
        signal = finding.signal
        alone = signal.tool_call_id is None or finding.worth == 0
        key = place if alone else (signal.call_id, signal.tool_call_id)
        if key not in kept or abs(finding.worth) > abs(kept[key].worth):
            kept[key] = finding
    return list(kept.values())


def _share(found: Iterable[_Finding], bound: float | None) -> float:
    total = math.fsum(abs(finding.worth) for finding in found)
    return 1.0 if bound is None or total <= bound else bound / total


def _reward(rollout: Rollout, agent: str, finding: _Finding, share: float) -> Reward:
    scaled = f" ({finding.worth:+g} before the bound)" if share < 1 else ""
    return Reward(
        rollout_id=rollout.id,
        attempt=rollout.attempts,
        value=share * finding.worth,
        kind="intermediate",
        agent=agent,
        call_id=finding.signal.call_id,
        source=SOURCE + finding.rule,
        reason=finding.signal.detail + scaled,
    )


def _name(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


# rewards given, in numbers, for a step's metrics and `agentlightning show` --------------------------
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
    """Share of the rollouts that it concerns."""
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
