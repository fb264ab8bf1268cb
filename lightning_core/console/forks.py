"""The forks of one call of a rollout: begun from the replay, and shown in it.

A fork is a trial of its run (`trainer.forking`), played as a trial of the sandbox is. It runs the script that
was named when the console was started, and no other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from lightning_core.console.asking import PageRequest
from lightning_core.console.sandbox import PROBLEM, play, script_of
from lightning_core.console.shelf import Found
from lightning_core.dialects import transcript
from lightning_core.errors import ConfigError, NotFoundError
from lightning_core.gateway.forks import WRITTEN
from lightning_core.insight.counterfactual import ForkResult, count_problems, read_fork, reply_value
from lightning_core.insight.status import state_of
from lightning_core.records.types import TRIED, Call, Rollout, Run
from lightning_core.stores.base import Store, get_run
from lightning_core.stores.heartbeat import living
from lightning_core.trainer.forking import (
    PLAIN,
    SAMPLES,
    Edit,
    begin_forks,
    check_forkable,
    forkable,
    read_edit,
    write_prompt,
    write_reply,
)

MOST: Final = 64
"""Rollouts that one request may fork."""
KINDS: Final = ("none", "reply", "prompt")
"""The changes that a fork may make at its call (`Edit.kind`)."""
_FOLLOWING: Final = 50
"""Calls after the fork that are shown of each rollout."""


async def show_forks(question: PageRequest) -> dict[str, Any]:
    """Returns what can be done at a call, and what its forks have shown."""
    store, found = await question.run()
    run, rollout, call, number = await _place(question, store, found)
    script = question.shelf.script
    named, folder = script[0] if script else script_of(run) or "SCRIPT", str(found.folder or "RUN")
    return {
        "script": Path(script[0]).name if script else None,
        "command": None  # the command knows no rollouts of trials
        if TRIED in run.config
        else [*("agentlightning", "fork", named, folder), "--rollout", rollout.id, "--call", str(number)],
        "arguments": ["--", *script[1:]] if script[1:] else [],
        "reply": write_reply(call) if call.choices else "",
        "prompt": write_prompt(call),
        "refused": {kind: _refusal(run, rollout, call, kind) for kind in KINDS},
        "samples": 1 if rollout.sampling.temperature == 0 else SAMPLES,
        "most": MOST,
        "reward": rollout.reward,
        "trials": [
            await _trial(question, store, found, trial, rollout, call)
            for trial in await _trials(store, run.id, call)
        ],
    }


async def begin(question: PageRequest) -> dict[str, Any]:
    """Begin the forks of a call, `samples` of them. `kind` says what is changed there, `text` to what."""
    found = await question.shelf.get(question.word("run"))
    store = await question.shelf.write(found)
    run, rollout, call, _ = await _place(question, store, found)
    script = question.shelf.script
    if not script:
        raise ConfigError(
            "this console was started without a script, so it runs no app; start it with --script, or run "
            "the command that the page shows"
        )
    samples = question.number("samples")
    if samples is None or not 0 < samples <= MOST:
        raise ConfigError(f"samples={samples} is not from 1 to {MOST}")
    trial, _asked = await begin_forks(store, run, rollout, [call], samples, _edit(question))
    playing = play(trial, found.store, question.shelf.plugins, script, os.getcwd())
    question.shelf.trials[trial.id] = asyncio.create_task(playing)
    return {"trial": trial.id}


def _edit(question: PageRequest) -> Edit:
    kind = question.word("kind")
    if kind not in KINDS:
        raise ConfigError(f"kind={kind!r} is none of {', '.join(KINDS)}")
    if kind == "none":
        return PLAIN
    text = question.word("text")
    return read_edit(text, None) if kind == "reply" else read_edit(None, text)


async def _place(question: PageRequest, store: Store, found: Found) -> tuple[Run, Rollout, Call, int]:
    """The run, the rollout, its call, and the call's number as `agentlightning fork` counts."""
    run = await get_run(store, found.run_id)
    (rollout,) = await store.get_rollouts([question.word("id")])
    if rollout.run_id != run.id:
        raise ConfigError(f"rollout {rollout.id!r} is of run {rollout.run_id!r}")
    wanted = question.word("call")
    for number, call in enumerate(forkable((await store.get_calls([rollout.id]))[rollout.id]), 1):
        if call.id == wanted:
            return run, rollout, call, number
    raise NotFoundError(f"rollout {rollout.id!r} has no call {wanted!r} that the gateway answered")


def _refusal(run: Run, rollout: Rollout, call: Call, kind: str) -> str | None:
    """Why no fork can begin there, or why the call's reply or prompt can't be edited."""
    try:
        written = {"reply": write_reply, "prompt": write_prompt}
        text = written[kind](call) if kind != "none" and call.choices else None
        edit = read_edit(text if kind == "reply" else None, text if kind == "prompt" else None)
        check_forkable(run, rollout, [call], edit, 1)
    except ConfigError as error:
        return str(error)
    return None


# what forks have shown ------------------------------------------------------------------------
async def _trials(store: Store, run_id: str, call: Call) -> list[tuple[Run, list[Rollout]]]:
    """The trials of a run that fork at a call, each with those rollouts, the newest first."""
    found = []
    for run in await store.list_runs():
        if run.config.get(TRIED) != run_id:
            continue
        first = await store.find_rollouts(run.id, limit=1)  # all rollouts of a trial fork from one
        if any(each.sampling.fork and each.sampling.fork.rollout_id == call.rollout_id for each in first):
            rollouts = await store.find_rollouts(run.id)
            forks = [one for one in rollouts if one.sampling.fork and one.sampling.fork.call_id == call.id]
            found += [(run, forks)] if forks else []
    return found


async def _trial(
    question: PageRequest,
    store: Store,
    found: Found,
    of: tuple[Run, list[Rollout]],
    recorded: Rollout,
    call: Call,
) -> dict[str, Any]:
    trial, rollouts = of
    calls = await store.get_calls([one.id for one in rollouts])
    ended = [one for one in rollouts if one.status.finished]
    results = {one.id: read_fork(one, calls[one.id]) for one in ended}
    rewards = [each.reward for each in results.values() if each.reward is not None]
    value = reply_value(recorded.reward or 0.0, rewards)
    playing = question.shelf.trials.get(trial.id)
    held = (playing is not None and not playing.done()) or bool(living(await store.list_members(trial.id)))
    fork = rollouts[0].sampling.fork
    edit = PLAIN if fork is None else Edit(fork.reply, fork.prompt)
    return {
        "run": f"{found.name}{trial.id.removeprefix(found.run_id)}",
        "kind": edit.kind,
        "prompt": edit.prompt,
        "status": state_of(trial, (), held=held),
        "problem": trial.config.get(PROBLEM, ""),
        "created_at": trial.created_at,
        "ended": len(ended),
        "rollouts": len(rollouts),
        "mean": value.mean,
        "interval": value.interval,
        "difference": value.difference,
        "problems": count_problems(list(results.values())),
        "forks": [_fork(one, results.get(one.id), calls[one.id], call) for one in rollouts],
    }


def _fork(rollout: Rollout, result: ForkResult | None, calls: Sequence[Call], target: Call) -> dict[str, Any]:
    """One rollout: its reward, and its calls from the fork on."""
    own = forkable(calls)
    first = next((place for place, call in enumerate(own) if call.id == target.id), len(own))
    return {
        "id": rollout.id,
        "status": rollout.status,
        "reward": None if result is None else result.reward,
        "error": rollout.error,
        "calls": [
            {
                "agent": call.agent,
                "said": transcript.text(transcript.replies(call)) or call.error or "",
                "status": call.status,
                "version": call.policy_version,
                "written": any(choice.left_out == WRITTEN for choice in call.choices),
            }
            for call in own[first : first + _FOLLOWING]
        ],
    }


ANSWERS: Final = MappingProxyType({"forks": show_forks})
VERBS: Final = MappingProxyType({"fork": begin})
