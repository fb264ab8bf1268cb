"""The truth about an environment: every state counted, so nothing is estimated.

For a policy p(action | prompt), with d the probability that a state is met in a rollout:

    value      V(s) = sum over a of p(a) * Q(s, a),  Q(s, a) = sum over outcomes of prob * (reward + V(next))
    success    J = sum over starts of prob * V(start), the mean over tasks
    gradient   dJ / d logit(prompt, a) = sum over the prompt's states of d(s) * p(a) * (Q(s, a) - V(s))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from research.credit.environment import Environment, Outcome, State, Turn

Floats = NDArray[np.float64]
OVER = -1
"""The prompt of a state in which nobody acts any more."""


@dataclass(frozen=True)
class Truth:
    """An environment with its states numbered."""

    environment: Environment

    @cached_property
    def states(self) -> list[State]:
        """Every state, each after all those that lead to it."""
        environment, order, done = self.environment, list[State](), set[State]()

        def following(state: State) -> list[State]:
            if environment.turn(state) is None:
                return []
            return [o.state for a in range(environment.actions) for o in environment.act(state, a)]

        for task in range(environment.tasks):
            for start in environment.start(task):
                stack = [(start.state, False)]
                while stack:
                    state, left = stack.pop()
                    if left:
                        order.append(state)
                    elif state not in done:
                        done.add(state)
                        stack += [(state, True), *((s, False) for s in following(state) if s not in done)]
        return order[::-1]

    @cached_property
    def number(self) -> dict[State, int]:
        return {state: i for i, state in enumerate(self.states)}

    @cached_property
    def turns(self) -> list[Turn | None]:
        return [self.environment.turn(state) for state in self.states]

    @cached_property
    def prompts(self) -> list[Turn]:
        """Every call that can occur, told apart by what its prompt shows; a policy has a row for each."""
        return list(dict.fromkeys(turn for turn in self.turns if turn is not None))

    @cached_property
    def _words(self) -> dict[str, int]:
        words = sorted({word for turn in self.prompts for word in turn.prompt})
        return {word: i for i, word in enumerate(words)}

    @cached_property
    def prompt_ids(self) -> list[tuple[int, ...]]:
        """Each prompt as tokens, one for each word."""
        return [tuple(self._words[word] for word in turn.prompt) for turn in self.prompts]

    @property
    def first_action(self) -> int:
        """The token of action 0; the others follow."""
        return len(self._words)

    @property
    def first_wording(self) -> int:
        """The token of the first way to word a reply; the others follow."""
        return self.first_action + self.environment.actions

    @cached_property
    def digests(self) -> list[str]:
        """Digests of the last text in each prompt: equal digests are the same observation."""
        return [blake2b(turn.observation.encode(), digest_size=8).hexdigest() for turn in self.prompts]

    @cached_property
    def words(self) -> Floats:
        """(P, words) how often each word stands in each prompt: what the networks see."""
        counts = np.zeros((len(self.prompts), len(self._words)))
        for row, ids in enumerate(self.prompt_ids):
            np.add.at(counts[row], list(ids), 1)
        return counts

    @cached_property
    def prompt_of(self) -> list[int]:
        """The prompt of each state, or OVER."""
        index = {turn: i for i, turn in enumerate(self.prompts)}
        return [OVER if turn is None else index[turn] for turn in self.turns]

    @cached_property
    def final(self) -> list[float]:
        """The final reward of each state that is an end."""
        pairs = zip(self.states, self.turns, strict=True)
        return [self.environment.success(state) if turn is None else 0.0 for state, turn in pairs]

    @cached_property
    def outcomes(self) -> list[list[list[tuple[float, int, float]]]]:
        """For each state and action: (probability, next state, reward)."""
        return [
            [self._numbered(self.environment.act(state, a)) for a in range(self.environment.actions)]
            if turn is not None
            else []
            for state, turn in zip(self.states, self.turns, strict=True)
        ]

    @cached_property
    def starts(self) -> list[list[tuple[float, int, float]]]:
        """For each task: (probability, state, reward)."""
        return [self._numbered(self.environment.start(task)) for task in range(self.environment.tasks)]

    def _numbered(self, outcomes: Sequence[Outcome]) -> list[tuple[float, int, float]]:
        return [(o.probability, self.number[o.state], o.reward) for o in outcomes]

    @cached_property
    def _levels(self) -> list[_Level]:
        """States by their distance from the end, so that each level needs only those before it."""
        height = [0] * len(self.states)
        for s in reversed(range(len(self.states))):
            height[s] = 1 + max((height[o[1]] for of_one in self.outcomes[s] for o in of_one), default=-1)
        return [
            _level([s for s, h in enumerate(height) if h == at], self) for at in range(1, max(height) + 1)
        ]

    def values(self, policy: Floats | None) -> tuple[Floats, Floats]:
        """V (S,) and Q (S, A) of a policy (P, A); without one, of the best that knows every state."""
        values = np.array(self.final)
        actions = np.zeros((len(values), self.environment.actions))
        for level in self._levels:
            q = (level.probability * (level.reward + values[level.following])).sum(-1)
            actions[level.states] = q
            values[level.states] = q.max(1) if policy is None else (policy[level.prompts] * q).sum(1)
        return values, actions

    def success(self, policy: Floats) -> float:
        """The expected return of a policy, exactly."""
        return self._mean_start(self.values(policy)[0])

    @cached_property
    def optimum(self) -> float:
        """The best success. Raises ValueError if no policy that sees only its prompt can reach it."""
        values, actions = self.values(None)
        chosen: dict[int, set[int]] = {}
        for s, prompt in enumerate(self.prompt_of):
            if prompt != OVER:
                best = set(np.flatnonzero(actions[s] >= values[s] - 1e-12).tolist())
                chosen[prompt] = chosen.get(prompt, best) & best
        if not all(chosen.values()):
            raise ValueError(
                f"{self.environment.name}: what is best depends on what the prompt does not show"
            )
        return self._mean_start(values)

    @property
    def even(self) -> Floats:
        """(P, A) the policy by which every action is equally likely."""
        actions = self.environment.actions
        return np.full((len(self.prompts), actions), 1 / actions)

    def gradient(self, policy: Floats) -> Floats:
        """(P, A) of the success with respect to the logits."""
        values, actions = self.values(policy)
        met = np.zeros(len(self.states))
        for starts in self.starts:
            for probability, state, _ in starts:
                met[state] += probability / len(self.starts)
        gradient = np.zeros_like(policy)
        for s, prompt in enumerate(self.prompt_of):
            if prompt == OVER:
                continue
            gradient[prompt] += met[s] * policy[prompt] * (actions[s] - values[s])
            for chance, of_one in zip(policy[prompt], self.outcomes[s], strict=True):
                for probability, following, _ in of_one:
                    met[following] += met[s] * chance * probability
        return gradient

    def _mean_start(self, values: Floats) -> float:
        sums = [sum(p * (reward + values[s]) for p, s, reward in starts) for starts in self.starts]
        return float(np.mean(sums))


@dataclass(frozen=True, slots=True)
class _Level:
    """States that are equally far from the end: n states, a actions, up to k outcomes of each."""

    states: NDArray[np.int64]
    prompts: NDArray[np.int64]
    probability: Floats
    """(n, a, k), 0 where there are fewer outcomes."""
    reward: Floats
    following: NDArray[np.int64]


def _level(states: list[int], truth: Truth) -> _Level:
    most = max(len(of_one) for s in states for of_one in truth.outcomes[s])
    padded = np.array(
        [[of_one + [(0.0, 0, 0.0)] * (most - len(of_one)) for of_one in truth.outcomes[s]] for s in states]
    )
    return _Level(
        states=np.array(states),
        prompts=np.array([truth.prompt_of[s] for s in states]),
        probability=padded[..., 0],
        following=padded[..., 1].astype(np.int64),
        reward=padded[..., 2],
    )
