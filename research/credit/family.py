"""Credit methods on games drawn at random: the error of the gradient in ratio to uniform's, game by game.

    python -m research.credit.family                     # 300 games not developed on, and the named
    python -m research.credit.family --set develop       # the games to develop on
    python -m research.credit.family --methods evidence --games 20 --calls 2000

The cost of a method is that of `research.credit.gradient`: with g the estimate of a batch and G the exact
gradient, mean |g|^2 |G|^2 / (mean <g, G>)^2 - 1. Batches are the same for all methods, each of the size that
its game says; how many there are is by their calls. Intervals are those of batches drawn again (bootstrap).
Writes `research/results/credit-family.json` and its table into `research/results/README.md`.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict
from rich.console import Console

from benchmarks.intervals import Interval
from benchmarks.page import insert
from lightning_core.credit.base import Credit, assign
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Trajectory
from lightning_core.trainer.parts import make_credit
from research.credit.drawn import NAMED, Drawn, Played, draw
from research.credit.tables import BASE, row, show
from research.credit.truth import Floats
from research.page import PAGE, RECORDS

SETS = {"develop": 0, "report": 10_000}
"""The first seed of each set."""
METHODS = ("evidence", "relevance", "tabular", "state")
CALLS = 10_000
"""Figures of a game, over all its batches."""
FEWEST, MOST = 24, 150
"""Batches of a game."""
REDRAWN = 400
WIDE = 4_000_000
"""Entries of gradients that are held at once."""


class Found(BaseModel):
    """The results of the methods in one game."""

    model_config = ConfigDict(frozen=True)

    about: str
    calls: int
    """The most calls of a rollout."""
    success: float
    cost: float
    """The error of the base."""
    ratios: dict[str, Interval]
    """The ratio of each method's error to the base's."""


class Record(BaseModel):
    """All games by name."""

    model_config = ConfigDict(frozen=True)

    set: str = ""
    games: dict[str, Found] = {}

    name: ClassVar[str] = "credit-family"
    title: ClassVar[str] = "Credit methods on games drawn at random"
    command: ClassVar[str] = "python -m research.credit.family"


def measure(game: Drawn, methods: Mapping[str, Credit], calls: int = CALLS, seed: int = 0) -> Found:
    """The ratios of a game, with 95 % intervals."""
    random = np.random.default_rng(seed)
    size = game.groups * game.group_size * game.shape[1]
    batches = int(np.clip(calls // size, FEWEST, MOST))
    squares: dict[str, list[Floats]] = {name: [] for name in methods}
    along: dict[str, list[Floats]] = {name: [] for name in methods}
    exact = game.gradient.ravel()
    at_once = max(1, WIDE // max(exact.size, size * game.shape[3]))
    for first in range(0, batches, at_once):
        played = game.play(min(at_once, batches - first), random)
        rollouts = [played.trajectories(batch) for batch in range(len(played.kind))]
        for name, credit in methods.items():
            advantages = np.stack([_advantages(played, batch, credit) for batch in rollouts])
            estimates = played.gradients(advantages)
            squares[name].append((estimates**2).sum(1))
            along[name].append(estimates @ exact)
    draws = [np.arange(batches), *(random.integers(0, batches, batches) for _ in range(REDRAWN))]
    costs = {
        name: np.array(
            [_cost(np.concatenate(squares[name])[at], np.concatenate(along[name])[at], exact) for at in draws]
        )
        for name in methods
    }
    with np.errstate(invalid="ignore"):
        ratios = {name: _interval(costs[name] / costs[BASE]) for name in methods if name != BASE}
    return Found(
        about=describe(game),
        calls=game.shape[1],
        success=round(game.success, 4),
        cost=round(float(costs[BASE][0]), 4),
        ratios=ratios,
    )


def describe(game: Drawn) -> str:
    """A game in a line."""
    kinds, turns, _, replies = game.shape
    return (
        f"{turns} calls of {len(set(game.agents))} agents, up to {replies} replies, {kinds} kinds "
        f"{'told' if game.told else 'hidden'}, {game.rule} of {int(game.deciding.max())}, shown {game.shown}"
        f"{' and turn' * game.numbered}, paid {game.paid:g}, noise {game.noise:g}, stop {game.stop:g}"
        f"{', fails fast' * game.fails_fast}, {game.groups} x {game.group_size}"
    )


def _advantages(played: Played, batch: Sequence[Trajectory], credit: Credit) -> Floats:
    """(groups, rollouts, T), as GRPO's defaults give them."""
    found = np.zeros(played.reply.shape[1:])
    for trajectory in assign(batch, credit, "mean", "std", everyone=True)[0]:
        group, rollout = map(int, trajectory.rollout_id.split("."))
        for t in trajectory.transitions:
            found[group, rollout, int(t.call_id[1:])] = t.advantage or 0.0
    return found


def _cost(squares: Floats, along: Floats, exact: Floats) -> float:
    mean = float(along.mean())
    return float(squares.mean() * (exact @ exact) / mean**2) - 1 if mean > 0 else float("inf")


def _interval(values: Floats) -> Interval:
    """A draw in which neither method leads up has no ratio: it counts as 0 in the lower bound and as without
    limit in the upper one."""
    low = np.quantile(np.nan_to_num(values[1:], nan=0.0, posinf=np.inf), 0.025, method="lower")
    high = np.quantile(np.nan_to_num(values[1:], nan=np.inf, posinf=np.inf), 0.975, method="lower")
    value = np.nan_to_num(values[0], nan=np.inf, posinf=np.inf)
    return Interval(*(round(float(each), 4) for each in (value, low, high)))


def written(record: Record) -> str:
    """The record as JSON that keeps infinite bounds: pydantic writes them as null, which it can't read."""
    return json.dumps(record.model_dump()) + "\n"


# the table ----------------------------------------------------------------------------------------------
def table(record: Record) -> str:
    """The distribution over the drawn games, and a line for each named one."""
    drawn = {name: found for name, found in record.games.items() if name.startswith("drawn")}
    methods = sorted({method for found in record.games.values() for method in found.ratios})
    rows: list[tuple[str, Callable[[Floats], float]]] = [
        ("median", lambda ratios: float(np.median(ratios))),
        ("10 % are below", lambda ratios: float(np.quantile(ratios, 0.1))),
        ("90 % are below", lambda ratios: float(np.quantile(ratios, 0.9))),
        ("97 % are below", lambda ratios: float(np.quantile(ratios, 0.97))),
        ("worst", lambda ratios: float(ratios.max())),
        ("share above 1", lambda ratios: float((ratios > 1).mean())),
        ("share above 1.05", lambda ratios: float((ratios > 1.05).mean())),
    ]
    lines = [row([f"{len(drawn)} games", *methods]), f"|{'---|' * (len(methods) + 1)}"]
    for name, of in rows:
        lines.append(row([name, *(f"{of(_ratios(drawn.values(), m)):.2f}" for m in methods)]))
    several = [found for found in drawn.values() if found.calls >= 3]
    lines.append(
        row(
            [
                f"median of {len(several)} with three or more calls",
                *(f"{np.median(_ratios(several, m)):.2f}" for m in methods),
            ]
        )
    )
    beyond = [f"{sum(f.ratios[m].low > 1.05 for f in drawn.values() if m in f.ratios)}" for m in methods]
    lines.append(row(["games whose interval lies above 1.05", *beyond]))
    for name, found in record.games.items():
        if name not in drawn:
            lines.append(row([name, *(show(found.ratios.get(m)) for m in methods)]))
    return "\n".join(lines)


def _ratios(games: Iterable[Found], method: str) -> Floats:
    return np.array([found.ratios[method].value for found in games if method in found.ratios])


def main(arguments: list[str] | None = None) -> None:
    plugins = load_plugins()
    parser = argparse.ArgumentParser(
        prog="python -m research.credit.family", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--set", choices=sorted(SETS), default="report")
    parser.add_argument("--games", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the place of the first game in its set")
    parser.add_argument("--calls", type=int, default=CALLS, help="of each game, over all its batches")
    parser.add_argument("--methods", nargs="*", default=METHODS, metavar="NAME")
    parser.add_argument("--record", type=Path, default=RECORDS / "credit-family.json")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    methods = {name: make_credit(name, plugins) for name in (BASE, *options.methods)}
    path: Path = options.record
    record = Record.model_validate_json(path.read_bytes()) if path.exists() else Record()
    games = dict(record.games) if record.set == options.set else {}
    first = SETS[options.set] + options.first
    seeds = range(first, first + options.games)
    for game in itertools.chain(() if options.first else NAMED, map(draw, seeds)):
        found = measure(game, methods, options.calls)
        before = games[game.name].ratios if game.name in games else {}
        games[game.name] = found.model_copy(update={"ratios": {**before, **found.ratios}})
        path.write_text(written(Record(set=options.set, games=games)))
        told = ", ".join(f"{name} {ratio.value:.2f}" for name, ratio in found.ratios.items())
        Console().print(f"{game.name}: {told}", highlight=False)
    record = Record(set=options.set, games=games)
    if options.set == "report":
        options.page.write_text(insert(options.page.read_text(), record, table(record)))
    Console().print(table(record), highlight=False)


if __name__ == "__main__":
    main()
