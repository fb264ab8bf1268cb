"""The truths of the credit suite are true, its runs follow the exact gradient, its page says what was run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from benchmarks.intervals import median_of, ratio_of
from benchmarks.page import insert
from lightning_core.algorithms.policy_gradient import RLOO
from lightning_core.credit.base import assign
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Key, Trajectory
from research.credit import comparing
from research.credit.__main__ import main
from research.credit.chain import Chain
from research.credit.comparing import FINAL, compare, find_method, find_rate
from research.credit.delegation import Delegation
from research.credit.environment import KINDS, Environment
from research.credit.gradient import cost, policies, ratios, softmax
from research.credit.playing import Batch
from research.credit.publishing import RECORD, Record, Section, read, render
from research.credit.suite import SUITE
from research.credit.tail import Reading, Waiting
from research.credit.team import Team
from research.credit.training import Method, loss_of, train
from research.credit.truth import Floats, Truth
from research.credit.walk import Walk

ROOT = Path(__file__).parents[2]
PLUGINS = load_plugins()
SMALL: list[Environment] = [
    Chain("chain", decisive=1, steps=3, tasks=KINDS),
    Team("team", talks=(1, 1, 1), heard=True, tasks=KINDS),
    Walk("walk", horizon=5, tasks=KINDS),
    Reading("reading", tasks=KINDS),
    Waiting("waiting", tasks=KINDS),
    Delegation("delegation", tasks=KINDS),
    Delegation("paid", paid=True, tasks=KINDS),
]


def named(environment: Environment) -> str:
    return environment.name


def some_policy(truth: Truth, seed: int = 0) -> Floats:
    """(P, A) probabilities, none of them near 0."""
    logits = np.random.default_rng(seed).normal(size=truth.even.shape)
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def best_policy(truth: Truth) -> Floats:
    """(P, A) an action that is best in every state which shows that prompt."""
    values, actions = truth.values(None)
    fit = np.ones_like(truth.even)
    for state, prompt in enumerate(truth.prompt_of):
        if prompt >= 0:
            fit[prompt] *= actions[state] >= values[state] - 1e-12
    return fit / fit.sum(1, keepdims=True)


@pytest.mark.parametrize("name", SUITE)
def test_the_best_success_is_1_and_a_policy_that_sees_its_prompt_only_has_it(name: str) -> None:
    truth = Truth(replace(SUITE[name].environment, tasks=KINDS))  # type: ignore[type-var]
    assert truth.optimum == pytest.approx(1.0)
    assert truth.success(best_policy(truth)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("environment", "chance"),
    [
        (Chain("chain", decisive=4), 1 / 4),
        (Team("team", talks=(3, 3, 3)), 1 / 4 * 2 / 4),
        (Reading("reading", tasks=KINDS), 1 / 4),
        (Delegation("delegation"), 2 / 4 * 1 / 4),
        (Delegation("paid", paid=True), 2 / 4 * 1 / 4),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_chance_succeeds_as_often_as_counting_says(environment: Environment, chance: float) -> None:
    truth = Truth(environment)
    assert truth.success(truth.even) == pytest.approx(chance)


@pytest.mark.parametrize("environment", SMALL, ids=named)
def test_the_exact_gradient_is_the_slope_of_the_exact_success(environment: Environment) -> None:
    truth = Truth(environment)
    policy = some_policy(truth)
    gradient, logits = truth.gradient(policy), np.log(policy)
    for index in [(0, 0), (len(policy) // 2, 1), (len(policy) - 1, 2)]:
        up, down = logits.copy(), logits.copy()
        up[index] += 1e-5
        down[index] -= 1e-5
        above, below = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (up, down))
        slope = (truth.success(above) - truth.success(below)) / 2e-5
        assert gradient[index] == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("environment", SMALL, ids=named)
def test_played_rollouts_earn_what_is_exactly_expected(environment: Environment) -> None:
    truth = Truth(environment)
    policy = some_policy(truth)
    batch = Batch(truth, policy, 0, Random(0))
    for task in range(environment.tasks):
        batch.play(task, 200)
    returns = np.array([trajectory.reward + trajectory.intermediate for trajectory in batch.trajectories])
    error = returns.std() / np.sqrt(len(returns))
    assert abs(returns.mean() - truth.success(policy)) < 4 * error


def test_what_the_irrelevant_agent_says_never_matters() -> None:
    truth = Truth(Team("team", talks=(3, 3, 3), heard=True, tasks=KINDS))
    policy = some_policy(truth)
    # the others must not mind the remark, as the best of them do not; then no remark changes anything
    rows = {}
    for row, turn in enumerate(truth.prompts):
        unheard = " ".join(word for word in turn.observation.split() if not word.startswith("remark"))
        policy[row] = policy[rows.setdefault((turn.agent, turn.before, unheard), row)]
    _, actions = truth.values(policy)
    talking = [s for s, turn in enumerate(truth.turns) if turn is not None and turn.agent == "talker"]
    assert np.ptp(actions[talking], axis=1).max() == pytest.approx(0.0, abs=1e-12)
    others = [s for s, turn in enumerate(truth.turns) if turn is not None and turn.agent != "talker"]
    assert np.ptp(actions[others], axis=1).max() > 0.1


def test_only_the_decisive_step_of_a_chain_matters() -> None:
    truth = Truth(Chain("chain", decisive=4))
    _, actions = truth.values(some_policy(truth))
    matters = [bool(np.ptp(actions[s]) > 1e-12) for s in range(len(truth.states))]
    decisive = [turn is not None and turn.observation == "step4" for turn in truth.turns]
    assert matters == decisive


def test_freely_worded_replies_are_never_the_same_and_are_not_learnt() -> None:
    truth = Truth(Chain("chain", decisive=1, steps=3, tasks=KINDS, wordings=10_000))
    batch = Batch(truth, truth.even, 0, Random(0))
    batch.play(0, 8)
    replies = [tuple(t.completion_ids) for each in batch.trajectories for t in each.transitions]
    assert len(replies) == len(set(replies)) == 24
    assert {t.logprobs[1] for each in batch.trajectories for t in each.transitions} == {-log(10_000)}
    assert truth.success(truth.even) == pytest.approx(1 / 4)


def test_a_hidden_outcome_is_in_no_observation() -> None:
    shown, hidden = (
        {turn.observation for turn in Truth(Chain("chain", decisive=4, seen=seen)).prompts}
        for seen in (True, False)
    )
    assert shown - hidden == {f"step{n} {light}" for n in range(5, 12) for light in ("lit", "dark")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed(RLOO):
    """Every token with the same weight in every batch, so that a batch's mean has no random divisor."""

    def weigh(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        return {t.key: 1.0 for trajectory in trajectories for t in trajectory.transitions}


def pipeline_gradient(truth: Truth, policy: Floats, method: Method, batch: Batch) -> Floats:
    """(P, A) of the success, as estimated from a batch by credit and loss."""
    algorithm = method.algorithm
    credited, _ = assign(batch.trajectories, method.credit, algorithm.baseline, algorithm.scale)
    logits = torch.from_numpy(np.log(policy)).requires_grad_()
    if credited:
        loss, _ = loss_of(logits, credited, algorithm, batch.row, truth.first_action)
        torch.autograd.backward(loss)
    slope = np.zeros_like(policy) if logits.grad is None else logits.grad.numpy()
    return -slope / len(batch.trajectories)


@pytest.mark.parametrize("credit", ["uniform", "state"])
@pytest.mark.parametrize("environment", SMALL[:2] + SMALL[-1:], ids=named)
def test_the_pipeline_s_mean_gradient_is_the_exact_one(environment: Environment, credit: str) -> None:
    truth = Truth(environment)
    policy = some_policy(truth)
    method = Method(credit, find_method(credit, PLUGINS).credit, Summed(group_size=4))
    random, found = Random(1), []
    for step in range(200):
        batch = Batch(truth, policy, step, random)
        for task in range(environment.tasks):
            batch.play(task, method.algorithm.group_size)
        found.append(pipeline_gradient(truth, policy, method, batch))
    estimates = np.array(found)
    error = estimates.std(0) / np.sqrt(len(estimates)) + 1e-4
    assert (np.abs(estimates.mean(0) - truth.gradient(policy)) / error).max() < 4.5


def test_a_cost_is_the_error_after_scaling() -> None:
    exact = np.array([1.0, 0.0])
    # both make the progress 2; scaled to 1 they are off by 1 to either side
    assert cost(np.array([[2.0, 2.0], [2.0, -2.0]]), exact) == 1.0
    assert cost(np.array([[-1.0, 0.0]]), exact) == float("inf")


def test_costs_are_compared_on_the_way_to_a_solved_game_and_fall_with_larger_batches() -> None:
    truth = Truth(Chain("small", decisive=1, steps=3, tasks=4))
    way = [truth.success(softmax(logits)) for logits in policies(truth)]
    assert way == sorted(way)
    assert way[-1] > 0.8
    method = find_method("uniform", PLUGINS)
    small = Method("small", method.credit, RLOO(group_size=2, tasks_per_step=4, credit="uniform"))
    found = ratios(truth, [method, small], batches=40)
    assert found["uniform"].value == 1.0
    assert found["small"].low > 1.5


@pytest.mark.parametrize("credit", ["uniform", "gae"])
def test_training_comes_to_the_best_success(credit: str) -> None:
    truth = Truth(Chain("chain", decisive=0, steps=2, tasks=KINDS))
    run = train(truth, find_method(credit, PLUGINS), rate=0.04, seed=0, updates=40, aim=0.9, until=True)
    assert run.success[0] == pytest.approx(1 / 4)
    assert run.success[-1] >= 0.9
    assert run.reached == len(run.success) - 1


def test_runs_of_one_seed_are_the_same() -> None:
    truth = Truth(Team("team", talks=(1, 0, 0), tasks=KINDS))
    runs = [train(truth, find_method("uniform", PLUGINS), 0.04, seed, 3, 2.0) for seed in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0].reached is None


def test_the_rate_is_climbed_to_from_the_middle_of_the_grid() -> None:
    tried: list[tuple[float, int]] = []

    def score(rate: float, times: int) -> tuple[float, float]:
        tried.append((rate, times))
        return abs(rate - 0.01), 0.0

    rate, scores = find_rate(score, (0.01, 0.02, 0.04, 0.08, 0.16))
    assert rate == 0.01
    assert sorted(scores) == [0.01, 0.02, 0.04, 0.08]
    assert sorted(tried) == [(0.01, 1), (0.01, FINAL), (0.02, 1), (0.02, FINAL), (0.04, 1), (0.08, 1)]


def test_a_rate_that_fails_on_the_further_seeds_is_not_taken() -> None:
    def score(rate: float, times: int) -> tuple[float, float]:
        return (9.0 if rate == 0.08 and times > 1 else 0.16 - rate), 0.0

    rate, scores = find_rate(score, (0.01, 0.02, 0.04, 0.08))
    assert rate == 0.04
    assert scores[0.08] == (9.0, 0.0)


def test_intervals_hold_the_estimate_and_pair_the_seeds() -> None:
    found = median_of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.value, found.low) == (3.0, 1.0)
    assert found.high == 100.0
    # each seed's runs are half the base's, so whatever seeds are drawn the ratio is a half
    half = ratio_of([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert (half.low, half.value, half.high) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match=r"\[1, 2\] seeds"):
        ratio_of([1.0, 2.0], [1.0])


def test_a_quick_run_writes_record_page_and_plot(tmp_path: Path) -> None:
    page, record = tmp_path / "results.md", tmp_path / "credit.json"
    page.write_text("# Results\n\nThe first.\n")
    where = ["--record", str(record), "--page", str(page), "--environments", "chain, fifth", "--quick"]
    main([*where, "--methods", "uniform", "state"])
    main([*where, "--methods", "gae"])
    outcomes = json.loads(record.read_text())["comparisons"]["chain, fifth step decides"]["outcomes"]
    assert sorted(outcomes) == ["gae", "state", "uniform"]
    assert all(len(outcome["final"]) == 2 for outcome in outcomes.values())
    text = page.read_text()
    assert text == insert(text, Section(), render(read(record)))
    assert "| uniform | 0.04 |" in text
    assert text.startswith("# Results\n\nThe first.\n\n## Credit methods, where the truth is known\n")
    assert (tmp_path / "results-credit.png").stat().st_size > 1000


def test_what_is_missing_is_added_and_the_rest_left_alone(tmp_path: Path) -> None:
    page, path = tmp_path / "results.md", tmp_path / "credit.json"
    page.write_text("# Results\n\nThe first.\n")
    environment = "chain, fifth step decides"
    where = ["--record", str(path), "--page", str(page), "--environments", environment, "--quick"]
    main([*where, "--methods", "uniform"])
    found = read(path).comparisons[environment]
    marked = found.outcomes["uniform"].model_copy(update={"final": [0.125, 0.25]})
    record = Record(comparisons={environment: found.model_copy(update={"outcomes": {"uniform": marked}})})
    path.write_text(record.model_dump_json())
    main([*where, "--missing", "--methods", "uniform", "turn"])
    outcomes = read(path).comparisons[environment].outcomes
    assert outcomes["uniform"] == marked
    assert outcomes["turn"].final != marked.final


def test_more_seeds_later_give_what_all_of_them_at_once_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "WHOLE", 2)
    truth = Truth(Chain("chain", decisive=0, steps=2))
    of = partial(compare, truth, find_method("uniform", PLUGINS), 20, trials=1, rates=(0.04, 0.08))
    few, all_of_them = of(seeds=2), of(seeds=4)
    assert of(seeds=4, known=few) == of(seeds=4, known=all_of_them) == all_of_them
    assert (len(few.rollouts), len(all_of_them.rollouts)) == (2, 4)
    assert (few.final, few.curve) == (all_of_them.final, all_of_them.curve)


@pytest.mark.skipif(not (ROOT / RECORD).exists(), reason="not published yet")
def test_the_published_tables_are_what_the_record_says() -> None:
    page = (ROOT / "research/results/README.md").read_text()
    assert insert(page, Section(), render(read(ROOT / RECORD))) == page
