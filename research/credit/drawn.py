"""Games drawn at random, with their exact gradient: what a credit method meets where no one chose the game.

A seed gives a game: 2 to 12 calls of 1 to 4 agents, 2 to 32 replies to each, of which some are right. The
kind of the task says which calls decide and, where the prompt tells the kind, which replies are right there.

    c         how many deciding calls were answered rightly
    final     all: c = D; any: c > 0; sum: c / D, with D deciding calls; the share `paid` is paid at once
    ends      after the last call; earlier by chance (`stop`), or with a wrong deciding reply

What an agent is shown may be the same each time, the turn, whether the last reply was right, how many were
right so far, the last reply, or never the same twice. The policy sees turn and observation, and leans to the
right replies as much as the game says: so success is from rare to nearly certain. The gradient is a sum over
the states (kind, turn, c, what is shown), nothing is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_core.records.types import Trajectory, Transition
from research.credit.truth import Floats

Whole = NDArray[np.int64]
Rule = Literal["all", "any", "sum"]
RULES: dict[str, Rule] = {"any": "any", "sum": "sum"}
"""Keyed by the name that is drawn; "one" is "all" of one call."""
Shown = Literal["same", "turn", "result", "progress", "reply", "unique"]
FIRST_SHOWN = 100
"""Token of the first thing shown; replies are the tokens below."""
RAREST = 0.01
"""Least chance that a rollout earns anything, and that it does not earn all."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """A game, its policy and the size of its batches: K kinds, T calls, up to A replies, X things shown."""

    name: str
    agents: tuple[str, ...]
    """Who makes each call."""
    right: NDArray[np.bool_]
    """(K, T, A) the right replies."""
    decides: NDArray[np.bool_]
    """(K, T) the calls that count."""
    policy: Floats
    """(K, T, X, A) probabilities; a reply that a call does not have has 0."""
    rule: Rule
    shown: Shown
    numbered: bool = False
    """Whether the observation has the number of the turn too."""
    told: bool = True
    """Whether the prompt tells the kind; if not, the policy is the same for all kinds."""
    paid: float = 0.0
    noise: float = 0.0
    """Deviation of what is added to the final reward."""
    stop: float = 0.0
    """Chance that it is over after a call."""
    fails_fast: bool = False
    group_size: int = 8
    groups: int = 8

    @property
    def shape(self) -> tuple[int, ...]:
        return self.policy.shape

    @cached_property
    def deciding(self) -> Whole:
        """(K,) deciding calls of each kind."""
        return np.asarray(self.decides.sum(1))

    def final(self, kind: Whole, right: Whole) -> Floats:
        """The final reward without noise, after so many right replies."""
        of = self.deciding[kind]
        share = {"all": right == of, "any": right > 0, "sum": right / of}[self.rule]
        return np.asarray((1 - self.paid) * share, dtype=float)

    def next_shown(self, reply: Whole, counts: NDArray[np.bool_], right: Whole) -> Whole:
        """The observation after a reply: which, whether it was right and counted, how many were so far."""
        match self.shown:
            case "result":
                return counts.astype(np.int64)
            case "progress":
                return right
            case "reply":
                return reply
            case _:
                return np.zeros_like(reply)

    def observation(self, turn: int, shown: int) -> str:
        """The text that a call is shown, where it is not unique."""
        if turn == 0:
            return "task"
        number = f"{turn} " if self.numbered or self.shown == "turn" else ""
        return f"{number}{shown}"

    # the truth --------------------------------------------------------------------------------------
    @cached_property
    def _solved(self) -> tuple[float, Floats]:
        """The expected reward and its gradient (K, T, X, A)."""
        gradient, success = np.zeros(self.shape), 0.0
        for kind in range(self.shape[0]):
            values = self._values(kind)
            self._add(gradient, kind, values)
            success += values[0][1][0, 0] / self.shape[0]
        if not self.told:
            gradient[:] = gradient.sum(0, keepdims=True) / self.shape[0]
        return success, gradient

    def _steps(self, kind: int, turn: int) -> tuple[Whole, Whole, Floats, NDArray[np.bool_]]:
        """For each c and reply: c after it, what is shown then, what is paid, whether it ends there."""
        most, replies = int(self.deciding[kind]) + 1, self.shape[3]
        before = np.repeat(np.arange(most)[:, None], replies, 1)
        decides = bool(self.decides[kind, turn])
        counts = np.broadcast_to(self.right[kind, turn] & decides, before.shape)
        after = np.minimum(before + counts, most - 1)
        reply = np.broadcast_to(np.arange(replies), before.shape)
        ends = (~counts & decides & self.fails_fast) | (turn + 1 == self.shape[1])
        return after, self.next_shown(reply, counts, after), counts * self.paid / (most - 1), ends

    def _values(self, kind: int) -> list[tuple[Floats, Floats]]:
        """For each turn Q (c, A) and V (c, X)."""
        found: list[tuple[Floats, Floats]] = []
        later = np.zeros((int(self.deciding[kind]) + 1, self.shape[2]))
        for turn in reversed(range(self.shape[1])):
            after, shown, pay, ends = self._steps(kind, turn)
            over = self.final(np.full_like(after, kind), after)
            going_on = self.stop * over + (1 - self.stop) * later[after, shown]
            q = pay + np.where(ends, over, going_on)
            later = q @ self.policy[kind, turn].T
            found.append((q, later))
        return found[::-1]

    def _add(self, gradient: Floats, kind: int, values: list[tuple[Floats, Floats]]) -> None:
        met = np.zeros_like(values[0][1])
        met[0, 0] = 1 / self.shape[0]
        for turn, (q, v) in enumerate(values):
            policy = self.policy[kind, turn]
            each = met[:, :, None] * policy  # (c, X, A)
            gradient[kind, turn] += (each * (q[:, None] - v[:, :, None])).sum(0)
            after, shown, _, ends = self._steps(kind, turn)
            going_on = each.sum(1) * ~ends * (1 - self.stop)
            met = np.zeros_like(met)
            np.add.at(met, (after, shown), going_on)

    @property
    def success(self) -> float:
        """The expected reward, exactly."""
        return self._solved[0]

    @property
    def gradient(self) -> Floats:
        """(K, T, X, A) of the expected reward with respect to the logits."""
        return self._solved[1]

    # rollouts ---------------------------------------------------------------------------------------
    def play(self, batches: int, random: np.random.Generator) -> Played:
        """Batches of rollouts, all at once."""
        size = batches, self.groups, self.group_size
        first = random.integers(0, self.shape[0], (batches, 1))
        kind = np.broadcast_to(((first + np.arange(self.groups)) % self.shape[0])[..., None], size)
        right, shown = np.zeros(size, np.int64), np.zeros(size, np.int64)
        alive, final = np.ones(size, bool), np.zeros(size)
        columns: list[tuple[NDArray[np.bool_], Whole, Whole, Floats]] = []
        for turn in range(self.shape[1]):
            bounds = self.policy[kind, turn, shown].cumsum(-1)
            reply = (random.random(size)[..., None] > bounds[..., :-1]).sum(-1)
            decides = self.decides[kind, turn]
            counts = self.right[kind, turn, reply] & decides
            right = right + (counts & alive)
            columns.append((alive, reply, shown, counts * alive * self.paid / self.deciding[kind]))
            shown = self.next_shown(reply, counts, right)
            stops = (random.random(size) < self.stop) | (~counts & decides & self.fails_fast)
            alive = alive & ~stops
        final = self.final(kind, right) + random.normal(0, 1, size) * self.noise
        made, replies, things, pay = (np.stack(values, -1) for values in zip(*columns, strict=True))
        return Played(self, kind, made, replies, things, pay, final)


@dataclass(frozen=True, eq=False)
class Played:
    """Rollouts of a game: arrays (batches, groups, rollouts), and with T behind where they tell of calls."""

    game: Drawn
    kind: Whole
    alive: NDArray[np.bool_]
    """Whether the call was made."""
    reply: Whole
    shown: Whole
    pay: Floats
    final: Floats

    def gradients(self, advantages: Floats) -> Floats:
        """(batches, K * T * X * A) the estimates that these advantages (batches, groups, rollouts, T) make:
        each call counts the same, as tokens do in a token mean."""
        batches, kinds, turns, things, replies = len(self.kind), *self.game.shape
        row = np.ravel_multi_index(
            (np.broadcast_to(self.kind[..., None], self.reply.shape), np.arange(turns), self.shown),
            (kinds, turns, things),
        )
        weight = advantages * self.alive / self.alive.sum((1, 2, 3), keepdims=True)
        place = np.arange(batches)[:, None, None, None] * (kinds * turns * things) + row
        flat = np.bincount(
            (place * replies + self.reply).ravel(), weight.ravel(), batches * kinds * turns * things * replies
        )
        met = np.bincount(place.ravel(), weight.ravel(), batches * kinds * turns * things)
        found: Floats = flat.reshape(batches, *self.game.shape).astype(float)
        found = found - met.reshape(batches, kinds, turns, things, 1) * self.game.policy
        if not self.game.told:
            found = np.broadcast_to(found.sum(1, keepdims=True) / kinds, found.shape)
        return found.reshape(batches, -1)

    def trajectories(self, batch: int) -> list[Trajectory]:
        """One batch as the project's own."""
        groups, rollouts = self.kind.shape[1:]
        return [self._trajectory(batch, g, i) for g in range(groups) for i in range(rollouts)]

    def _trajectory(self, batch: int, group: int, rollout: int) -> Trajectory:
        at, game = (batch, group, rollout), self.game
        name, group_id = f"{group}.{rollout}", str(group)
        made: list[Transition] = []
        prompt: tuple[int, ...] = (FIRST_SHOWN + group,)
        for turn in np.flatnonzero(self.alive[at]).tolist():
            shown = int(self.shown[at][turn])
            unique = f"{name} {turn}" if turn and game.shown == "unique" else None
            observation = unique or game.observation(turn, shown)
            reply = int(self.reply[at][turn])
            chance = game.policy[self.kind[at], turn, shown, reply]
            prompt = (*prompt, FIRST_SHOWN + shown)
            made.append(
                Transition(
                    rollout_id=name,
                    call_id=f"c{turn}",
                    choice=0,
                    agent=game.agents[turn],
                    trained=True,
                    prompt_ids=prompt,
                    completion_ids=(reply,),
                    logprobs=(float(np.log(chance)),),
                    policy_version=0,
                    observation=observation,
                    reward=float(self.pay[at][turn]),
                )
            )
            prompt = (*prompt, reply)
        paid = float(self.pay[at].sum())
        return Trajectory(name, group_id, str(self.kind[at]), float(self.final[at]), tuple(made), paid)


# drawing ----------------------------------------------------------------------------------------------
def draw(seed: int) -> Drawn:
    """The game of a seed. Games in which nothing is learnt from a batch are drawn again."""
    random = np.random.default_rng(seed)
    while True:
        game = _draw(f"drawn {seed}", random)
        played = game.play(max(1, 4000 // (game.groups * game.group_size)), np.random.default_rng(seed))
        earned = played.final - 0 if not game.noise else game.final(played.kind, _right(played))
        earned = earned + played.pay.sum(-1)
        varied = min((earned > 1e-9).mean(), (earned < 1 - 1e-9).mean())
        if varied >= RAREST:
            return game


def _right(played: Played) -> Whole:
    game, kind = played.game, played.kind[..., None]
    turns = np.arange(game.shape[1])
    counted = game.right[kind, turns, played.reply] & game.decides[kind, turns] & played.alive
    return np.asarray(counted.sum(-1))


def _draw(name: str, random: np.random.Generator) -> Drawn:
    turns = int(random.integers(2, 13))
    kinds = int(random.choice([1, 2, 4]))
    told = bool(random.random() < 0.6)
    rule = str(random.choice(["all", "any", "sum", "one"]))
    decides = _decides(rule, kinds, turns, random)
    replies = (
        2 ** random.integers(1, 6, size=turns)
        if random.random() < 0.3
        else np.full(turns, 2 ** random.integers(1, 6))
    )
    shown: Shown = random.choice(["same", "turn", "result", "progress", "reply", "unique"])
    right = _right_replies(kinds, turns, replies, told, random)
    things = {"result": 2, "progress": turns + 1, "reply": int(replies.max())}.get(shown, 1)
    lean = random.uniform(0, 5)
    logits = random.normal(0, 0.5, (kinds, turns, things, int(replies.max()))) + lean * right[:, :, None]
    logits = logits if told else np.broadcast_to(logits[:1], logits.shape)
    has = np.arange(int(replies.max())) < replies[:, None, None]
    raised = np.where(has, np.exp(logits), 0.0)
    return Drawn(
        name=name,
        agents=_agents(turns, random),
        right=right,
        decides=decides,
        policy=raised / raised.sum(-1, keepdims=True),
        rule=RULES.get(rule, "all"),
        shown=shown,
        numbered=bool(random.random() < 0.5),
        told=told,
        paid=float(random.choice([0, 0, 0, 0.5, 1])) if rule == "sum" else 0.0,
        noise=float(random.choice([0, 0, 0.1, 0.3])),
        stop=float(random.choice([0, 0, 0.1])),
        fails_fast=bool(rule == "all" and random.random() < 0.3),
        group_size=int(random.integers(2, 17)),
        groups=int(random.integers(2, 17)),
    )


def _decides(rule: str, kinds: int, turns: int, random: np.random.Generator) -> NDArray[np.bool_]:
    most = {"one": 1, "all": min(turns, 4)}.get(rule, turns)
    least = 1 if rule == "one" else 2
    found = np.zeros((kinds, turns), bool)
    of = int(random.integers(least, most + 1))
    for kind in range(kinds):
        found[kind, random.choice(turns, of, replace=False)] = True
    return found


def _right_replies(
    kinds: int, turns: int, replies: Whole, told: bool, random: np.random.Generator
) -> NDArray[np.bool_]:
    found = np.zeros((kinds, turns, int(replies.max())), bool)
    for kind in range(kinds):
        for turn, count in enumerate(replies.tolist()):
            some = int(random.integers(1, max(1, count // 4) + 1))
            found[kind, turn, random.choice(count, some, replace=False)] = True
    return found if told else np.broadcast_to(found[:1], found.shape).copy()


def _agents(turns: int, random: np.random.Generator) -> tuple[str, ...]:
    count = min(turns, int(random.integers(1, 5)))
    if random.random() < 0.5:
        return tuple(f"agent{turn % count}" for turn in range(turns))
    return tuple(f"agent{turn * count // turns}" for turn in range(turns))


# games by name ------------------------------------------------------------------------------------------
def two_calls(lean: float, noise: float) -> Drawn:
    """Planner and doer, eight replies each: two plans and one deed are right; the doer is shown the plan."""
    right = np.zeros((2, 2, 8), bool)
    for kind in range(2):
        right[kind, 0, [kind, kind + 1]] = right[kind, 1, kind + 2] = True
    return _named(
        f"two calls, lean {lean:g}, noise {noise:g}",
        ("planner", "doer"),
        right,
        lean,
        "all",
        "reply",
        noise=noise,
    )


def paid_turns(shown: Shown) -> Drawn:
    """Eight turns, each of which is paid at once, shown the same each time or told apart."""
    right = np.zeros((1, 8, 8), bool)
    right[..., 0] = True
    return _named(f"paid turns, shown {shown}", ("clerk",) * 8, right, 3.0, "sum", shown, paid=1.0)


def long_chain(lean: float) -> Drawn:
    """Twelve turns of 32 replies, of which the fifth decides; batches of 16 rollouts."""
    right = np.zeros((4, 12, 32), bool)
    right[np.arange(4), 4, [3, 9, 17, 30]] = True
    decides = np.zeros((4, 12), bool)
    decides[:, 4] = True
    return _named(
        f"long chain, lean {lean:g}",
        ("walker",) * 12,
        right,
        lean,
        "all",
        "turn",
        decides=decides,
        groups=4,
        group_size=4,
    )


def _named(
    name: str,
    agents: tuple[str, ...],
    right: NDArray[np.bool_],
    lean: float,
    rule: Rule,
    shown: Shown,
    *,
    decides: NDArray[np.bool_] | None = None,
    **options: Any,
) -> Drawn:
    kinds, turns, replies = right.shape
    things = replies if shown == "reply" else 1
    raised = np.exp(lean * np.repeat(right[:, :, None], things, 2).astype(float))
    decides = np.ones((kinds, turns), bool) if decides is None else decides
    policy = raised / raised.sum(-1, keepdims=True)
    return Drawn(name, agents, right, decides, policy, rule, shown, **options)


NAMED = (
    *(two_calls(lean, noise) for noise in (0.0, 0.2) for lean in (0.0, 1.5, 3.0)),
    *(paid_turns(shown) for shown in ("same", "turn")),
    *(long_chain(lean) for lean in (0.0, 2.0, 4.0)),
)
"""Games in which an earlier default was worse than `uniform`."""
