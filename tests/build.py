"""Makers that tests of several parts share."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lightning_core.cli import main
from lightning_core.records.types import Call, Rollout, Task, Transition


def agentlightning(*words: object) -> int:
    """Run the command in this process; returns its exit status. An exception but SystemExit goes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "argv", ["agentlightning", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def make_rollouts(count: int, name: str = "r", **fields: Any) -> list[Rollout]:
    """Queued rollouts of one group, each of a task of its own, with these fields in place of their own."""
    given = {"run_id": "run", "group_id": "g", "step": 0}
    made = ({"id": f"{name}{i}", "task": Task(input={"i": i}), **given, **fields} for i in range(count))
    return [Rollout.model_validate(each) for each in made]


def make_call(name: str = "c", *, at: float = 0.0, **fields: Any) -> Call:
    """A call of a trained agent that took a second, with these fields in place of its own."""
    given = {
        "rollout_id": "r",
        "attempt": 1,
        "agent": "a",
        "trained": True,
        "started_at": at,
        "ended_at": at + 1,
    }
    return Call.model_validate({"id": name, **given, **fields})


def make_transition(
    name: str, prompt: list[int], completion: list[int], rollout: str = "r", **options: Any
) -> Transition:
    """A trained transition of advantage 1, with these fields in place of its own."""
    options = {"trained": True, "advantage": 1.0, "logprobs": [-1.0] * len(completion)} | options
    return Transition(
        rollout, name, 0, "a", prompt_ids=prompt, completion_ids=completion, policy_version=0, **options
    )


def in_one_memory(transitions: Sequence[Transition]) -> list[Transition]:
    """The same transitions; of prompts that begin one another, all lie in the memory of the longest."""
    texts: list[list[int]] = []
    for each in sorted(transitions, key=lambda each: -len(each.prompt_ids)):
        if not any(text[: len(each.prompt_ids)] == list(each.prompt_ids) for text in texts):
            texts.append(list(each.prompt_ids))
    views = [memoryview(array("I", text)) for text in texts]

    def view(ids: Sequence[int]) -> memoryview:
        return next(one[: len(ids)] for one in views if one[: len(ids)].tolist() == list(ids))

    return [replace(each, prompt_ids=view(each.prompt_ids)) for each in transitions]
