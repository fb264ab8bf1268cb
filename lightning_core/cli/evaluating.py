"""`agentlightning evaluate`: several policies on the same tasks, side by side."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from lightning_core.backends.weights.sources import check_folder
from lightning_core.cli.models import export_weights, open_weights
from lightning_core.cli.rollouts import open_run
from lightning_core.cli.serving import say
from lightning_core.cli.training import SET, call_once, read_launch
from lightning_core.errors import ConfigError
from lightning_core.experience.returns import reward_of
from lightning_core.insight.verdict import level_interval, mean_interval
from lightning_core.prompts import read_declared
from lightning_core.records.types import Status, Task
from lightning_core.stores.base import get_run
from lightning_core.texts.json_text import read_json
from lightning_core.texts.terminal import Terminal
from lightning_core.trainer.folder import RUNS, write_atomically
from lightning_core.trainer.launch import Launch
from lightning_core.trainer.plan import EVALUATIONS, make_tasks
from lightning_core.trainer.report import find_whole_evaluation
from lightning_core.trainer.trainer import Trainer

APP: Final = "app"
"""The policy that stands for whatever model the app itself asks."""
RESULTS: Final = "results.json"
_NAMED: Final = (
    "A run's folder (runs/demo), a version of it (runs/demo@12), a transformers folder, a model's name, or "
    "'app' for the hosted model that the app itself asks; may be repeated. Default: the script's model."
)
_TASK: Final = '{"question": "How many boats are there?"}'
_VERSION = re.compile(r"(.+)@(\d+)")


@dataclass(frozen=True, slots=True)
class PolicyScore:
    """The rewards of one policy in the order of the tasks; a rollout that failed has 0."""

    policy: str
    run: Path
    sampled: Sequence[float]
    greedy: Sequence[float]
    failures: int

    def rewards(self, kind: str) -> Sequence[float]:
        """Rewards of the `kind` "sampled" or "greedy"."""
        return self.sampled if kind == "sampled" else self.greedy


def evaluate(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script that calls Trainer(...).fit(...).")],
    policy: Annotated[list[str] | None, typer.Option(metavar="POLICY", help=_NAMED)] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(help="JSON Lines, a task a line (default: the script's validation tasks)."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="New folder for the results (default: runs/evaluation-<date-time>).")
    ] = None,
    at_least: Annotated[
        float | None, typer.Option(help="Exit with 1 if the greedy mean of a policy is lower.")
    ] = None,
    given: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET)] = None,
) -> None:
    """Evaluate one or more policies on the same tasks, and compare each with the first.

    Each task is run once sampled and once greedy. Nothing is trained. The folder holds results.json and a run
    for each policy, which `show` and `console` open. Intervals are confidence intervals of 95 %.

        agentlightning evaluate train.py --policy smollm2 --policy runs/demo
        agentlightning evaluate train.py --policy runs/demo@12 --tasks frozen.jsonl --at-least 0.8
    """
    place = folder or RUNS / time.strftime("evaluation-%Y%m%d-%H%M%S")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"{str(place)!r} is not empty, and nothing is overwritten; give a new folder")
    read = None if tasks is None else read_tasks(tasks)
    scores: list[PolicyScore] = []

    def once(
        trainer: Trainer, solve: Any, *, train: Iterable[Any] = (), validation: Iterable[Any] = ()
    ) -> None:
        shared = make_tasks(validation if read is None else read, "validation")
        if not shared:
            raise ConfigError("there is no task: give --tasks FILE, or fit(validation=...) in the script")
        names = policy or [APP if trainer.served_model is None else str(trainer.served_model)]
        for name in names:  # before the first is run, so that a slip in the last costs nothing
            asyncio.run(_check(name))
        for number, name in enumerate(names):
            run = place / f"{number}-{_slug(name)}"
            watching = f"once the model is loaded, watch it with: agentlightning console {run}"
            say(f"{len(shared)} tasks with {name}; {watching}")
            scores.append(run_policy(trainer, solve, shared, name, run))
            results = summarise(scores, shared)
            write_atomically(place / RESULTS, json.dumps(results, indent=1).encode())
        show_results(results)

    call_once(script, context.args, read_launch(given or (), {}), once)
    say(f"written to {place / RESULTS}; for the replies: agentlightning show {scores[-1].run} --full")
    low = [one.policy for one in scores if at_least is not None and fmean(one.greedy) < at_least]
    if low:
        say(f"below --at-least {at_least:g} (greedy): {', '.join(low)}")
        raise typer.Exit(1)


def read_tasks(file: Path) -> list[dict[str, Any]]:
    """The tasks of a file with a JSON object a line. Raises ConfigError for a line that is none."""
    try:
        lines = file.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the tasks in {str(file)!r}: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = read_json(line.encode())
        except ValueError as error:
            raise ConfigError(f"line {number} of {str(file)!r} is not JSON: {error}") from error
        if not isinstance(task, dict):
            raise ConfigError(f"line {number} of {str(file)!r} is not an object such as {_TASK}")
        found.append(task)
    if not found:
        raise ConfigError(f"there is no task in {str(file)!r}: a line is one, such as {_TASK}")
    return found


def run_policy(trainer: Trainer, solve: Any, tasks: Sequence[Task], name: str, folder: Path) -> PolicyScore:
    """Run each task twice under one policy, in a run of its own."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:  # weights may be too large for /tmp
        changed = with_policy(trainer, name, Path(scratch) / "policy")
        changed = replace(changed, steps=0, folder=folder, store=None, resume=False, progress=False)
        changed = replace(changed, policies={})  # one policy plays every agent
        Trainer.fit(changed, solve, validation=tasks)
    shutil.rmtree(folder / "policy", ignore_errors=True)  # the weights lie where they came from
    return asyncio.run(_read_score(name, folder))


def with_policy(trainer: Trainer, name: str, folder: Path) -> Trainer:
    """The trainer with that policy. A version of a run is written to `folder` first.

    Raises ConfigError for a run without weights.
    """
    if name == APP:
        return replace(trainer, agents=[], model=None, backend="local", prompts={}, steps=0)
    if (found := _version_of(name)) is not None:
        asyncio.run(export_weights(*found, folder))
        return Launch({"model": str(folder)}).apply(trainer)
    return Launch({"model": name}).apply(trainer)


def _version_of(name: str) -> tuple[str, int | None] | None:
    """The run's folder and the version that a policy's name means; None for a name that is no run's."""
    versioned = _VERSION.fullmatch(name)
    for run, version in ((name, None), *([(versioned[1], int(versioned[2]))] if versioned else [])):
        if (Path(run) / "run.json").is_file():
            return run, version
    return None


async def _check(name: str) -> None:
    """Raises ConfigError or NotFoundError for a policy or version that there is not, and for a run that chose
    prompts: an app sends its own."""
    if (found := _version_of(name)) is None:
        if name != APP:
            check_folder(name)
        return
    run, version = found
    async with open_run(Path(run)) as (store, run_id):
        prompts = read_declared(await get_run(store, run_id))
        changed = [prompt for prompt in prompts if len(await store.list_resources(run_id, prompt)) > 1]
    if changed:
        raise ConfigError(
            f"run {run!r} has other prompts for {', '.join(sorted(changed))} than the app sends, and an "
            "evaluation compares weights: put the prompt into the app (agentlightning models --name NAME "
            "export), export the weights, and name their folder"
        )
    async with open_weights(run, version):
        pass


async def _read_score(name: str, folder: Path) -> PolicyScore:
    async with open_run(folder) as (store, run_id):
        rollouts = await find_whole_evaluation(store, run_id, 0)
    by_place = {rollout.place: rollout for rollout in rollouts}
    count = len(rollouts) // len(EVALUATIONS)
    rewards = {
        kind: [reward_of(by_place[f"{kind}-{place}"]) for place in range(count)] for kind in EVALUATIONS
    }
    failures = sum(rollout.status is not Status.SUCCEEDED for rollout in rollouts)
    return PolicyScore(name, folder, rewards["sampled"], rewards["greedy"], failures)


def summarise(scores: Sequence[PolicyScore], tasks: Sequence[Task]) -> dict[str, Any]:
    """The content of `results.json`: means, their intervals, differences from the first policy, rewards."""
    every = [reward for one in scores for kind in EVALUATIONS for reward in one.rewards(kind)]
    bounds = min(0.0, *every), max(1.0, *every)
    frozen = json.dumps([task.input for task in tasks], sort_keys=True).encode()
    return {
        "tasks": len(tasks),
        "tasks_sha256": hashlib.sha256(frozen).hexdigest(),
        "policies": [
            {
                "policy": one.policy,
                "run": str(one.run),
                "failures": one.failures,
                **{kind: _figures(one, scores[0], kind, bounds) for kind in EVALUATIONS},
                "rewards": [
                    {"task": task.id, "sampled": sampled, "greedy": greedy}
                    for task, sampled, greedy in zip(tasks, one.sampled, one.greedy, strict=True)
                ],
            }
            for one in scores
        ],
    }


def _figures(one: PolicyScore, first: PolicyScore, kind: str, bounds: tuple[float, float]) -> dict[str, Any]:
    rewards = one.rewards(kind)
    figures: dict[str, Any] = {"mean": fmean(rewards), "interval": level_interval(rewards, *bounds)}
    if one is not first:
        gains = [mine - its for mine, its in zip(rewards, first.rewards(kind), strict=True)]
        figures |= {"difference": fmean(gains), "difference_interval": mean_interval(gains)}
    return figures


_NAME: Final = 24
"""Characters of a policy's name that stand on one line, such as runs/20261129-110440."""


def show_results(results: dict[str, Any]) -> None:
    """Print a line for each policy."""
    table = Table(
        title=f"{results['tasks']} tasks, mean reward",
        caption="in brackets: 95 % intervals; a difference is from the first policy, task by task",
    )
    several = len(results["policies"]) > 1
    longest = max(len(one["policy"]) for one in results["policies"])
    table.add_column("policy", overflow="fold", min_width=min(longest, _NAME))
    for kind in EVALUATIONS:
        table.add_column(kind, justify="right")
        if several:
            table.add_column("difference", justify="right")
    table.add_column("failed", justify="right")
    for one in results["policies"]:
        cells = []
        for kind in EVALUATIONS:
            cells.append(_shown(one[kind], "mean", "interval", ".3f"))
            if several:
                cells.append(_shown(one[kind], "difference", "difference_interval", "+.3f"))
        table.add_row(Text(one["policy"]), *cells, f"{one['failures']}/{2 * results['tasks']}")
    Terminal().print(table)


def _shown(figures: dict[str, Any], name: str, interval: str, form: str) -> str:
    if name not in figures:
        return "-"
    low, high = figures[interval]
    return f"{figures[name]:{form}}\n({low:{form}} to {high:{form}})"


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[-40:] or "policy"
