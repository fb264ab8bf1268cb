"""The cost of credit by forks, in ratio to uniform's at equal *total* rollouts, forks counted.

    python -m research.credit.counterfactual                     # a few games
    python -m research.credit.counterfactual --environments chain team --batches 100

A group has `group_size` rollouts in all. With f forks, one in f + 1 is begun at the start, and forked f times
at one call. The f + 1 share what came before that call, so with R_b the return of branch b

    before the call    A = mean of R_b - mean of the group's other trees
    from it on         A = R_b - mean of the other branches' R, with weight 1 / (f + 1)

which is unbiased, wherever the call is, as long as its place does not depend on what follows. The place is

    random     drawn evenly
    entropy    the call at which the policy is least certain of its reply
    oracle     the call whose reply matters most: Var of Q(s, a) over a, of the exact truth

The oracle can't be had in an app: it bounds what a budget brings that is spent where credit is uncertain.
Costs are those of `research.credit.gradient`: the same policies, and 95 % intervals of batches drawn again.
"""

from __future__ import annotations

import argparse
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from statistics import fmean

import numpy as np
from rich.console import Console

from benchmarks.intervals import Interval
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.credit.base import Credit, assign
from lightning_core.plugins import load_plugins
from lightning_core.trainer.parts import make_credit
from research.credit.gradient import REDRAWN, cost, play, policies, softmax
from research.credit.playing import Batch, draw_outcome
from research.credit.suite import SUITE
from research.credit.truth import OVER, Floats, Truth

GAMES = (
    "chain, first step decides",
    "chain, last step decides",
    "chain, free wording",
    "chain, hidden and free wording",
    "mixed, kind hidden",
    "team, free wording",
    "walk, rooms met again",
    "delegation, final reward",
)
FORKS = (1, 3)
"""Numbers of forks of a rollout."""
Where = Callable[[Sequence["Visit"]], int]
"""Chooses the call of a rollout at which it is forked."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A call: its state, the policy's row for it, and the action."""

    state: int
    row: int
    action: int
    earned: float
    """Rewards before it."""


class Player:
    """Plays rollouts from any state of a game."""

    def __init__(self, truth: Truth, policy: Floats, random: Random) -> None:
        self._truth, self._random = truth, random
        self._bounds = [list(accumulate(row)) for row in policy.tolist()]

    def begin(self, task: int) -> tuple[list[Visit], float]:
        """A rollout from the start: its calls and its return."""
        return self.go_on(*draw_outcome(self._truth.starts[task], self._random))

    def go_on(self, state: int, earned: float) -> tuple[list[Visit], float]:
        """A rollout from a state on, with rewards so far."""
        truth, visits = self._truth, list[Visit]()
        while (row := truth.prompt_of[state]) != OVER:
            bounds = self._bounds[row]
            action = min(bisect(bounds, self._random.random()), len(bounds) - 1)
            visits.append(Visit(state, row, action, earned))
            state, reward = draw_outcome(truth.outcomes[state][action], self._random)
            earned += reward
        noise = truth.environment.noise
        return visits, earned + truth.final[state] + (self._random.gauss(0.0, noise) if noise else 0.0)


def forked(
    truth: Truth, policy: Floats, size: GRPO, step: int, random: Random, where: Where, forks: int
) -> Floats:
    """(P, A) the gradient of the success, estimated from one batch with forks."""
    player, found = Player(truth, policy, random), np.zeros_like(policy)
    for place in range(step * size.tasks_per_step, (step + 1) * size.tasks_per_step):
        trees = []
        for _ in range(size.group_size // (forks + 1)):
            visits, earned = player.begin(place % truth.environment.tasks)
            at = where(visits)
            others = [player.go_on(visits[at].state, visits[at].earned) for _ in range(forks)]
            trees.append((visits[:at], [(visits[at:], earned), *others]))
        means = [fmean(earned for _, earned in branches) for _, branches in trees]
        for number, (before, branches) in enumerate(trees):
            baseline = fmean(means[:number] + means[number + 1 :])
            credit(found, policy, before, means[number] - baseline)
            for after, earned in branches:  # (R_b - mean of others) / (f + 1) = (R_b - mean of all) / f
                credit(found, policy, after, (earned - means[number]) / forks)
    return found


def credit(found: Floats, policy: Floats, visits: Sequence[Visit], advantage: float) -> None:
    """Add advantage times the gradient of each visit's log-probability."""
    for visit in visits:
        found[visit.row] -= advantage * policy[visit.row]
        found[visit.row, visit.action] += advantage


def credited(truth: Truth, policy: Floats, batch: Batch, method: Credit, size: GRPO) -> Floats:
    """(P, A) the same by a credit method, with the algorithm's own baseline and scale."""
    found = np.zeros_like(policy)
    for each in assign(batch.trajectories, method, size.baseline, size.scale)[0]:
        for t in each.transitions:
            action = t.completion_ids[0] - truth.first_action
            credit(found, policy, [Visit(0, batch.row[t.key], action, 0.0)], t.advantage or 0.0)
    return found


def places(truth: Truth, policy: Floats, random: Random) -> dict[str, Where]:
    """The ways to choose a call."""
    entropy = -(policy * np.log(np.maximum(policy, 1e-300))).sum(1)
    values, actions = truth.values(policy)

    def matters(visit: Visit) -> float:
        chances = policy[visit.row]
        return float((chances * (actions[visit.state] - values[visit.state]) ** 2).sum())

    def most(score: Callable[[Visit], float]) -> Where:
        return lambda visits: max(range(len(visits)), key=lambda at: (score(visits[at]), random.random()))

    return {
        "random": lambda visits: random.randrange(len(visits)),
        "entropy": most(lambda visit: float(entropy[visit.row])),
        "oracle": most(matters),
    }


def ratios(truth: Truth, methods: dict[str, Credit], batches: int, seed: int = 0) -> dict[str, Interval]:
    """For each way the ratio of its cost to the first method's, with a 95 % interval."""
    drawn = np.random.default_rng(seed)
    draws = [np.arange(batches), *(drawn.integers(0, batches, batches) for _ in range(REDRAWN))]
    logs: dict[str, list[Floats]] = {}
    size = GRPO()
    for logits in policies(truth):
        policy = softmax(logits)
        exact = truth.gradient(policy).ravel()
        played = play(truth, size, logits, batches, seed)
        found = {
            name: [credited(truth, policy, batch, method, size) for batch in played]
            for name, method in methods.items()
        }
        for name, where in places(truth, policy, Random(seed + 1)).items():
            for forks in FORKS:
                random = Random(f"{seed} {name} {forks}")
                found[f"{name}, {forks}"] = [
                    forked(truth, policy, size, step, random, where, forks) for step in range(batches)
                ]
        first = None
        for name, estimates in found.items():
            array = np.array(estimates).reshape(batches, -1)
            own = np.log([cost(array[draw], exact) for draw in draws])
            first = own if first is None else first
            logs.setdefault(name, []).append(own - first)
    means = {name: np.exp(np.mean(values, axis=0)) for name, values in logs.items()}
    return {
        name: Interval(float(mean[0]), *map(float, np.quantile(mean[1:], [0.025, 0.975])))
        for name, mean in means.items()
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m research.credit.counterfactual", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--environments", nargs="*", default=GAMES, metavar="NAME", help=", ".join(SUITE))
    parser.add_argument("--batches", type=int, default=60, help="of 64 rollouts, for each of four policies")
    options = parser.parse_args(arguments)
    plugins = load_plugins()
    methods = {name: make_credit(name, plugins) for name in ("uniform", "relevance")}
    for name in options.environments:  # a row of a table each
        found = ratios(Truth(SUITE[name].environment), methods, options.batches)
        told = " | ".join(f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})" for one in found.values())
        Console(width=300).print(f"| {name} | {told} |", highlight=False)


if __name__ == "__main__":
    main()
