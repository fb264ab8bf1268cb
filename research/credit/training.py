"""One training run in an environment: play, credit, update, as the trainer does and with its own parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch

from lightning_core.algorithms import losses
from lightning_core.algorithms.base import Algorithm, Critic, Entries, credit_batch
from lightning_core.credit.base import Credit
from lightning_core.experience.trajectories import trained_transitions
from lightning_core.records.types import Key, Trajectory
from research.credit.playing import Batch
from research.credit.policy import Network
from research.credit.truth import Truth


@dataclass(frozen=True, slots=True)
class Method:
    """A credit method with the algorithm that uses it."""

    name: str
    credit: Credit | None
    """None: the update takes the exact gradient of the success, and plays nothing."""
    algorithm: Algorithm

    @property
    def batch(self) -> int:
        """Rollouts of one update."""
        return self.algorithm.group_size * self.algorithm.tasks_per_step


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run."""

    success: list[float]
    """Exact, before the first update and after each."""
    reached: int | None
    """The update after which it was at the threshold; None if it never was."""


def train(
    truth: Truth, method: Method, rate: float, seed: int, updates: int, aim: float, until: bool = False
) -> Run:
    """Train from nothing. `aim` is the success to be reached; `until`: stop there."""
    algorithm, random = method.algorithm, Random(seed)
    tasks, per_step = truth.environment.tasks, algorithm.tasks_per_step
    network = Network(truth.words, truth.environment.actions, seed)
    critic = Network(truth.words, 1, seed + 1)
    policy = torch.softmax(network().detach(), 1).numpy()
    run = Run([truth.success(policy)], None)
    for step in range(updates):
        if method.credit is None:
            network.descend(-(network() * torch.tensor(truth.gradient(policy))).sum(), rate)
        else:
            batch = Batch(truth, policy, step, random)
            for place in range(per_step):
                batch.play((step * per_step + place) % tasks, algorithm.group_size)
            trajectories: Sequence[Trajectory] = batch.trajectories
            if algorithm.critic is not None:
                trajectories = with_values(trajectories, critic, batch.row)
            credited, _ = credit_batch(trajectories, method.credit, algorithm)
            if algorithm.critic is not None:
                fit(critic, credited, algorithm.critic, rate, batch.row)
            if trained_transitions(credited):
                credited = list(algorithm.prepare(credited, []).batch)
                update(network, credited, algorithm, rate, batch.row, truth.first_action)
        policy = torch.softmax(network().detach(), 1).numpy()
        run.success.append(truth.success(policy))
        if run.reached is None and run.success[-1] >= aim:
            run = replace(run, reached=step + 1)
            if until:
                break
    return run


def update(
    network: Network,
    credited: Sequence[Trajectory],
    algorithm: Algorithm,
    rate: float,
    row: Mapping[Key, int],
    first_action: int,
) -> None:
    """All epochs of a batch."""
    proximal = None
    for _ in range(algorithm.epochs):
        loss, logprobs = loss_of(network(), credited, algorithm, row, first_action, proximal)
        proximal = logprobs if proximal is None else proximal
        network.descend(loss, rate)


def loss_of(
    logits: torch.Tensor,
    credited: Sequence[Trajectory],
    algorithm: Algorithm,
    row: Mapping[Key, int],
    first_action: int,
    proximal: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The algorithm's loss of logits (P, A), and the log-probabilities (E,) of the actions taken."""
    weights = algorithm.weigh(credited)
    trained = trained_transitions(credited)
    rows = torch.tensor([row[t.key] for t in trained])
    actions = torch.tensor([t.completion_ids[0] - first_action for t in trained])
    logprobs = torch.log_softmax(logits, 1)[rows, actions]
    entries = Entries(
        logprobs=logprobs,
        old_logprobs=logits.new_tensor([t.logprobs[0] for t in trained]),
        proximal_logprobs=logprobs.detach() if proximal is None else proximal,
        advantages=logits.new_tensor([t.advantage or 0.0 for t in trained]),
        weights=logits.new_tensor([weights[t.key] for t in trained]),
        sequences=torch.arange(len(trained)),
        units=torch.full((len(trained),), -1),
    )
    loss, _ = algorithm.loss(entries)
    return loss, logprobs.detach()


def with_values(
    trajectories: Sequence[Trajectory], critic: Network, row: Mapping[Key, int]
) -> list[Trajectory]:
    """The critic's estimate on every transition."""
    values = critic().detach()[:, 0].tolist()
    return [
        replace(
            trajectory,
            transitions=tuple(replace(t, value=values[row[t.key]]) for t in trajectory.transitions),
        )
        for trajectory in trajectories
    ]


def fit(
    critic: Network, credited: Sequence[Trajectory], options: Critic, rate: float, row: Mapping[Key, int]
) -> None:
    """The critic's steps towards its targets."""
    states = [t for each in credited for t in each.transitions if t.target is not None]
    if not states:
        return
    rows = torch.tensor([row[t.key] for t in states])
    targets = torch.tensor([t.target for t in states], dtype=torch.float64)
    for _ in range(options.epochs):
        loss = losses.value_loss(critic()[rows, 0], targets)
        critic.descend(loss.mean(), options.learning_rate or rate)
