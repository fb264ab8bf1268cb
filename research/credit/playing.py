"""Playing an environment: sampled rollouts as the project's own trajectories."""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from math import log
from random import Random

from lightning_core.records.types import Key, Trajectory, Transition
from research.credit.truth import OVER, Floats, Truth


class Batch:
    """The rollouts of one update; `row` says by which row of the policy a transition was sampled."""

    def __init__(self, truth: Truth, policy: Floats, step: int, random: Random) -> None:
        """`policy`: (P, A) probabilities."""
        self.trajectories: list[Trajectory] = []
        self.row: dict[Key, int] = {}
        self._truth, self._step, self._random = truth, step, random
        self._bounds = [list(accumulate(row)) for row in policy.tolist()]
        self._logprobs = [[log(max(p, 1e-300)) for p in row] for row in policy.tolist()]

    def play(self, task: int, size: int) -> None:
        """Add a group of `size` rollouts of a task."""
        group = f"{self._step}.{len(self.trajectories)}"
        self.trajectories += [self._play(task, group, f"{group}.{number}") for number in range(size)]

    def _play(self, task: int, group: str, name: str) -> Trajectory:
        """One rollout. A word is a token; a reply is the token of its action and one for how it is worded."""
        truth, random, wordings = self._truth, self._random, self._truth.environment.wordings
        transitions: list[Transition] = []
        memory: dict[str, tuple[int, ...]] = {}
        state, total = draw_outcome(truth.starts[task], random)
        while (row := truth.prompt_of[state]) != OVER:
            bounds = self._bounds[row]
            action = min(bisect(bounds, random.random()), len(bounds) - 1)
            state, reward = draw_outcome(truth.outcomes[state][action], random)
            total += reward
            agent, shown = truth.prompts[row].agent, truth.prompt_ids[row]
            prompt = memory.get(agent, ()) + shown
            wording = (truth.first_wording + random.randrange(wordings),) if wordings > 1 else ()
            if truth.environment.remembers:
                memory[agent] = (*prompt, truth.first_action + action, *wording)
            transition = Transition(
                rollout_id=name,
                call_id=f"c{len(transitions)}",
                choice=0,
                agent=agent,
                trained=True,
                prompt_ids=prompt,
                completion_ids=(truth.first_action + action, *wording),
                logprobs=(self._logprobs[row][action], *([-log(wordings)] * len(wording))),
                policy_version=self._step,
                observation=truth.digests[row],
                reward=reward,
            )
            transitions.append(transition)
            self.row[transition.key] = row
        noise = truth.environment.noise
        return Trajectory(
            rollout_id=name,
            group_id=group,
            task_id=str(task),
            reward=truth.final[state] + (random.gauss(0.0, noise) if noise else 0.0),
            transitions=tuple(transitions),
            intermediate=total,
        )


def draw_outcome(outcomes: list[tuple[float, int, float]], random: Random) -> tuple[int, float]:
    """Returns the number of a state and the reward on the way to it."""
    if len(outcomes) > 1:
        left = random.random()
        for probability, state, reward in outcomes:
            left -= probability
            if left < 0:
                return state, reward
    return outcomes[-1][1], outcomes[-1][2]
