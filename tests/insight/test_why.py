"""Why adds up to what the trainer used, and what-if changes what it is asked to: on records, and on a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.algorithms.dpo import Pairs
from lightning_core.algorithms.sft import Best
from lightning_core.credit.anchor import Anchor
from lightning_core.credit.base import Credit
from lightning_core.credit.discounted import Discounted, turn
from lightning_core.credit.evidence import BatchEvidence
from lightning_core.credit.gae import Gae
from lightning_core.credit.hierarchical import Hierarchical
from lightning_core.credit.relevance import Relevance
from lightning_core.credit.tabular import Tabular, state
from lightning_core.credit.whole import per_agent, uniform
from lightning_core.errors import ConfigError, RewardError, TrainingError
from lightning_core.insight.why import (
    UNPLANNED,
    Method,
    Other,
    Step,
    differing,
    method_of,
    read_why,
    reasons_of,
    what_if,
    why,
)
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Credited, Key, Run, Status
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.tracing.scope import current_scope
from lightning_core.trainer.parts import make_rulebook
from tests.insight.records import call, reward, rollout, step
from tests.trainer.watching import GROUP_SIZE, Watched, fit, grpo, solve

BY_HAND: dict[str, tuple[Credit, float]] = {
    # rewards 1 and 0, one call each which was shown the same: the mean is 0.5
    "uniform": (uniform, 0.5),
    "per_agent": (per_agent, 0.5),
    "discounted": (Discounted(0.5), 0.5),
    "turn": (turn, 0.5),
    "hierarchical": (Hierarchical(), 0.5),
    "anchor": (Anchor(weight=0.5), 0.5 + 0.5 * 0.5),
    "state": (state, 1.0),  # the other one came to 0 from the same state
    "tabular": (Tabular(), 1.0),
    "evidence": (BatchEvidence(), 1.0),  # a batch of one group tells nothing: the mean of the others is off
    "relevance": (Relevance(unknown=0.25), 0.25),  # of two rollouts nothing is known of a turn
    "pairs": (Pairs(), 1.0),
    "best": (Best(), 1.0),
}
PLAIN = Method(uniform, scale="none")


@pytest.mark.parametrize("name", BY_HAND)
def test_what_another_method_would_have_given_by_hand(name: str):
    credit, expected = BY_HAND[name]
    found = what_if(step([1.0, 0.0]), PLAIN, Other(credit=credit))
    assert {one.key[0]: one.before for one in found.changes} == {"r0": 0.5, "r1": -0.5}
    worse = None if name == "best" else -expected
    after = {one.key[0]: one.after for one in found.changes}
    assert after == {"r0": pytest.approx(expected), "r1": worse and pytest.approx(worse)}
    assert "later weights would have been others" in found.note


def test_a_method_that_needs_a_critic_says_so():
    with pytest.raises(TrainingError, match="has no value: credit 'gae' needs an algorithm with a critic"):
        what_if(step([1.0, 0.0]), PLAIN, Other(credit=Gae()))


def test_changes_are_sorted_by_size():
    # of four rewards the highest is furthest from the mean, and its unit is the deviation
    found = what_if(step([1.0, 0.0, 0.0, 0.5]), PLAIN, Other(scale="std"))
    sizes = [one.size for one in found.changes]
    assert sizes == sorted(sizes, reverse=True)
    assert found.changes[0].key == ("r0", "c0", 0)
    assert found.changes[0].after == pytest.approx(0.625 / 0.17**0.5 * (0.17 / 0.171875) ** 0.5)


def test_without_automatic_rewards_by_hand():
    # returns 0.6 and 0: +-0.3; without AIR 1 and 0: +-0.5
    of = step([1.0, 0.0], given=[reward(0, -0.4, 0)])
    found = what_if(of, PLAIN, Other(without_air=True))
    assert {one.key[0]: (one.before, one.after) for one in found.changes} == {
        "r0": (pytest.approx(0.3), 0.5),
        "r1": (pytest.approx(-0.3), -0.5),
    }


def test_another_table_of_automatic_rewards_by_hand():
    # the rule finds the second call of r0; worth 1 in place of 0.4, bounded by 0.5: returns 0.5 and 0
    def rule(records):
        return [lightning.Signal(one.id, "late", reward=-1.0) for one in records.calls if one.id == "c1"][
            : int(records.rollout.id == "r0")
        ]

    of = step([1.0, 0.0], calls=2, given=[reward(0, -0.4, 1, "air:rule")])
    book = make_rulebook(lightning.AIR(rules={}, functions=[rule]), load_plugins([]))
    found = what_if(of, PLAIN, Other(air=book))
    assert {one.key[:2]: one.after for one in found.changes} == {
        ("r0", "c0"): 0.25,
        ("r0", "c1"): 0.25,
        ("r1", "c0"): -0.25,
        ("r1", "c1"): -0.25,
    }


def test_another_reward_function_is_asked_of_what_succeeded():
    failed = rollout(2, -1.0, status=Status.FAILED, error="broke")
    of = step([1.0, 0.0])
    of = Step(
        (*of.rollouts, failed),
        {**of.calls, "r2": [call(2, 0)]},
        {**of.rewards, "r2": []},
        {**of.events, "r2": []},
    )
    asked = []

    def other(records):
        asked.append(records.rollout.id)
        return 1.0 - records.rollout.reward

    found = what_if(of, PLAIN, Other(reward=other))
    assert asked == ["r0", "r1"]
    assert {one.key[0]: (one.before, one.after) for one in found.changes} == {
        "r0": (1.0, 0.0),
        "r1": (0.0, 1.0),
        "r2": (-1.0, -1.0),
    }
    with pytest.raises(RewardError, match="gave rollout 'r0' nan; a reward is a finite number"):
        what_if(of, PLAIN, Other(reward=lambda records: float("nan")))
    with pytest.raises(RewardError, match="failed on rollout 'r0': IndexError: tuple index out of range"):
        what_if(of, PLAIN, Other(reward=lambda records: float(records.calls[9].ended_at)))


def test_who_has_no_advantage_is_told_why():
    even = why(step([1.0, 1.0]).trajectories(), PLAIN)
    assert {one.silent for one in even.reasons.values()} == {
        "the rollouts of its group did not differ where they are compared, so no reward speaks for it"
    }
    of = step([1.0, 0.0])
    calls = {**of.calls, "r0": [call(0, 0), call(0, 1, "judge", trained=False)]}
    found = why(Step(of.rollouts, calls, of.rewards, of.events).trajectories(), PLAIN)
    reason = found.reasons["r0", "c1", 0]
    assert (reason.silent, reason.advantage, reason.share) == ("agent 'judge' is not trained", None, 0.0)
    assert found.returns() == {"g": {"r0": 1.0, "r1": 0.0}}


def test_a_reason_is_said_in_words():
    of = step([1.0, 0.0], given=[reward(0, -0.25, 0)])
    reason = why(of.trajectories(), PLAIN).reasons["r0", "c0", 0]
    assert reason.lines() == [
        "This rollout earned 0.75 (final reward 1, intermediate rewards -0.25); the one rollout it is "
        "compared with earned 0: so the update makes this reply more likely.",
        "advantage +0.375, 50.0% of the loss of its step",
        "counts as +0.750 = final reward (+1.000) + intermediate rewards of the rollout (-0.250)",
        "compared: +0.750, +0.000",
        "(+0.750 - baseline +0.375) / spread 1.000 = +0.375",
    ]
    silent = why(step([1.0, 1.0]).trajectories(), PLAIN).reasons["r0", "c0", 0]
    assert silent.lines() == [f"No advantage: {silent.silent}."]


def test_shares_of_the_loss_add_up_to_1():
    found = why(step([1.0, 0.0, 0.0], calls=2).trajectories(), Method(uniform))
    shares = [one.share for one in found.reasons.values()]
    assert sum(shares) == pytest.approx(1.0)
    assert found.reasons["r0", "c0", 0].share == pytest.approx(0.25)  # 2 of 4 thirds, over two calls


def test_an_advantage_that_the_records_do_not_explain_is_named():
    of = step([1.0, 0.0])
    given = [Credited(rollout_id=f"r{n}", attempt=1, call_id="c0", advantage=0.5) for n in range(2)]
    of = replace(of, credited={one.rollout_id: [one] for one in given})
    assert differing(why(of.trajectories(), PLAIN), of) == [("r1", "c0", 0)]
    assert of.weights() == {("r0", "c0", 0): 0.0, ("r1", "c0", 0): 0.0}


METHODS = [
    "uniform",
    "per_agent",
    "discounted",
    "turn",
    "anchor",
    "hierarchical",
    "state",
    "tabular",
    "relevance",
]


def late(records: Any) -> list[lightning.Signal]:
    """Worth the more, the later the rollout stands in its group."""
    place = int(records.rollout.id.rpartition("-")[2])
    return [lightning.Signal(records.calls[-1].id, "last", reward=-0.05 * place * place)]


async def read(folder: Path) -> tuple[Run, dict[int, Step]]:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        run = await store.find_run(folder.name)
        assert run is not None
        steps = {}
        for number in range(len(METHODS) + 2):
            steps[number], _, _ = await read_why(store, folder.name, number)
        return run, steps


def test_of_a_real_run_the_terms_add_up_to_what_its_updates_used_and_nothing_else_changes(tmp_path: Path):
    air = lightning.AIR(functions=[late])
    backend = Watched()
    phases = [lightning.Phase(grpo(credit=name, entropy=0), 1) for name in METHODS]  # the bonus is apart
    phases.append(lightning.Phase(lightning.ReinforcePP(group_size=4, tasks_per_step=2), 1))
    phases.append(lightning.Phase(lightning.PPO(group_size=4, tasks_per_step=2, aggregation="sequence"), 1))
    fit(tmp_path / "run", phases, backend=backend, steps=None, air=air)
    run, steps = asyncio.run(read(tmp_path / "run"))
    rulebook = make_rulebook(air, load_plugins([]))
    for number, of in steps.items():
        method = method_of(run, number)
        used = {
            t.key: t.advantage
            for each in backend.batches[number][0]
            for t in each.transitions
            if t.advantage is not None
        }
        found = why(of.trajectories(), method)
        assert used
        assert {key for key, one in found.reasons.items() if one.explanation} == used.keys()
        for key, advantage in used.items():
            explanation = found.reasons[key].explanation
            assert explanation is not None
            assert explanation.total == pytest.approx(advantage, abs=1e-6)
            assert explanation.advantage == advantage
        assert differing(found, of) == []
        assert {key for key, one in of.given().items() if one.advantage is not None} == used.keys()
        assert {one.size for one in what_if(of, method, Other()).changes} == {0.0}
        assert max(one.size for one in what_if(of, method, Other(air=rulebook)).changes) < 1e-12
        assert max(one.size for one in what_if(of, method, Other(without_air=True)).changes) > 0.01


async def fails_at_last(task: lightning.Task) -> float:
    """The last of its group breaks after its reply; the others earn less than nothing."""
    earned = await solve(task)
    if earned == (GROUP_SIZE - 1) / GROUP_SIZE:
        raise ValueError("the reply is no number")
    return earned - 1.0


@pytest.mark.parametrize("then", ["lowest", -3.0, "drop"])
def test_a_failure_is_explained_as_the_trainer_counted_it(then: Any, tmp_path: Path):
    rule = lightning.FailurePolicy(retries=0, then=then)
    fit(tmp_path / "run", grpo(credit="uniform"), fails_at_last, steps=1, on_failure=rule)
    run, steps = asyncio.run(read(tmp_path / "run"))
    method = method_of(run, 0)
    found = why(steps[0].trajectories(lowest=method.lowest), method)
    assert differing(found, steps[0]) == []
    returns = [sorted(group.values()) for group in found.returns().values()]
    worst = {"lowest": [-1.0], "drop": []}.get(then, [-3.0])
    assert returns == [[*worst, -1.0, -0.75, -0.5]] * 2
    assert {one.size for one in what_if(steps[0], method, Other()).changes} == {0.0}


def test_of_a_step_that_failed_whole_and_was_run_again_only_the_later_rollouts_are_explained(tmp_path: Path):
    broken = True

    async def app(task: lightning.Task) -> float:
        await solve(task)
        if broken:
            raise ValueError("no such table")
        return float(current_scope().rollout_id.split("-")[-2])  # type: ignore[union-attr]

    plus = lightning.ReinforcePP(tasks_per_step=2)
    with pytest.raises(TrainingError, match="all 2 rollouts failed in step 1"):
        fit(tmp_path / "run", plus, app, steps=1)
    broken = False
    fit(tmp_path / "run", plus, app, steps=1, resume=True)

    async def ask() -> tuple[list[Key], list[str | None]]:
        async with SqliteStore(f"sqlite:///{tmp_path / 'run' / 'store.db'}") as store:
            of, _, found = await read_why(store, "run", 0)
            rollouts = await store.find_rollouts("run", step=0, split="train")
            return differing(found, of), [(await reasons_of(store, one))[1] for one in rollouts]

    assert asyncio.run(ask()) == ([], [UNPLANNED, UNPLANNED, None, None])


def test_a_run_that_was_credited_by_a_method_of_its_own_is_refused():
    own = Run(id="run", config={"credit": [{**PLAIN.written(), "method": "__main__:mine"}]})
    with pytest.raises(ConfigError, match="'__main__:mine', a method of its own; name a credit method"):
        method_of(own, 3)
    with pytest.raises(ConfigError, match="does not say how step 0 was credited"):
        method_of(Run(id="run"), 0)
    options = Method(Discounted(0.5), "leave_one_out", "none", 2)
    kept = Run(id="run", config={"credit": [PLAIN.written(), options.written()]})
    assert (method_of(kept, 1), method_of(kept, 7)) == (PLAIN, options)
