"""A small game with a known solution, in which the policy decides how many turns there are.

The writer drafts and may hand over or go on; the fixer, called only then, may hand over or send it back.
Going on costs a little each time. Every prompt is the whole story so far, so a rollout is one branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import log
from random import Random

import numpy as np
from numpy.typing import NDArray

from lightning_core.records.types import Trajectory, Transition

Floats = NDArray[np.float64]
AGENTS = ("writer", "fixer")
LONGEST = 4
"""Turns after which the story ends anyway."""
COST = -0.15


@dataclass(frozen=True)
class Turn:
    state: int
    """0: the writer's turn, 1: the fixer's turn with a good draft, 2: with a bad one."""
    action: int
    """0: hand over, 1: go on."""


Story = tuple[Turn, ...]


def ends(story: Story) -> list[tuple[float, int | None, float]]:
    """(probability, next state or None, final reward) after the last turn."""
    state, action = story[-1].state, story[-1].action
    worth = {0: 0.4, 1: 1.0, 2: 0.0}[state]
    if action == 0 or len(story) == LONGEST:
        return [(1.0, None, worth)]
    if state == 0:
        return [(0.7, 1, 0.0), (0.3, 2, 0.0)]
    return [(0.5, 0, 0.0), (0.5, 3 - state, 0.0)]


def probabilities(logits: Floats) -> Floats:
    """(state, action)"""
    raised = np.exp(logits)
    return raised / raised.sum(1, keepdims=True)


def stories(policy: Floats, state: int = 0, before: Story = ()) -> Iterator[tuple[float, Story, float]]:
    """Every story with its probability and final reward."""
    for action in (0, 1):
        story = (*before, Turn(state, action))
        for chance, following, final in ends(story):
            p = float(policy[state, action]) * chance
            if following is None:
                yield p, story, final
            else:
                for rest, whole, reward in stories(policy, following, story):
                    yield p * rest, whole, reward


def score(policy: Floats, turn: Turn) -> Floats:
    """(state, action) gradient of the turn's log-probability with respect to the logits."""
    slope = np.zeros_like(policy)
    slope[turn.state] = -policy[turn.state]
    slope[turn.state, turn.action] += 1
    return slope


def total(story: Story, final: float) -> float:
    """Final reward and what going on has cost."""
    return final + COST * sum(turn.action for turn in story)


def gradient(policy: Floats) -> Floats:
    """(state, action) gradient of the expected return: a sum over all stories."""
    return sum(
        (p * total(story, final) * sum((score(policy, t) for t in story), np.zeros_like(policy)))
        for p, story, final in stories(policy)
    )


def play(policy: Floats, random: Random, group: str, number: int) -> tuple[Trajectory, Story]:
    """One rollout, as the project records it."""
    story: Story = ()
    state: int | None = 0
    prompt, transitions, final = [9], [], 0.0
    while state is not None:
        action = int(random.random() >= policy[state, 0])
        story = (*story, Turn(state, action))
        prompt = [*prompt, 10 + state]
        transitions.append(
            Transition(
                rollout_id=f"{group}.{number}",
                call_id=f"c{len(story)}",
                choice=0,
                agent=AGENTS[int(state > 0)],
                trained=True,
                prompt_ids=prompt,
                completion_ids=[action],
                logprobs=[log(policy[state, action])],
                policy_version=0,
                observation=str(state),
                reward=COST * action,
            )
        )
        prompt = [*prompt, action]
        options = ends(story)
        bounds = list(accumulate(chance for chance, _, _ in options))
        pick = random.random()
        _, state, final = next(
            o for o, bound in zip(options, bounds, strict=True) if pick < bound or o is options[-1]
        )
    return (
        Trajectory(
            rollout_id=f"{group}.{number}",
            group_id=group,
            task_id="t",
            reward=final,
            transitions=tuple(transitions),
            intermediate=COST * sum(turn.action for turn in story),
        ),
        story,
    )


START = np.array([[0.3, -0.2], [0.1, 0.4], [-0.5, 0.2]])
POLICY = probabilities(START)
