"""Comparing credit methods in one setting, each at its own best learning rate.

The rate is found on seeds of its own: from START it goes up or down the grid as long as the mean of the
rollouts to the threshold becomes less; their median decides between equals. A run that does not reach the
threshold counts with all its rollouts, so a rate that fails now and then is not chosen for its good runs. One
run in thirty that fails may decide the mean, so the two best rates are tried on `FINAL` times as many seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from pydantic import BaseModel, ConfigDict

from lightning_core.algorithms.base import Algorithm
from lightning_core.algorithms.policy_gradient import GRPO, PPO, RLOO
from lightning_core.plugins import Plugins
from lightning_core.trainer.parts import make_credit
from research.credit.training import Method, train
from research.credit.truth import Truth

THRESHOLD = 0.9
"""Share of the best success."""
RATES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
START = RATES.index(0.04)
PUBLISHED = "published"
"""GRPO as its paper has it, among the methods: `uniform`, and no bonus on entropy."""
EXACT = "exact"
"""The true gradient, among the methods."""
TRIAL_SEED = 1000
"""First of the seeds on which rates are tried; the seeds that are reported begin at 0."""
FINAL = 4
"""Times the seeds of a trial, for each of the two best rates."""
WHOLE = 20
"""Seeds whose runs go on after the threshold."""

Score = tuple[float, float]
"""Mean and median of the rollouts to the threshold."""


class Outcome(BaseModel):
    """A method's success in a setting."""

    model_config = ConfigDict(frozen=True)

    rate: float
    """The learning rate it was given."""
    tried: dict[str, float]
    """Mean rollouts to the threshold for each rate tried; of the two best, over the most seeds."""
    rollouts: list[int | None]
    """To the threshold, for each seed; None if it was not reached."""
    final: list[float]
    """Success at the end, for each of the first `WHOLE` seeds."""
    curve: list[float]
    """Median success over these, before the first update and after each."""


class Comparison(BaseModel):
    """A setting and its outcomes by method."""

    model_config = ConfigDict(frozen=True)

    optimum: float
    start: float
    """Success before training."""
    updates: int
    batch: int
    """Rollouts of an update."""
    outcomes: dict[str, Outcome]


def find_method(name: str, plugins: Plugins, algorithm: str = "grpo") -> Method:
    """A registered credit method in GRPO or RLOO with their defaults; one that needs a critic in PPO with one
    epoch. "exact": the true gradient in place of an estimate, the best that any method could give."""
    used: Algorithm = {"grpo": GRPO, "rloo": RLOO}[algorithm]()
    if name == EXACT:
        return Method(name, None, used)
    if name == PUBLISHED:
        return Method(name, make_credit("uniform", plugins), GRPO(entropy=0))
    credit = make_credit(name, plugins)
    if getattr(credit, "needs_critic", False):
        used = PPO(epochs=1)
    return Method(name, credit, used)


def compare(
    truth: Truth,
    method: Method,
    updates: int,
    seeds: int,
    trials: int,
    rates: tuple[float, ...] = RATES,
    known: Outcome | None = None,
    whole: int | None = None,
) -> Outcome:
    """Find the rate, then train on every seed, on the first `whole` (default `WHOLE`) beyond the threshold.
    With `known`, which has fewer seeds, at its rate and only on the others; on all if it has fewer than
    `whole`."""
    aim = THRESHOLD * truth.optimum
    whole = WHOLE if whole is None else whole

    def score(rate: float, times: int) -> Score:
        seeds = range(TRIAL_SEED, TRIAL_SEED + times * trials)
        runs = [train(truth, method, rate, seed, updates, aim, until=True) for seed in seeds]
        reached = [method.batch * (updates if run.reached is None else run.reached) for run in runs]
        return fmean(reached), median(reached)

    if known is None:
        rate, scores = find_rate(score, rates)
        tried = {f"{tried:g}": found[0] for tried, found in sorted(scores.items())}
        known = Outcome(rate=rate, tried=tried, rollouts=[], final=[], curve=[])
    done = known.rollouts if len(known.rollouts) >= whole else []
    new = range(len(done), seeds)
    runs = [train(truth, method, known.rate, seed, updates, aim, until=seed >= whole) for seed in new]
    reached = [None if run.reached is None else method.batch * run.reached for run in runs]
    found: dict[str, list[Any]] = {"rollouts": [*done, *reached]}
    if not done:
        success = [run.success for run in runs[:whole]]
        found["final"] = [round(each[-1], 4) for each in success]
        found["curve"] = [round(median(now), 3) for now in zip(*success, strict=True)]
    return known.model_copy(update=found)


def find_rate(
    score: Callable[[float, int], Score], rates: tuple[float, ...]
) -> tuple[float, dict[float, Score]]:
    """The best rate, and the scores of all that were tried. `score` takes a rate and how many times the seeds
    of a trial."""
    place = min(START, len(rates) - 1)
    scores: dict[float, Score] = {}
    while True:
        for near in rates[max(0, place - 1) : place + 2]:
            if near not in scores:
                scores[near] = score(near, 1)
        best = sorted(scores, key=lambda rate: scores[rate])[:2]
        if best[0] == rates[place]:
            break
        place = rates.index(best[0])
    final = {rate: score(rate, FINAL) for rate in best}
    return min(final, key=lambda rate: final[rate]), {**scores, **final}
