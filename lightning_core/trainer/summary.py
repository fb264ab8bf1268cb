"""The outcome of a run: the machine-readable `summary.json` and how it is computed."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from pydantic import Field

from lightning_core.trainer.plan import EVALUATIONS
from lightning_core.types import Call, Record, Rollout, Status, is_reward

PACKAGES = ("agent-lightning-core", "torch", "transformers", "openai", "langgraph", "langchain-core")


class AgentScore(Record):
    """One agent's part in an evaluation."""

    calls: int
    rollouts: int
    """Rollouts in which it acted."""
    success: float
    """Mean final reward of those rollouts."""


class Score(Record):
    """One evaluation: every task once. A rollout that failed, or whose reward can't be used, scores 0."""

    success: float
    """Mean final reward."""
    tasks: int
    failures: int
    by: dict[str, float] = Field(default_factory=dict)
    """Mean final reward for each value of the `group_by` field."""
    agents: dict[str, AgentScore] = Field(default_factory=dict)


class Evaluation(Record):
    """The policy at one step, sampled (T = 1) and greedy (T = 0)."""

    step: int
    sampled: float
    greedy: float
    detail: dict[str, Score]
    """"sampled" and "greedy" in full."""


class AgentSummary(Record):
    """One agent over the whole training, evaluations left out."""

    trained: bool
    calls: int
    completion_tokens: int
    transitions_with_advantage: int = 0


class PhaseSummary(Record):
    """A part of the run, by one algorithm."""

    algorithm: str
    first: int
    """Updates made before it."""


class Summary(Record):
    """The content of `summary.json`."""

    run: str
    folder: str
    steps: int
    """Updates asked for; each was made or counted as skipped."""
    seed: int
    model: str
    before: Evaluation | None = None
    after: Evaluation | None = None
    between: list[Evaluation] = Field(default_factory=list)
    """Evaluations asked for by `evaluate_every`."""
    train_seconds: float
    """Wall time of all steps as last made: collecting, updating, saving; evaluations left out."""
    rollouts: int
    failures: int
    zero_variance_groups: int
    skipped_updates: int
    staleness_mean: float = 0.0
    """Updates by which the weights that sampled a transition were behind those it was used to update: mean of
    the steps' means."""
    staleness_max: int = 0
    agents: dict[str, AgentSummary]
    phases: list[PhaseSummary] = Field(default_factory=list)
    """In turn; one, if the run has one algorithm."""
    settings: dict[str, str]
    versions: dict[str, str]


def score(rollouts: Sequence[Rollout], calls: Mapping[str, Sequence[Call]], group_by: str | None) -> Score:
    """How well the rollouts of one evaluation did."""
    rewards = {
        r.id: r.reward
        if r.reward is not None and is_reward(r.reward) and r.status is Status.SUCCEEDED
        else 0.0
        for r in rollouts
    }
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if group_by is not None:
            parts[str(rollout.task.input.get(group_by))].append(rewards[rollout.id])
    acted: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for rollout in rollouts:
        for call in calls.get(rollout.id, ()):
            acted[call.agent][rollout.id] = acted[call.agent].get(rollout.id, 0) + 1
    return Score(
        success=fmean(rewards.values()),
        tasks=len(rollouts),
        failures=sum(rollout.status is not Status.SUCCEEDED for rollout in rollouts),
        by={name: fmean(values) for name, values in sorted(parts.items())},
        agents={
            agent: AgentScore(
                calls=sum(counts.values()),
                rollouts=len(counts),
                success=fmean(rewards[rollout_id] for rollout_id in counts),
            )
            for agent, counts in sorted(acted.items())
        },
    )


def evaluation(
    step: int, rollouts: Iterable[Rollout], calls: Mapping[str, Sequence[Call]], group_by: str | None
) -> Evaluation:
    """The rollouts of `plan_evaluation`, told apart by how they were sampled."""
    rollouts = list(rollouts)
    detail = {
        kind: score([r for r in rollouts if r.sampling.temperature == sampling.temperature], calls, group_by)
        for kind, sampling in EVALUATIONS.items()
    }
    return Evaluation(
        step=step, sampled=detail["sampled"].success, greedy=detail["greedy"].success, detail=detail
    )


def versions() -> dict[str, str]:
    """Python and the packages that matter to the numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
