"""Two versions tried on the same tasks: weights, prompts or both, by the app itself, in a run of its own.

A trial is a run `RUN-try-N` in the store of its run. Its rollouts are pinned to versions, as those of an
evaluation are. A gateway and a worker of the run's own script play them, as processes that end with it, so
the training's rollouts stay as they are.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import orjson

from lightning_core.console.asking import PageRequest
from lightning_core.console.models import AUTHOR
from lightning_core.console.shelf import TRIAL
from lightning_core.errors import ConfigError
from lightning_core.insight.compare import compare_trials
from lightning_core.insight.failures import group_failures
from lightning_core.insight.status import state_of
from lightning_core.plugins import Plugins
from lightning_core.prompts import read_declared
from lightning_core.records.types import TRIED, Rollout, Run, Task
from lightning_core.stores.base import Store, get_run
from lightning_core.stores.versions import POLICY, find_current, get_version, put_prompt
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.plan import RolloutPlan
from lightning_core.trainer.report import task_text
from lightning_core.trainer.roles.gateway import refuse_policies

ARMS: Final = ("a", "b")
TASKS: Final = 100
"""Held-out tasks to choose from."""
MOST: Final = 400
"""Rollouts of a trial."""
SHOWN: Final = 20
"""Trials that are listed, the newest."""
PROBLEM: Final = "problem"
"""Where a trial's config says why it failed."""
_ARMS: Final = "arms"
"""Where it says which versions are compared. A trial without them forks rollouts (`trainer.forking`)."""
_LOOK: Final = 1.0
_TOLD: Final = 2000
"""Characters of a process's last words."""


async def show_sandbox(question: PageRequest) -> dict[str, Any]:
    """Returns the possible trials and the finished ones, each with the difference of its arms."""
    store, found = await question.run()
    run = await get_run(store, found.run_id)
    names = list(read_declared(run))
    runs = await _trials(store, run.id)
    return {
        "versions": await _versions(store, run.id, POLICY),
        "prompts": {name: await _versions(store, run.id, name) for name in names},
        "seeds": {name: prompt.text for name, prompt in read_declared(run).items()},
        "tasks": [{"id": task.id, "shown": task_text(task)} for task in await _tasks(store, run.id)],
        "script": script_of(run),
        "most": MOST,
        "trials": [await _trial(question, store, one) for one in runs[:SHOWN]],
    }


async def try_versions(question: PageRequest) -> dict[str, Any]:
    """Begin a trial of `a` against `b`, each {"version", "prompts"}, with `samples` of each of `tasks`."""
    found = await question.shelf.get(question.word("run"))
    store = await question.shelf.write(found)
    run = await get_run(store, found.run_id)
    if found.folder is None:
        raise ConfigError("a trial runs the run's script: open the run's folder on the machine that has it")
    _check_there(run)
    refuse_policies(run, "a trial")
    arms = [_arm(question.word(name)) for name in ARMS]
    tasks = [task for task in await _tasks(store, run.id) if task.id in question.word("tasks").split("\n")]
    samples = question.number("samples") or 1
    if not 0 < len(tasks) * samples * len(arms) <= MOST:
        raise ConfigError(f"{len(tasks)} tasks, {samples} times by both are not from 1 to {MOST} rollouts")
    trial = await _begin(store, run, arms)
    await store.enqueue(
        [
            rollout
            for arm, (version, prompts) in zip(ARMS, arms, strict=True)
            for rollout in RolloutPlan(trial.id, 0, version=version).search(
                [(f"{arm}{place}", str(place), prompts, task) for place, task in enumerate(tasks)], samples
            )
        ]
    )
    worker = [script_of(trial), *_arguments(trial)]
    playing = play(trial, found.store, question.shelf.plugins, worker, str(trial.provenance["folder"]))
    question.shelf.trials[trial.id] = asyncio.create_task(playing)
    return {"trial": trial.id}


async def save_prompt(question: PageRequest) -> dict[str, Any]:
    """Add a version of a declared prompt, not the current one. ConfigError if it lost a placeholder."""
    found = await question.shelf.get(question.word("run"))
    store = await question.shelf.write(found)
    name, text = question.word("name"), question.word("text")
    seed = read_declared(await get_run(store, found.run_id)).get(name)
    if seed is None:
        raise ConfigError(
            f"the run declared no prompt {name!r}: give prompts={{{name!r}: ...}} to its trainer"
        )
    if lost := seed.lost(text):
        raise ConfigError(f"the placeholders {lost!r} are missing, in whose place the app puts values")
    known = find_current(await store.list_resources(found.run_id, name))
    parent = None if known is None else known.version
    made = await put_prompt(store, found.run_id, name, text, author=AUTHOR, parent=parent, chosen=False)
    return {"name": name, "version": made.version}


def _check_there(run: Run) -> None:
    for path in (script := script_of(run), str(run.provenance.get("folder") or "")):
        if not Path(path).exists() or not path:
            raise ConfigError(
                f"{path!r} is not there, so the app of {script!r} can't be tried; bring it back"
            )


# a trial --------------------------------------------------------------------------------------
def _arm(text: str) -> tuple[int, Mapping[str, int]]:
    try:
        arm = orjson.loads(text)
        return int(arm["version"]), {str(name): int(version) for name, version in arm["prompts"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(f"{text!r} is no side of a trial: give version and prompts, as JSON") from None


async def _begin(store: Store, run: Run, arms: list[tuple[int, Mapping[str, int]]]) -> Run:
    """A run with the versions that are tried. Raises NotFoundError for one that is not there."""
    number = len(await _trials(store, run.id)) + 1
    trial = Run(
        id=f"{run.id}{TRIAL}{number}",
        config={**run.config, TRIED: run.id, _ARMS: [[version, dict(prompts)] for version, prompts in arms]},
        folder=run.folder,
        secret=secrets.token_hex(32),
        provenance=run.provenance,
    )
    names = [(POLICY, version) for version, _ in arms]
    names += [pair for _, prompts in arms for pair in prompts.items()]
    wanted = [get_version(await store.list_resources(run.id, name), number) for name, number in set(names)]
    await store.put_run(trial)
    for each in wanted:
        await store.put_resource(each.model_copy(update={"run_id": trial.id}))
    return trial


async def play(trial: Run, url: str, plugins: Plugins, script: Sequence[str], folder: str) -> None:
    """Have the trial's rollouts run, by a gateway and a worker that end with it. `script`: its path and its
    arguments; `folder`: where both are started."""
    with_run = ("--store", url, "--run", trial.id)
    async with open_store(url, plugins) as store:
        verbs = ["gateway", *with_run], ["worker", script[0], *with_run, "--", *script[1:]]
        begun = [await _start(verb, folder) for verb in verbs]
        ended = [asyncio.create_task(one.communicate()) for one in begun]
        over: Run = trial.model_copy(update={"status": "failed"})
        try:
            while all(one.returncode is None for one in begun):
                if all(one.status.finished for one in await store.count_rollouts(trial.id)):
                    over = trial.model_copy(update={"status": "finished"})
                    break
                await asyncio.wait(ended, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in begun:
                if one.returncode is None:
                    one.terminate()
            said = "\n".join([(await each)[1].decode(errors="replace") for each in ended])[-_TOLD:]
            told = "" if over.status == "finished" else said
            await store.put_run(over.model_copy(update={"config": {**trial.config, PROBLEM: told}}))


def _arguments(run: Run) -> list[str]:
    """The arguments of the run's script."""
    command: Any = run.provenance.get("command")
    return command[command.index("--") + 1 :] if isinstance(command, list) and "--" in command else []


async def _start(given: Sequence[str], folder: str) -> asyncio.subprocess.Process:
    """A verb of ours, in a session of its own, as Ctrl-C is the console's."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "lightning_core.cli", *given),
        cwd=folder,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


async def _trials(store: Store, run_id: str) -> list[Run]:
    """The trials of a run, the newest first."""
    return [one for one in await store.list_runs() if one.config.get(TRIED) == run_id and _ARMS in one.config]


async def _trial(question: PageRequest, store: Store, trial: Run) -> dict[str, Any]:
    rollouts = await store.find_rollouts(trial.id)
    arms = [[one for one in rollouts if one.id.startswith(f"{trial.id}-s0-{arm}")] for arm in ARMS]
    failed = [_failures(arm) for arm in arms]
    played = [arm if told["failed"] < len(arm) else [] for arm, told in zip(arms, failed, strict=True)]
    playing = question.shelf.trials.get(trial.id)
    return {
        "id": trial.id,
        "status": state_of(trial, (), held=playing is not None and not playing.done()),
        "created_at": trial.created_at,
        "arms": trial.config[_ARMS],
        "problem": trial.config.get(PROBLEM, ""),
        "ended": sum(one.status.finished for one in rollouts),
        "rollouts": len(rollouts),
        "failed": failed,
        **asdict(compare_trials(*played)),
    }


def _failures(arm: Sequence[Rollout]) -> dict[str, Any]:
    """How many failed, and the most frequent reason. An arm whose rollouts all failed is not compared."""
    reasons = group_failures(arm)
    error = reasons[0].text if reasons else ""
    return {"failed": sum(each.count for each in reasons), "rollouts": len(arm), "error": error}


# what can be tried ------------------------------------------------------------------------------
def script_of(run: Run) -> str:
    """The path of the script that the run was begun with."""
    return str(run.provenance.get("script") or "")


async def _versions(store: Store, run_id: str, name: str) -> list[dict[str, Any]]:
    versions = await store.list_resources(run_id, name)
    current = find_current(versions)
    there = [each for each in versions if each.uri is not None]
    return [
        {
            "version": each.version,
            "current": each is current,
            "author": each.author,
            "text": each.uri if each.kind == "prompt" else None,
        }
        for each in there
    ]


async def _tasks(store: Store, run_id: str) -> list[Task]:
    """The held-out tasks of the first evaluation; of a run without, those of its first step."""
    held_out = await store.find_rollouts(run_id, split="validation", limit=2 * TASKS)
    found = held_out or await store.find_rollouts(run_id, split="train", limit=2 * TASKS)
    tasks = {one.task.id: one.task for one in found}
    return list(tasks.values())[:TASKS]


ANSWERS: Final = MappingProxyType({"sandbox": show_sandbox})
VERBS: Final = MappingProxyType({"try": try_versions, "save": save_prompt})
