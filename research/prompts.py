"""Do searches for prompts find anything, and would chance have found it? `python -m research.prompts`

The SQL agent's writer is answered greedily by the policy of `recipes.promptable`, which reads instructions;
it is made when it is missing. Every task hangs on a convention that a sentence may name. Whatever proposes a
prompt draws sentences from one pool, which names wrong conventions twice as often as right ones, in wordings
that the policy was never shown. It reads no score: what is found is found by the search. A row is a search,
repeated with several seeds. A seed draws its own tasks; half of the held-out ones report.

gepa        GEPA, whose reflecting model adds a sentence of the pool, or puts it in place of another one
random      as many candidates of random sentences as the budget allows; the best by the tasks that choose
placebo     GEPA, but the rewards that it learns from and chooses by are coin tosses
deaf        GEPA on the shipped policy, which can't read instructions: its gain must be 0
bootstrap   demonstrations of the agent's own successes
failures    the same, but rewards of training tasks are turned around: demonstrations of what went wrong
by hand     a right sentence on every convention, nothing searched: the ceiling

The claim of a search is its paired difference to the placebo and to random search, never its gain alone.
`--joined` asks whether prompts and weights do more together: GEPA, GRPO, and GRPO after GEPA, each with the
same number of rollouts. `--words` gives SmolLM2-135M-Instruct demonstrations of its own successes at word
problems (`examples/words`), beside the placebo. `--rows gepa random --first 20 --seeds 40` runs two rows with
other seeds, and writes no page.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

from lightning_langgraph import LightningCallback
from rich.console import Console

import lightning_core as lightning
from benchmarks.intervals import mean_of
from examples.sql.prompts import write_prompt
from examples.sql.tasks import load_tasks
from examples.sql.train import solve
from examples.words import app as words
from examples.words.tasks import load_tasks as load_words
from lightning_core.algorithms.search import Bench, Candidate, Search, mean
from lightning_core.trainer.searching import halves
from lightning_core.trainer.summary import SearchSummary, Summary
from recipes.promptable.sentences import TOPICS, WORDINGS, bank, say

WRITER: Final = write_prompt("", "")[0]["content"]
POLICY: Final = Path(".data/promptable")
RUNS: Final = Path("runs/prompts")
PAGE: Final = Path("docs/prompts.md")
POOL: Final = bank()
STEP: Final = 64
"""Rollouts in a step of GRPO."""


@dataclass(frozen=True, slots=True)
class App:
    """An app to optimise, the prompt of one of its agents, and its tasks."""

    agents: list[str]
    """The first has the prompt."""
    text: str
    solve: Callable[[lightning.Task], Awaitable[float]]
    draw: Callable[[str, int, int], list[lightning.Task]]
    """Tasks of a split, as many, of a seed."""


def draw_sql(split: str, number: int, seed: int) -> list[lightning.Task]:
    """Tasks that hang on a convention which a sentence may name."""
    rows = [row for row in load_tasks(split, ".data/sql", seed=seed) if row["form"] in TOPICS]
    return _tasks(split, rows[:number])


def draw_words(split: str, number: int, seed: int) -> list[lightning.Task]:
    """Word problems."""
    return _tasks(split, random.Random(seed).sample(load_words(split), number))


def _tasks(split: str, rows: Sequence[Mapping[str, str]]) -> list[lightning.Task]:
    kind: Literal["train", "validation"] = "train" if split == "train" else "validation"
    return [lightning.Task(id=row["id"], input=dict(row), split=kind) for row in rows]


async def solve_words(task: lightning.Task) -> float:
    """Run the app once; the reward is 1 if its answer is the right number."""
    graph = words.build_graph().with_config(callbacks=[LightningCallback()])
    state = await graph.ainvoke({"problem": str(task.input["problem"])})
    return float(state["answer"] == task.input["answer"])


SQL: Final = App(["write_query", "check_query", "rewrite_query"], WRITER, solve, draw_sql)
WORDS: Final = App(["write_arithmetic"], words.ASKED, solve_words, draw_words)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSearch(Search):
    """Candidates of one to four random sentences; the best of them and the seed, by the tasks that choose."""

    async def search(self, bench: Bench) -> Candidate:
        drawn = random.Random(f"random-{bench.random_seed}")
        candidates = [bench.seed]
        while len(candidates) < bench.left // len(bench.choosing):
            text = " ".join([WRITER, *drawn.sample(POOL, drawn.randint(1, 4))])
            made = await bench.propose(bench.seed, {"write_query": text})
            if made is not None and made not in candidates:
                candidates.append(made)
        tried = await bench.evaluate([(each, bench.choosing) for each in candidates])
        return candidates[max(range(len(tried)), key=lambda place: mean(tried[place]))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand(Search):
    """A right sentence on every convention, in wordings that the policy was never shown."""

    async def search(self, bench: Bench) -> Candidate:
        text = say(WRITER, dict.fromkeys(WORDINGS, "gold"), random.Random(bench.random_seed), held_out=True)
        return await bench.propose(bench.seed, {"write_query": text}) or bench.seed


@dataclass(frozen=True, slots=True)
class Arm:
    """A row: a search, the policy, and what is done to the rewards that the search sees."""

    search: Callable[[int, int], Search]
    """Makes the search from a budget and a seed."""
    policy: str = str(POLICY)
    rewards: str = "true"
    """Or "tossed", or "turned": those of training tasks turned around."""
    app: App = SQL


def _gepa(budget: int, seed: int) -> Search:
    return lightning.GEPA(budget=budget, reflection=blind(seed))


ARMS: Final[Mapping[str, Arm]] = {
    "gepa": Arm(_gepa),
    "random": Arm(lambda budget, _: RandomSearch(budget=budget)),
    "placebo": Arm(_gepa, rewards="tossed"),
    "deaf": Arm(_gepa, policy="tiny"),
    "by hand": Arm(lambda budget, _: ByHand(budget=budget)),
    "bootstrap": Arm(lambda budget, _: lightning.Bootstrap(budget=budget)),
    "failures": Arm(lambda budget, _: lightning.Bootstrap(budget=budget), rewards="turned"),
}
SMOLLM2: Final[Mapping[str, Arm]] = {
    "words bootstrap": Arm(lambda budget, _: lightning.Bootstrap(budget=budget), "smollm2", app=WORDS),
    "words placebo": Arm(lambda budget, _: lightning.Bootstrap(budget=budget), "smollm2", "tossed", WORDS),
}
JOINED: Final = ("gepa", "grpo", "gepa, then grpo")


KINDS: Final[Mapping[str, tuple[Sequence[str], int, int]]] = {
    "searches": (tuple(ARMS), 20, 480),
    "joined": (JOINED, 3, 1024),
    "words": (tuple(SMOLLM2), 3, 240),
}
"""The tables: their rows, and how many seeds and rollouts by default."""


def blind(seed: int) -> Callable[[str], str]:
    """A proposer that adds a random sentence of the pool; half of the time in the place of another one."""
    drawn = random.Random(f"blind-{seed}")

    def propose(question: str) -> str:
        before = re.findall(r"```\n(.*?)\n```", question, re.DOTALL)[0]
        told = [each for each in POOL if each in before]
        fresh = drawn.choice([each for each in POOL if each not in told])
        if told and drawn.random() < 0.5:
            told.remove(drawn.choice(told))
        return f"```\n{' '.join([WRITER, *told, fresh])}\n```"

    return propose


def judged(
    app: App, rewards: str, seed: int, choosing: set[str]
) -> Callable[[lightning.Task], Awaitable[float]]:
    """The app with its reward, or with others in its place; those of the tasks that report are true."""

    async def run(task: lightning.Task) -> float:
        reward = await app.solve(task)
        if rewards == "turned" and task.split == "train":
            return 1 - reward
        if rewards == "tossed" and (task.split == "train" or task.id in choosing):
            told = f"{seed}/{task.id}/{lightning.prompt(app.agents[0], app.text)}"
            return float(hashlib.blake2b(told.encode()).digest()[0] < 128)
        return reward

    return run


def fit(name: str, seed: int, arm: Arm, tasks: int, algorithm: Any) -> Summary:
    """The run's summary. A run that is there is read, and one that was killed goes on."""
    folder = RUNS / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
    if (done := folder / "summary.json").exists():
        return Summary.model_validate_json(done.read_text())
    held_out = arm.app.draw("test", tasks, seed)
    choosing, _ = halves(held_out, seed)
    chose = {task.id for task in choosing}
    validation = [
        task.model_copy(update={"input": {**task.input, "half": "chose" if task.id in chose else "reports"}})
        for task in held_out
    ]
    trainer = lightning.Trainer(
        agents=arm.app.agents,
        prompts={arm.app.agents[0]: arm.app.text},
        algorithm=algorithm,
        backend=lightning.LocalBackend(arm.policy),
        group_by="half",
        folder=folder,
        seed=seed,
        resume="auto",
        progress=False,
    )
    app = judged(arm.app, arm.rewards, seed, chose)
    return trainer.fit(app, train=arm.app.draw("train", 4 * tasks, seed), validation=validation)


def run_arm(name: str, seed: int, budget: int, tasks: int) -> SearchSummary:
    """One search."""
    arm = {**ARMS, **SMOLLM2}[name]
    return fit(name, seed, arm, tasks, arm.search(budget, seed)).searches[0]


def run_joined(name: str, seed: int, budget: int, tasks: int) -> float:
    """Success on the tasks that report, after `budget` rollouts, the report's not counted."""
    half = budget // 2 // STEP * STEP
    grpo = lightning.GRPO(group_size=8, tasks_per_step=STEP // 8)
    phases: Any = {
        "gepa": [lightning.Phase(_gepa(2 * half + tasks, seed))],
        "grpo": [lightning.Phase(grpo, steps=2 * half // STEP)],
        "gepa, then grpo": [
            lightning.Phase(_gepa(half + tasks, seed)),
            lightning.Phase(grpo, steps=half // STEP),
        ],
    }[name]
    summary = fit(f"joined {name}", seed, ARMS["gepa"], tasks, phases)
    if name == "gepa":
        return summary.searches[0].reporting[int(summary.searches[0].is_better)]
    assert summary.after is not None
    return summary.after.detail["greedy"].by["reports"]


def searches_table(found: Mapping[str, Sequence[SearchSummary]]) -> str:
    """A row for each search: means over the seeds, with 95 % intervals by Student's t."""
    head = (
        "search",
        "tasks that chose, seed to chosen",
        "tasks that report",
        "gain (95 %)",
        "became current",
        "more than the placebo (95 %)",
        "more than random (95 %)",
    )
    rows = [head, ("---",) * len(head)]
    for name, runs in found.items():
        beyond = [
            _difference(runs, found[other]) if other in found and name not in (other, "by hand") else ""
            for other in ("placebo" if "words placebo" not in found else "words placebo", "random")
        ]
        rows.append(
            (
                name,
                " to ".join(_short(fmean(each.choosing[place] for each in runs)) for place in (0, 1)),
                " to ".join(_short(fmean(each.reporting[place] for each in runs)) for place in (0, 1)),
                _interval([each.gain for each in runs]),
                f"{sum(each.is_better for each in runs)} of {len(runs)}",
                *beyond,
            )
        )
    return _markdown(rows)


def joined_table(found: Mapping[str, Sequence[float]]) -> str:
    """A row for each way to spend the rollouts."""
    rows: list[Sequence[str]] = [
        ("rollouts spent on", "success on tasks that report (95 %)", "by seed"),
        ("---",) * 3,
    ]
    rows += [
        (name, _interval(values), ", ".join(_short(each) for each in values))
        for name, values in found.items()
    ]
    return _markdown(rows)


def _difference(runs: Sequence[SearchSummary], others: Sequence[SearchSummary]) -> str:
    return _interval([run.gain - other.gain for run, other in zip(runs, others, strict=True)])


def _interval(values: Sequence[float]) -> str:
    found = mean_of(values)
    return f"{_short(found.value)} ({_short(found.low)} to {_short(found.high)})"


def _short(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}".replace("0.", ".", 1)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def publish(name: str, table: str) -> None:
    """Put the table between its marks on the page."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = PAGE.read_text().partition(begin)
    PAGE.write_text(f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--joined", action="store_true", help="prompts and weights at equal rollouts")
    parser.add_argument("--words", action="store_true", help="demonstrations for a real model")
    parser.add_argument("--seeds", type=int, help="(default: 20; 3 with --joined or --words)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="these only; the page stays as it is")
    parser.add_argument(
        "--budget", type=int, help="rollouts of a run (default: 480; --joined 1024, --words 240)"
    )
    parser.add_argument("--tasks", type=int, default=48, help="held-out tasks (default: 48)")
    options = parser.parse_args()
    if not options.words and not POLICY.exists():
        make = [sys.executable, "-m", "recipes.promptable", "--seed", "0", "--out", str(POLICY)]
        subprocess.run(make, check=True)
    kind = "joined" if options.joined else "words" if options.words else "searches"
    names, seeds, budget = KINDS[kind]
    if unknown := set(options.rows or names) - set(names):
        parser.error(f"no rows: {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    names = options.rows or names
    run: Callable[[str, int, int, int], Any] = run_joined if options.joined else run_arm
    console = Console()
    found: dict[str, list[Any]] = {name: [] for name in names}
    for seed in range(options.first, options.first + (options.seeds or seeds)):
        for name in names:
            found[name].append(run(name, seed, options.budget or budget, options.tasks))
            last = found[name][-1]
            said = last.said() if isinstance(last, SearchSummary) else f"{last:.2f}"
            console.print(f"seed {seed}, {name}: {said}", highlight=False, soft_wrap=True)
    table = joined_table(found) if options.joined else searches_table(found)
    console.print(table, highlight=False, soft_wrap=True)
    if not options.rows:
        publish(kind, table)


if __name__ == "__main__":
    main()
