"""Learning curves in games drawn at random: rollouts to 90 % of the best success by each credit method.

    python -m research.credit.learning                   # goes on where an earlier one ended
    python -m research.credit.learning --quick           # a few updates, to see that it runs
    python -m research.credit.learning --trainer         # other games, through the class `Trainer`

Games are of the set that is only reported: for each rule and each size of batch the first one that has three
or more calls and as many replies to each, repeats what it shows, begins at .02 to .5 of the best success, and
takes `HARD` updates of the exact gradient. Batches are as large as the game says. The policy begins even, not
leaning as the game says. Runs are those of `research.credit`: credit, loss and optimizer are the trainer's,
and each method has its own best learning rate, found on other seeds. They end at the threshold.
Writes `research/results/credit-learning.json` and its table into `research/results/README.md`.

With `--trainer` a game is an app, and its model a network of one layer (`whole.py`). The games are the first
ten of three to six calls, without payments, with ten or more rollouts and at most 100 calls in a batch, in
which the exact gradient takes three or more updates. All runs have one learning rate.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import ClassVar, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from rich.console import Console

from benchmarks.intervals import Interval, mean_of, mean_ratio_of
from benchmarks.page import insert
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.plugins import load_plugins
from research.credit.comparing import (
    EXACT,
    RATES,
    START,
    THRESHOLD,
    Comparison,
    Outcome,
    compare,
    find_method,
)
from research.credit.drawn import Drawn, draw
from research.credit.environment import TASKS, State, Turn
from research.credit.environment import Outcome as Reached
from research.credit.family import SETS, describe
from research.credit.running import Plan
from research.credit.tables import BASE, rollouts_of, row, show
from research.credit.training import Method, train
from research.credit.truth import Truth
from research.credit.whole import train_whole
from research.page import PAGE, RECORDS

METHODS = ("uniform", "evidence", "relevance")
GAMES = 300
"""Games of the reported set to choose from."""
SIZES = (40, 100)
"""Rollouts from which a batch counts as middling and as large."""
MOST_CALLS = 1000
"""Calls of a batch, at most."""
UPDATES = 60
HARD = range(4, 41)
"""Updates to 90 % of the best with the exact gradient, at the middle rate."""
WHOLE_METHODS = (BASE, "relevance")
WHOLE_GAMES, WHOLE_SEEDS, WHOLE_UPDATES, WHOLE_RATE = 10, 5, 60, 0.02
"""For `--trainer`."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn game as an environment. State: (task, turn, deciding calls that were right, what is shown)."""

    game: Drawn
    tasks: int = TASKS
    remembers: bool = False
    wordings: int = 1

    @property
    def name(self) -> str:
        return self.game.name

    @property
    def actions(self) -> int:
        return self.game.shape[3]

    @property
    def noise(self) -> float:
        return self.game.noise

    def start(self, task: int) -> list[Reached]:
        return [Reached((task, 0, 0, 0))]

    def turn(self, state: State) -> Turn | None:
        task, turn, _, shown = state
        if turn == self.game.shape[1]:
            return None
        about, kind = divmod(task, self.game.shape[0])
        told = (f"kind{kind}",) if self.game.told else ()
        before = (*told, f"about{about}", f"turn{turn}")
        return Turn(self.game.agents[turn], self.game.observation(turn, shown), before)

    def act(self, state: State, action: int) -> list[Reached]:
        task, turn, right, _ = state
        game, last = self.game, self.game.shape[1]
        kind = task % game.shape[0]
        decides = bool(game.decides[kind, turn])
        counts = decides and bool(game.right[kind, turn, action])
        right += counts
        shown = game.next_shown(*(np.array([each]) for each in (action, counts, right)))
        pay = counts * game.paid / int(game.deciding[kind])
        after, over = (task, turn + 1, right, int(shown[0])), (task, last, right, 0)
        if turn + 1 == last or (game.fails_fast and decides and not counts):
            return [Reached(over, reward=pay)]
        going_on = [Reached(after, 1 - game.stop, pay)]
        return [*going_on, Reached(over, game.stop, pay)] if game.stop else going_on

    def success(self, state: State) -> float:
        task, _, right, _ = state
        return float(self.game.final(np.array([task % self.game.shape[0]]), np.array([right]))[0])


def choose(games: int = GAMES) -> dict[tuple[str, int], Drawn]:
    """The first fit game for each rule and size of batch."""
    found: dict[tuple[str, int], Drawn] = {}
    for seed in range(SETS["report"], SETS["report"] + games):
        game = draw(seed)
        cell = rule_of(game), sum(game.groups * game.group_size >= size for size in SIZES)
        if cell not in found and is_fit(game):
            found[cell] = game
    return dict(sorted(found.items()))


def choose_whole(most: int = WHOLE_GAMES) -> list[Drawn]:
    """The games of `--trainer`."""
    drawn = map(draw, range(SETS["report"], SETS["report"] + GAMES))
    fit = (game for game in drawn if _is_small(game) and is_fit(game, range(3, HARD.stop)))
    return list(itertools.islice(fit, most))


def _is_small(game: Drawn) -> bool:
    rollouts, turns = game.groups * game.group_size, game.shape[1]
    return not game.paid and turns <= 6 and rollouts >= 10 and rollouts * turns <= 100


def rule_of(game: Drawn) -> str:
    return "one" if int(game.deciding.max()) == 1 else game.rule


def is_fit(game: Drawn, hard: range = HARD) -> bool:
    """Whether a policy that knows nothing can learn it, but not at once."""
    turns, replies = game.shape[1], (game.policy > 0).sum(-1)
    calls = game.groups * game.group_size * turns
    if turns < 3 or calls > MOST_CALLS or game.shown == "unique" or replies.min() < replies.max():
        return False
    truth = Truth(Drawing(game, tasks=game.shape[0]))
    if not 0.02 <= truth.success(truth.even) / truth.optimum <= 0.5:
        return False
    exact, aim = find_method(EXACT, load_plugins()), THRESHOLD * truth.optimum
    return train(truth, exact, RATES[START], 0, hard[-1], aim, until=True).reached in hard


class Learnt(BaseModel):
    """A game, and the outcome of each method in it."""

    model_config = ConfigDict(frozen=True)

    about: str
    comparison: Comparison


class Record(BaseModel):
    """All games by name."""

    model_config = ConfigDict(frozen=True)

    games: dict[str, Learnt] = {}

    name: ClassVar[str] = "credit-learning"
    title: ClassVar[str] = "Learning curves in games drawn at random"
    command: ClassVar[str] = "python -m research.credit.learning"

    def has(self, game: Drawn, method: str, plan: Plan) -> bool:
        """Whether a method was run in a game with as many seeds and updates."""
        if game.name not in self.games:
            return False
        comparison = self.games[game.name].comparison
        outcome = comparison.outcomes.get(method)
        return (
            outcome is not None and comparison.updates == plan.updates and len(outcome.rollouts) >= plan.seeds
        )

    def with_outcome(self, game: Drawn, found: Comparison) -> Self:
        """With one more outcome, beside those of equal settings."""
        before = self.games.get(game.name)
        kept = {}
        if before and before.comparison.model_copy(update={"outcomes": found.outcomes}) == found:
            kept = before.comparison.outcomes
        merged = found.model_copy(update={"outcomes": {**kept, **found.outcomes}})
        games = {**self.games, game.name: Learnt(about=describe(game), comparison=merged)}
        return self.model_copy(update={"games": games})


class WholeRecord(Record):
    """The same through the class `Trainer`."""

    name: ClassVar[str] = "credit-trainer"
    title: ClassVar[str] = "Learning curves in games drawn at random, through `Trainer`"
    command: ClassVar[str] = "python -m research.credit.learning --trainer"

    def with_run(self, game: Drawn, method: str, updates: int, success: list[float]) -> Self:
        """With one more seed; `success`: after each update, up to the threshold."""
        truth, batch = Truth(Drawing(game)), game.groups * game.group_size
        before = self.games.get(game.name)
        old = before.comparison.outcomes.get(method) if before else None
        reached = success[-1] >= THRESHOLD * truth.optimum
        outcome = Outcome(
            rate=WHOLE_RATE,
            tried={},
            rollouts=[*(old.rollouts if old else []), batch * len(success) if reached else None],
            final=[*(old.final if old else []), round(success[-1], 4)],
            curve=[],
        )
        start, outcomes = truth.success(truth.even), {method: outcome}
        found = Comparison(
            optimum=truth.optimum, start=start, updates=updates, batch=batch, outcomes=outcomes
        )
        return self.with_outcome(game, found)


def learn_whole(game: Drawn, method: str, seed: int, updates: int) -> list[float]:
    """One run through `Trainer`: the success after each update."""
    torch.set_num_threads(1)
    algorithm = GRPO(group_size=game.group_size, tasks_per_step=game.groups, credit=method)
    truth = Truth(Drawing(game))
    return train_whole(truth, algorithm, WHOLE_RATE, seed, updates, THRESHOLD * truth.optimum)


def run_whole(
    record: WholeRecord, path: Path, page: Path, plan: Plan, games: Sequence[Drawn], processes: int
) -> None:
    """The runs that the record lacks, seed by seed. The table is made in the end, of equally many seeds."""
    updates = plan.updates or WHOLE_UPDATES
    cells = [
        (game, method, seed)
        for seed, game, method in itertools.product(range(plan.seeds), games, WHOLE_METHODS)
        if not record.has(game, method, Plan(plan.algorithm, seed + 1, 0, updates))
    ]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(learn_whole, *cell, updates) for cell in cells]
        for (game, method, seed), done in zip(cells, waiting, strict=True):
            record = record.with_run(game, method, updates, done.result())
            path.write_text(record.model_dump_json() + "\n")
            Console().print(
                f"{game.name}, {method}, seed {seed}: {record.games[game.name].comparison.outcomes[method]}"
            )
    page.write_text(insert(page.read_text(), record, table(record)))


def learn(game: Drawn, name: str, plan: Plan) -> Comparison:
    """One method in one game."""
    truth, found = Truth(Drawing(game)), find_method(name, load_plugins())
    algorithm = GRPO(group_size=game.group_size, tasks_per_step=game.groups)
    method = Method(name, found.credit, algorithm)
    updates = plan.updates or UPDATES
    outcome = compare(truth, method, updates, plan.seeds, plan.trials, plan.rates, whole=0)
    start = truth.success(truth.even)
    return Comparison(
        optimum=truth.optimum, start=start, updates=updates, batch=method.batch, outcomes={name: outcome}
    )


Runs = dict[str, list[float]]
"""The rollouts of each method's runs."""


def table(record: Record) -> str:
    """A line for each game, and their mean, median and worst below."""
    known = {method for learnt in record.games.values() for method in learnt.comparison.outcomes}
    methods = [name for name in METHODS if name in known]
    others = [name for name in methods if name != BASE]
    lines = [
        row(["game", *methods, *(f"{name} ÷ {BASE}" for name in others)]),
        f"|{'---|' * (1 + len(methods) + len(others))}",
    ]
    found = {name: _runs(learnt.comparison) for name, learnt in record.games.items()}
    for name, runs in found.items():
        of = record.games[name].comparison
        about = f"{name}: {record.games[name].about}; {of.start:.2f} to {of.optimum:.2f}"
        counts = [_told(runs[method], of.outcomes[method]) if method in runs else "–" for method in methods]
        lines.append(row([about, *counts, *(show(_ratios([runs], other)) for other in others)]))
    blank = [""] * len(methods)
    for word, of_all in (("mean", fmean), ("median", median), ("worst", max)):
        ratios = [[fmean(v) / fmean(base) for v, base in _pairs(found.values(), other)] for other in others]
        cells = [f"{of_all(each):.2f}" if each else "–" for each in ratios]
        lines.append(row([f"{word} of the games", *blank, *cells]))
    lines.append(row(["interval of the mean", *blank, *(show(_ratios(found.values(), m)) for m in others)]))
    for word in ("more", "fewer"):
        cells = [str(sum(_differs(runs, other) == word for runs in found.values())) for other in others]
        lines.append(row([f"games with {word} rollouts beyond chance", *blank, *cells]))
    return "\n".join(lines)


def _runs(comparison: Comparison) -> Runs:
    return {name: rollouts_of(outcome, comparison) for name, outcome in comparison.outcomes.items()}


def _pairs(games: Iterable[Runs], method: str) -> list[tuple[list[float], list[float]]]:
    """The rollouts of a method and of the base, where both have as many seeds."""
    pairs = [(runs[method], runs[BASE]) for runs in games if method in runs and BASE in runs]
    return [(values, base) for values, base in pairs if len(values) == len(base)]


def _ratios(games: Iterable[Runs], method: str) -> Interval | None:
    pairs = _pairs(games, method)
    return mean_ratio_of(pairs, fmean) if pairs else None


def _differs(runs: Runs, method: str) -> str:
    """Returns "more" or "fewer" where Student's t of the differences by seed says so, else ""."""
    for values, base in _pairs([runs], method):
        found = mean_of([value - other for value, other in zip(values, base, strict=True)])
        return "more" if found.low > 0 else "fewer" if found.high < 0 else ""
    return ""


def _told(rollouts: Sequence[float], outcome: Outcome) -> str:
    lost = outcome.rollouts.count(None)
    return f"{fmean(rollouts):,.0f}{f', {lost} never' * bool(lost)} ({outcome.rate:g})"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m research.credit.learning", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--trainer", action="store_true", help="through the class `Trainer`")
    parser.add_argument("--games", type=int, default=WHOLE_GAMES, help="of --trainer, at most")
    parser.add_argument("--processes", type=int, default=1, help="of --trainer")
    parser.add_argument("--seeds", type=int, help="runs that are reported (default: 10; 5 with --trainer)")
    parser.add_argument("--trials", type=int, default=2, help="runs for each learning rate tried")
    parser.add_argument(
        "--updates", type=int, help=f"of a run, at most (default: {UPDATES}, {WHOLE_UPDATES})"
    )
    parser.add_argument("--quick", action="store_true", help="two seeds of five updates in one game")
    parser.add_argument("--record", type=Path, help="(default: research/results/credit-learning.json)")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    kind, seeds = (WholeRecord, WHOLE_SEEDS) if options.trainer else (Record, 10)
    plan = Plan("grpo", options.seeds or seeds, options.trials, options.updates)
    games = choose_whole(options.games) if options.trainer else list(choose().values())
    if options.quick:
        plan, games = Plan("grpo", 2, 1, updates=5, rates=(0.04,)), games[:1]
    path: Path = options.record or RECORDS / f"{kind().name}.json"
    record = kind.model_validate_json(path.read_bytes()) if path.exists() else kind()
    if isinstance(record, WholeRecord):
        run_whole(record, path, options.page, plan, games, options.processes)
        return
    torch.set_num_threads(1)
    for game, method in itertools.product(games, METHODS):
        if record.has(game, method, plan):
            continue
        record = record.with_outcome(game, learn(game, method, plan))
        path.write_text(record.model_dump_json() + "\n")
        options.page.write_text(insert(options.page.read_text(), record, table(record)))
        Console().print(f"{game.name}, {method}: {record.games[game.name].comparison.outcomes[method]}")


if __name__ == "__main__":
    main()
