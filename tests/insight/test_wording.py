"""The sentence about an advantage: its direction is the advantage's, with the rewards a person sees."""

from __future__ import annotations

import re
from random import Random

import pytest

from lightning_core.algorithms.sft import Best
from lightning_core.credit.anchor import Anchor
from lightning_core.credit.base import Baseline, Credit, Scale
from lightning_core.credit.discounted import Discounted, turn
from lightning_core.credit.evidence import BatchEvidence
from lightning_core.credit.gae import Gae
from lightning_core.credit.hierarchical import Hierarchical
from lightning_core.credit.relevance import Relevance
from lightning_core.credit.tabular import Tabular, state
from lightning_core.credit.whole import per_agent, uniform
from lightning_core.insight.why import Method, Reason, why
from lightning_core.records.types import Trajectory
from tests.credit.telling import Said, tell

METHODS: dict[str, tuple[Credit, list[Baseline]]] = {
    "uniform": (uniform, ["mean", "leave_one_out", "none"]),
    "per_agent": (per_agent, ["mean", "leave_one_out"]),
    "turn": (turn, ["mean", "leave_one_out"]),
    "discounted": (Discounted(0.5), ["mean"]),
    "anchor": (Anchor(), ["mean"]),
    "hierarchical": (Hierarchical(weight=2.0), ["mean"]),
    "state": (state, ["mean"]),
    "tabular": (Tabular(own=0.1), ["mean"]),
    "relevance": (Relevance(floor=0.0), ["mean"]),
    "evidence": (BatchEvidence(), ["mean"]),
    "gae": (Gae(), ["mean"]),
    "best": (Best(), ["mean"]),
}
SCALES: list[Scale] = ["std", "batch", "none"]
NUMBER = r"(-?[\d.,]+(?:e-\d+)?)"
DETAIL = rf"(?: \(final reward {NUMBER}, intermediate rewards {NUMBER}\))?"
EARNED = re.compile(rf"his rollout earned {NUMBER}{DETAIL}[;.]")
EXPECTED = re.compile(rf"(?:with earned|led to|critic expected) {NUMBER}")


def group(random: Random) -> list[Trajectory]:
    """Some rollouts with one to four calls, whose agents, states, replies and rewards repeat."""

    def said(place: int) -> Said:
        return Said(
            agent=random.choice("vw"),
            after=random.choice([None, place - 1]) if place else None,
            reward=random.choice([0.0, 0.0, -0.25, 0.1]),
            shown=random.choice("xyz"),
            reply=random.choice([1, 2, 3]),
            value=random.choice([0.0, 0.3, 0.9]),
        )

    return [
        tell(number, random.choice([0.0, 0.2, 0.5, 1.0]), *map(said, range(random.randint(1, 4))))
        for number in range(random.randint(2, 6))
    ]


def direction(reason: Reason) -> int:
    advantage = reason.advantage or 0.0
    return 0 if abs(advantage) <= 1e-6 else 1 if advantage > 0 else -1


@pytest.mark.parametrize("name", METHODS)
def test_the_direction_is_the_advantages(name: str) -> None:
    random, reasons = Random(0), 0
    credit, baselines = METHODS[name]
    for _ in range(120):
        for baseline in baselines:
            for scale in SCALES:
                found = why(group(random), Method(credit, baseline, scale))
                for reason in found.reasons.values():
                    if reason.advantage is not None:
                        check(reason, found.returns()["g"])
                        reasons += 1
    assert reasons > 100


def check(reason: Reason, returns: dict[str, float]) -> None:
    said, way = reason.sentence, direction(reason)
    assert ("more likely" in said.replace("neither more nor less", "")) == (way > 0), said
    assert ("this reply less likely" in said) == (way < 0), said
    assert ("neither more nor less likely" in said) == (way == 0), said
    earned, expected = EARNED.search(said), EXPECTED.search(said)
    assert earned, said
    if "From here on" not in said:
        assert float(earned[1]) == pytest.approx(returns[reason.trajectory.rollout_id], abs=1e-3)
    if earned[2] is not None:
        assert float(earned[2]) == reason.trajectory.reward
        assert float(earned[2]) + float(earned[3]) == pytest.approx(float(earned[1]), abs=2e-3)
    if ": so the update" in said:  # the two numbers alone are the reason
        assert expected, said
        apart = float(earned[1]) - float(expected[1])
        assert apart * way > 0 or abs(apart) <= 1.1e-3, said
    else:  # they are not, and what is follows
        assert re.search(r"likely: .+\.$", said), said


def test_a_reply_that_led_to_a_better_place_is_said_to_be_more_likely_by_hand() -> None:
    # r0 reached state "y", from where the others earned 1, and broke it later; from "x" others earned 0.5
    def rollout(number: int, reward: float, led: str) -> Trajectory:
        return tell(
            number, reward, Said(shown="x", reply=number), Said(shown=led, after=0, reply=number + 10)
        )

    trajectories = [rollout(0, 0.0, "y"), rollout(1, 1.0, "y"), rollout(2, 1.0, "y"), rollout(3, 0.0, "z")]
    found = why(trajectories, Method(Tabular(own=0.1), scale="none"))
    # own 0.1 * 0 + 0.9 * 1 = 0.9; of others (1 + 1 + 0 and their mean once more) 0.667
    assert found.reasons["r0", "c0", 0].sentence == (
        "This rollout earned 0; comparable starts led to 0.667 on average. The update makes this reply more "
        "likely: others went on from where it led to 1 on average, so it counts as 0.9."
    )
    assert found.reasons["r1", "c0", 0].sentence == (
        "This rollout earned 1; comparable starts led to 0.333 on average: so the update makes this reply "
        "more likely."
    )
