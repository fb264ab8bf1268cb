"""The rollouts that the cases are sent from, and what must hold of them however odd the cases were.

What a client has seen of a reply is in the store; an attempt that has ended stays as it was; and what was
stored can be trained on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.tiny_server import TOKENS
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.credit.base import assign
from lightning_core.experience.returns import with_final
from lightning_core.experience.transitions import to_trajectory
from lightning_core.insight.trace import read_traces
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Rollout
from lightning_core.trainer.parts import make_credit
from tests.fuzz.desk import Desk, Held
from tests.fuzz.grammar import Case

EACH: Final = 40
"""Cases of a rollout."""
_GROUP: Final = 4


@dataclass(slots=True)
class Attacked:
    """A rollout that cases are sent from."""

    held: Held
    cases: list[int] = field(default_factory=list)
    """Cases that were sent with its token while it ran."""
    on_their_way: int = 0
    seen: dict[str, list[tuple[int, Any]]] = field(default_factory=lambda: defaultdict(list))
    """Case and message for its client, by id of the reply."""
    late: list[int] = field(default_factory=list)
    """Cases that were sent once it had ended."""
    ended: float | None = None
    left: list[Call] = field(default_factory=list)
    """Its calls when it ended."""
    unreadable: str | None = None
    """Why its calls can't be read back."""


class Attackers:
    """Gives each case its rollout and token, a new rollout after `EACH` cases."""

    def __init__(self, desk: Desk, lanes: int) -> None:
        """`lanes` rollouts are attacked at once."""
        self._desk, self._lanes = desk, lanes
        self._changing = asyncio.Lock()
        self._live: dict[int, Attacked] = {}
        self.all: list[Attacked] = []

    async def take(self, case: Case) -> tuple[Attacked, str]:
        """(rollout, token) to send a case with; give the rollout back by `done`."""
        async with self._changing:
            if case.key == "ended" and (ended := [one for one in self.all if one.ended is not None]):
                attacked = ended[case.number % len(ended[-5:]) - len(ended[-5:])]
                attacked.late.append(case.number)
                return attacked, attacked.held.token
            lane = case.number % self._lanes
            if lane not in self._live or len(self._live[lane].cases) >= EACH:
                self._live[lane] = await self._begin()
            attacked = self._live[lane]
            attacked.cases.append(case.number)
            attacked.on_their_way += 1
        attempt = attacked.held.attempt
        match case.key:
            case "expired":
                return attacked, TOKENS.issue(attempt.rollout, attempt.number, expires_at=time.time() - 60)
            case "forged":
                token = attacked.held.token
                return attacked, token[:-4] + ("AAAA" if case.number % 2 else token[-4:][::-1])
            case "none":
                return attacked, ""
        return attacked, attacked.held.token

    async def done(self, attacked: Attacked, case: Case) -> None:
        """The case has been answered, or left."""
        if attacked.ended is not None or case.number in attacked.late:
            return
        attacked.on_their_way -= 1
        if not attacked.on_their_way and all(attacked is not live for live in self._live.values()):
            await self._end(attacked)

    async def end_all(self) -> None:
        """No more cases come."""
        self._live = {}
        for attacked in self.all:
            if attacked.ended is None:
                await self._end(attacked)

    async def _begin(self) -> Attacked:
        number = len(self.all)
        held = await self._desk.begin(f"odd-{number}", group=f"odd-{number // _GROUP}")
        self.all.append(Attacked(held))
        return self.all[-1]

    async def _end(self, attacked: Attacked) -> None:
        await self._desk.finish(attacked.held, float(len(self.all) % 2))
        attacked.ended = time.time()
        attacked.left = await self._calls(attacked)

    async def _calls(self, attacked: Attacked) -> list[Call]:
        """None, and a note of it, if the store can't read what it has stored."""
        try:
            return (await self._desk.store.get_calls([attacked.held.id]))[attacked.held.id]
        except Exception as error:
            attacked.unreadable = f"{type(error).__name__}: {str(error)[-300:]}"
            return []

    async def check(self) -> list[tuple[str, tuple[int, ...]]]:
        """Returns the broken laws, each with the cases that may have caused it."""
        wrong: list[tuple[str, tuple[int, ...]]] = []
        for attacked in self.all:
            wrong += await self._check(attacked)
        return wrong + await self._check_lesson()

    async def _check(self, attacked: Attacked) -> list[tuple[str, tuple[int, ...]]]:
        calls = await self._calls(attacked)
        if attacked.unreadable is not None:
            return [(f"stored calls can't be read: {attacked.unreadable}", tuple(attacked.cases))]
        wrong = []
        stored: defaultdict[str | None, list[Any]] = defaultdict(list)
        for call in (*attacked.left, *calls):
            stored[call.response_id] += [choice.message for choice in call.choices]
        for reply_id, seen in attacked.seen.items():
            for number, message in seen:
                if message not in stored[reply_id]:
                    wrong.append(("a reply that a client has seen is not stored", (number,)))
        late = tuple(attacked.late)
        now = {call.id: call for call in calls}
        if any(now.get(call.id) != call for call in attacked.left if call.status == "completed"):
            wrong.append(("a call of an attempt was replaced once the attempt had ended", late))
        known = {call.id for call in attacked.left}
        if any(call.trained and call.status == "completed" and call.id not in known for call in calls):
            wrong.append(("a call made after the end of its attempt is stored as one to train on", late))
        return wrong

    async def _check_lesson(self) -> list[tuple[str, tuple[int, ...]]]:
        """The rollouts can be read, linked, shown and credited, group by group."""
        store, wrong = self._desk.store, []
        credit = make_credit(GRPO().credit, load_plugins())
        groups: defaultdict[str, list[Attacked]] = defaultdict(list)
        for attacked in self.all:
            groups[attacked.held.attempt.rollout.group_id].append(attacked)
        for members in groups.values():
            ids = [attacked.held.id for attacked in members]
            trajectories = []
            try:
                calls, rewards = await store.get_calls(ids), await store.get_rewards(ids)
                rollouts = await store.get_rollouts(ids)
                await read_traces(store, rollouts)
                for rollout in rollouts:
                    ended: Rollout = with_final(rollout, rewards[rollout.id])
                    trajectories.append(to_trajectory(ended, calls[rollout.id], rewards[rollout.id]))
                credited, _ = assign(trajectories, credit)
                advantages = [
                    t.advantage for each in credited for t in each.transitions if t.advantage is not None
                ]
                if not all(map(math.isfinite, advantages)):
                    raise ArithmeticError("an advantage is not finite")
            except Exception as error:  # boundary: what is stored may be anything by now
                cases = tuple(number for attacked in members for number in attacked.cases)
                wrong.append(
                    (f"a group can't be learnt from: {type(error).__name__}: {str(error)[:200]}", cases)
                )
        return wrong
