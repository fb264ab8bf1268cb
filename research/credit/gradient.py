"""The cost of a credit method: the error of its gradient, in ratio to uniform's at equal batches.

    python -m research.credit.gradient                   # every method in every environment
    python -m research.credit.gradient --methods relevance --environments mixed

With g the estimate of one batch, G the exact gradient (`truth.py`) and s the mean of <g, G> / |G|^2:

    cost = mean of |g / s - G|^2 / |G|^2

The estimate is scaled to make the progress that G makes, as a learning rate would do; what is left is its
error. It sees differences that learning curves of ten seeds do not. Costs are compared at several policies on
the way from the even one to a solved game. A ratio is their geometric mean; its interval is that of batches
drawn again (bootstrap). Methods with a critic are left out: their critic would have to be trained first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch
from rich.console import Console

from benchmarks.intervals import Interval
from lightning_core.algorithms.base import Algorithm
from lightning_core.credit.base import assign
from lightning_core.plugins import load_plugins
from research.credit.comparing import find_method
from research.credit.playing import Batch
from research.credit.publishing import RECORD, read, write
from research.credit.suite import SUITE
from research.credit.tables import BASE
from research.credit.training import Method, loss_of
from research.credit.truth import Floats, Truth
from research.page import PAGE

PLACES = (0.0, 0.3, 0.6, 0.85)
"""How far on the way from the first success to the best the policies are."""
STEP = 0.2
"""Change of the largest logit in a step of the way there."""
REDRAWN = 200


def policies(truth: Truth, places: Sequence[float] = PLACES) -> list[Floats]:
    """Logits (P, A) on the way of the exact gradient, one for each place."""
    logits, found = np.zeros_like(truth.even), list[Floats]()
    start, best = truth.success(truth.even), truth.optimum
    for place in places:
        while (truth.success(softmax(logits)) - start) / (best - start) < place:
            gradient = truth.gradient(softmax(logits))
            logits = logits + STEP * gradient / np.abs(gradient).max()
        found.append(logits)
    return found


def softmax(logits: Floats) -> Floats:
    """(P, A) probabilities."""
    raised = np.exp(logits - logits.max(1, keepdims=True))
    probabilities: Floats = raised / raised.sum(1, keepdims=True)
    return probabilities


def play(truth: Truth, size: Algorithm, logits: Floats, batches: int, seed: int) -> list[Batch]:
    """Batches of the size that the algorithm asks for, at a policy."""
    random, played = Random(seed), []
    for step in range(batches):
        batch = Batch(truth, softmax(logits), step, random)
        for place in range(step * size.tasks_per_step, (step + 1) * size.tasks_per_step):
            batch.play(place % truth.environment.tasks, size.group_size)
        played.append(batch)
    return played


def estimates(truth: Truth, method: Method, logits: Floats, batches: Sequence[Batch]) -> Floats:
    """(batches, P * A) each batch's gradient of the success, as the update would take it."""
    algorithm, credit, found = method.algorithm, method.credit, []
    assert credit is not None, "the exact gradient has no error"
    for batch in batches:
        credited, _ = assign(batch.trajectories, credit, algorithm.baseline, algorithm.scale)
        given = torch.tensor(logits, requires_grad=True)
        if credited:
            loss, _ = loss_of(given, credited, algorithm, batch.row, truth.first_action)
            torch.autograd.backward(loss)
        found.append(np.zeros_like(logits) if given.grad is None else -given.grad.numpy())
    return np.array(found).reshape(len(batches), -1)


def cost(found: Floats, exact: Floats) -> float:
    """The formula above; infinite if the estimates do not lead up."""
    square = float(exact @ exact)
    scale = float((found @ exact).mean()) / square
    if scale <= 0:
        return float("inf")
    return float(((found / scale - exact) ** 2).sum(1).mean()) / square


def ratios(truth: Truth, methods: Sequence[Method], batches: int, seed: int = 0) -> dict[str, Interval]:
    """For each method the ratio of its cost to the first one's, with a 95 % interval."""
    random = np.random.default_rng(seed)
    draws = [np.arange(batches), *(random.integers(0, batches, batches) for _ in range(REDRAWN))]
    logs: dict[str, list[Floats]] = {method.name: [] for method in methods}
    for logits in policies(truth):
        exact, base = truth.gradient(softmax(logits)).ravel(), np.zeros(len(draws))
        played: dict[tuple[int, int], list[Batch]] = {}  # the same for all methods with batches of one size
        for place, method in enumerate(methods):
            size = method.algorithm.tasks_per_step, method.algorithm.group_size
            if size not in played:
                played[size] = play(truth, method.algorithm, logits, batches, seed)
            found = estimates(truth, method, logits, played[size])
            own = np.log([cost(found[draw], exact) for draw in draws])
            base = base if place else own
            logs[method.name].append(own - base)
    means = {name: np.exp(np.mean(values, axis=0)) for name, values in logs.items()}
    return {
        name: Interval(float(mean[0]), *map(float, np.quantile(mean[1:], [0.025, 0.975])))
        for name, mean in means.items()
    }


def main(arguments: list[str] | None = None) -> None:
    plugins = load_plugins()
    parser = argparse.ArgumentParser(
        prog="python -m research.credit.gradient", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--methods", nargs="*", default=sorted(plugins.names("credit")), metavar="NAME")
    parser.add_argument(
        "--environments", nargs="*", default=[""], metavar="TEXT", help="what their names hold"
    )
    parser.add_argument("--batches", type=int, default=200, help="of 64 rollouts, for each of four policies")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    given = [find_method(name, plugins) for name in (BASE, *options.methods)]
    methods = list({method.name: method for method in given if method.algorithm.critic is None}.values())
    for name, setting in SUITE.items():
        if any(text in name for text in options.environments):
            found = ratios(Truth(setting.environment), methods, options.batches)
            write(read(options.record).with_costs(name, found), options.record, options.page)
            told = ", ".join(f"{method} {ratio.value:.2f}" for method, ratio in found.items())
            Console().print(f"{name}: {told}")


if __name__ == "__main__":
    main()
