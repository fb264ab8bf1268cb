"""Why calls got their advantages, and what they would have got under other settings.

A step is read from the store and credited again by the functions that the trainer used (`insight.why`).
"""

from __future__ import annotations

import asyncio
import inspect
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import Any, Final, get_args

from lightning_core.air.base import AIR
from lightning_core.console.asking import PageRequest
from lightning_core.credit.base import Baseline, Credit, Scale
from lightning_core.credit.explaining import Explanation
from lightning_core.errors import ConfigError
from lightning_core.insight.why import (
    Answers,
    Other,
    Reason,
    RewardFunction,
    Step,
    WhatIf,
    read_why,
    what_if,
)
from lightning_core.trainer.parts import make_credit, make_rulebook
from lightning_core.trainer.report import task_text

_CHANGES: Final = 20
"""Transitions that a what-if lists, those that move most."""
OWN: Final = "own"
"""A setting as the run has it."""


async def show_step(question: PageRequest) -> dict[str, Any]:
    """The groups of a step with the returns of their rollouts, and how the step was credited."""
    store, found = await question.run()
    number = question.number("step") or 0
    step, method, answers = await read_why(store, found.run_id, number)
    return {
        "step": number,
        "steps": sorted(
            {one.step for one in await store.count_rollouts(found.run_id) if one.split == "train"}
        ),
        "method": {**method.written(), "about": _about(method.credit)},
        "groups": _groups(step, answers),
        "credits": question.shelf.plugins.names("credit"),
        "baselines": get_args(Baseline),
        "scales": get_args(Scale),
        "rewards": [*question.shelf.rewards],
    }


def _about(credit: Credit) -> str:
    """Returns a description of a credit method: the first line of its file."""
    of = credit if hasattr(credit, "__qualname__") else type(credit)
    return (inspect.getdoc(inspect.getmodule(of)) or "").partition("\n")[0]


def _groups(step: Step, answers: Answers) -> list[dict[str, Any]]:
    rollouts = {one.id: one for one in step.rollouts}
    advantages: dict[str, list[float]] = {}
    taught = answers.taught
    for key, reason in answers.reasons.items():
        if reason.advantage is not None:
            advantages.setdefault(key[0], []).append(reason.advantage)
    return [
        {
            "id": group_id,
            "task": rollouts[next(iter(returns))].task.id,
            "shown": task_text(rollouts[next(iter(returns))].task),
            "mean": fmean(returns.values()),
            "deviation": pstdev(returns.values()),
            "taught": group_id in taught,
            "rollouts": [
                {"id": name, "return": value, "advantages": advantages.get(name, [])}
                for name, value in returns.items()
            ],
        }
        for group_id, returns in answers.returns().items()
    ]


def to_shown(reason: Reason) -> dict[str, Any]:
    """Why a choice of a call has its advantage, term by term."""
    return {
        "choice": reason.transition.choice,
        "advantage": reason.advantage,
        "sentence": reason.sentence,
        "share": reason.share,
        **(_explanation(reason.explanation) if reason.explanation else {}),
    }


def _explanation(explanation: Explanation) -> dict[str, Any]:
    return {
        "mean": explanation.mean,
        "unit": explanation.unit,
        "total": explanation.total,
        "terms": [
            {
                "value": term.value,
                "baseline": term.baseline,
                "unit": term.unit,
                "weight": term.weight,
                "amount": term.amount,
                "parts": [part._asdict() for part in term.parts],
                "means": term.means,
                "own": term.own,
                "compared": term.compared,
            }
            for term in explanation.terms
        ],
    }


async def show_what_if(question: PageRequest) -> dict[str, Any]:
    """A step credited by another method, baseline, scale, table of AIR or reward: what moves most first."""
    store, found = await question.run()
    step, method, _ = await read_why(store, found.run_id, question.number("step") or 0)
    given = {name: question.find(name) for name in ("credit", "baseline", "scale", "air", "reward")}
    other = _other(question, {name: value for name, value in given.items() if value not in (None, OWN)})
    return _difference(await asyncio.to_thread(what_if, step, method, other), step)


def _other(question: PageRequest, given: Mapping[str, Any]) -> Other:
    for name, known in (
        ("baseline", get_args(Baseline)),
        ("scale", get_args(Scale)),
        ("air", ("none", "default")),
        ("reward", question.shelf.rewards),
    ):
        if name in given and given[name] not in known:
            raise ConfigError(f"{name}={given[name]!r} is none of {', '.join(known)}")
    plugins = question.shelf.plugins
    return Other(
        credit=make_credit(given["credit"], plugins) if "credit" in given else None,
        baseline=given.get("baseline"),
        scale=given.get("scale"),
        air=make_rulebook(AIR(), plugins) if given.get("air") == "default" else None,
        without_air=given.get("air") == "none",
        reward=question.shelf.rewards.get(given.get("reward", "")),
    )


def load_rewards(place: str | None) -> dict[str, RewardFunction]:
    """The user's reward function by its name; none without a place. Raises ConfigError if it is not there."""
    if place is None:
        return {}
    path, _, name = place.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError(f"--reward {place!r}: there is no file {path!r}; give FILE:FUNCTION")
    sys.path[:0] = [str(Path(path).parent.resolve()), os.getcwd()]  # what `python FILE` would find
    found = runpy.run_path(path, run_name="lightning_reward").get(name)
    if not callable(found):
        raise ConfigError(f"--reward {place!r}: {path!r} defines no function {name!r}")
    return {name: found}


def _difference(made: WhatIf, step: Step) -> dict[str, Any]:
    rewards = {one.id: one.reward for one in step.rollouts}
    return {
        "moved": len(made.moved),
        "conclusion": made.conclusion,
        "credited": [_credited(made.before), _credited(made.after)],
        "note": made.note,
        "changes": [
            {
                "rollout": change.key[0],
                "call": change.key[1],
                "agent": change.agent,
                "reward": rewards[change.key[0]],
                "reply": step.reply(change.key),
                "before": change.before,
                "after": change.after,
            }
            for change in made.moved[:_CHANGES]
        ],
    }


def _credited(answers: Answers) -> int:
    return sum(reason.advantage is not None for reason in answers.reasons.values())


ANSWERS: Final = MappingProxyType({"step": show_step, "whatif": show_what_if})
