"""All cases against one server, with bystanders beside them and a watch on the server's process."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from benchmarks.tiny_server import TinyServer
from lightning_core.plugins import load_plugins
from lightning_core.trainer.parts import open_store
from tests.fuzz.attackers import Attackers
from tests.fuzz.bystanders import VOICES, Bystander, Disturbed
from tests.fuzz.desk import Desk
from tests.fuzz.faults import Fault, Faults
from tests.fuzz.grammar import Case, Suite
from tests.fuzz.verdict import find_fault, reply_of
from tests.fuzz.wire import Answer, ask

CLIENTS: Final = 6
"""Cases at once."""
HANG_SECONDS: Final = 20.0
"""The server's loop must answer its health check meanwhile, whatever the requests are."""
_LOOK_SECONDS: Final = 0.25
MOST_BYTES: Final = 1 << 30
"""More memory than it began with is never right: the model is of six megabytes."""
_LATELY: Final = 8
"""Cases that have ended lately and may still be what disturbs."""
_SLOWEST: Final = 5
EACH: Final = 500
"""Cases from one pause to the next, in which bystanders are alone."""
_PAUSE_SECONDS: Final = 5.0
MOST_WAITING: Final = 10.0
"""How many times as long as in the pauses the slowest hundredth of the bystanders' calls may take."""


@dataclass(slots=True)
class Outcome:
    """The result of a campaign."""

    faults: Faults
    table: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Cases by target and status."""
    memory: list[tuple[int, int]] = field(default_factory=list)
    """(cases done, resident bytes of the server), now and then."""
    descriptors: tuple[int, int] = (0, 0)
    """Before and after."""
    rounds: int = 0
    """Rollouts that bystanders have played."""
    restarts: int = 0
    waits: list[float] = field(default_factory=list)
    """Seconds of each call of a bystander while cases were sent."""
    waits_in_pauses: list[float] = field(default_factory=list)
    """The same without them."""
    longest_silence: float = 0.0
    """Seconds that the health check took at most."""
    slowest: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, case) of those that took longest."""

    @property
    def done(self) -> int:
        return sum(self.table.values())

    def waiting_fault(self) -> Fault | None:
        """The fault that bystanders wait too long, if they do."""
        beside, alone = percentile(self.waits, 0.99), percentile(self.waits_in_pauses, 0.99)
        if beside <= MOST_WAITING * alone:
            return None
        what = f"99 of 100 calls take up to {beside:.2f} s beside the cases, {alone:.2f} s without them"
        return Fault("waiting", what)


class Campaign:
    """Sends the cases of these numbers, in this order, several at once."""

    def __init__(
        self, server: TinyServer, suite: Suite, seed: int, numbers: Sequence[int], say: Callable[[str], None]
    ) -> None:
        self._server, self._suite, self._seed, self._say = server, suite, seed, say
        self._numbers = numbers
        self._outcome = Outcome(Faults(suite, seed))
        self._running: set[int] = set()
        self._lately: deque[int] = deque(maxlen=_LATELY)
        self._lives = 0
        """Raised by each end of the server, so that what fails by it is not blamed on others."""
        self._up = asyncio.Event()
        self._over = False

    async def run(self) -> Outcome:
        """Send them all; returns what was found."""
        async with open_store(self._server.store_url, load_plugins()) as store:
            desk = Desk(store)
            bystanders = [Bystander(number, voice, desk) for number, voice in enumerate(VOICES)]
            for bystander in bystanders:
                await bystander.round(self._server.url)
            for bystander in bystanders:
                if bystander.voice.dialect == "chat" and not bystander.voice.stream:
                    await bystander.check_margin(self._server.url)
            attackers = Attackers(desk, self._suite.lanes)
            self._up.set()
            before = self._server.descriptors()
            beside = [asyncio.create_task(self._bystand(each)) for each in bystanders]
            watch = asyncio.create_task(self._watch())
            try:
                await self._attack_all(attackers, bystanders)
            finally:
                self._over = True
                await asyncio.gather(watch, *beside)
            await attackers.end_all()
            await self._settle(before)
            for what, cases in await attackers.check():
                self._note(Fault("records", what, cases, sure=len(cases) == 1))
            for bystander in bystanders:
                try:
                    await bystander.check_all()
                except Disturbed as error:
                    self._note(Fault("bystander", f"at the end: {error}"))
            self._outcome.rounds = sum(bystander.rounds for bystander in bystanders)
        return self._outcome

    async def _attack_all(self, attackers: Attackers, bystanders: list[Bystander]) -> None:
        """Send all cases; if waiting is compared, with a pause before each part of them."""
        outcome = self._outcome
        each = EACH if self._suite.timed else max(1, len(self._numbers))
        for start in range(0, len(self._numbers), each):
            if self._suite.timed:
                _take_waits(bystanders)
                await asyncio.sleep(_PAUSE_SECONDS)
                outcome.waits_in_pauses += _take_waits(bystanders)
            numbers = iter(self._numbers[start : start + each])
            await asyncio.gather(*(self._attack(numbers, attackers, bystanders[0]) for _ in range(CLIENTS)))
            outcome.waits += _take_waits(bystanders)
        if self._suite.timed and (fault := outcome.waiting_fault()):
            self._note(fault)

    async def _attack(self, numbers: Iterator[int], attackers: Attackers, bystander: Bystander) -> None:
        for number in numbers:
            await self._up.wait()
            case = self._suite.make(self._seed, number)
            self._running.add(number)
            life = self._lives
            attacked, token = await attackers.take(case)
            began = time.monotonic()
            try:
                answer = await self._send(case, token, attacked.held.id, bystander.current)
                if life == self._lives and answer is not None:
                    self._judge(case, answer)
                    if case.key == "live" and (reply := reply_of(case, answer)):
                        seen = attacked.seen[reply["id"]]
                        seen += [(number, _recorded(choice["message"])) for choice in reply["choices"]]
            finally:
                await attackers.done(attacked, case)
                self._running.discard(number)
                self._lately.append(number)
                slowest = [*self._outcome.slowest, (time.monotonic() - began, number)]
                self._outcome.slowest = sorted(slowest, reverse=True)[:_SLOWEST]
                if self._outcome.done % 500 == 0:
                    self._progress()

    async def _send(self, case: Case, token: str, rollout_id: str, bystander: str) -> Answer | None:
        def fill(text: str) -> str:
            return text.replace("{live}", rollout_id).replace("{bystander}", bystander)

        headers = [(name, fill(value.decode("latin-1")).encode("latin-1")) for name, value in case.headers]
        if token:
            key = ("x-api-key", "") if case.target == "anthropic" else ("authorization", "Bearer ")
            headers.append((key[0], (key[1] + token).encode()))
        try:
            return await ask(self._server.url, case.method, fill(case.path), headers, case.body, case.manner)
        except OSError:
            return None  # the watch sees that nothing listens

    def _judge(self, case: Case, answer: Answer) -> None:
        left = "left" if case.manner in ("cut", "stall", "leave", "abort") else "no answer"
        self._outcome.table[case.target, str(answer.status or left)] += 1
        if fault := find_fault(case, answer):
            self._note(Fault("answer", f"{case.target}, {case.manner}: {fault}", (case.number,)))

    async def _bystand(self, bystander: Bystander) -> None:
        while not self._over:
            await self._up.wait()
            life = self._lives
            try:
                await bystander.round(self._server.url)
            except (Disturbed, OSError) as error:
                if life == self._lives and self._server.alive:
                    self._blame("bystander", str(error))
            await asyncio.sleep(0.05)

    async def _watch(self) -> None:
        """Whether the server lives, answers, and stays within its memory."""
        first = self._server.rss_bytes()
        while not self._over:
            began = time.monotonic()
            try:
                async with asyncio.timeout(HANG_SECONDS):
                    await ask(self._server.url, "GET", "/healthz", [], b"")
            except TimeoutError:
                await self._restart("hang", f"the health check had no answer for {HANG_SECONDS:.0f} s")
            except OSError as error:
                await self._restart("crash", f"nothing listens any more: {error}")
            else:
                silence = time.monotonic() - began
                self._outcome.longest_silence = max(self._outcome.longest_silence, silence)
            with suppress(OSError, IndexError):
                taken = self._server.rss_bytes()
                self._outcome.memory.append((self._outcome.done, taken))
                if taken - first > MOST_BYTES:
                    await self._restart(
                        "memory", f"the server takes {taken >> 20} MiB, {first >> 20} at first"
                    )
            await asyncio.sleep(_LOOK_SECONDS)

    async def _restart(self, kind: str, what: str) -> None:
        self._blame(kind, what)
        self._up.clear()
        self._lives += 1
        self._outcome.restarts += 1
        self._server.kill()
        await asyncio.to_thread(self._server.start)
        self._up.set()

    def _blame(self, kind: str, what: str) -> None:
        cases = tuple(sorted({*self._running, *self._lately}))
        self._note(Fault(kind, what, cases, sure=False))  # type: ignore[arg-type]

    def _note(self, fault: Fault) -> None:
        if self._outcome.faults.add(fault):
            self._say(
                f"found: {fault.kind}: {fault.what[:200]} (cases {', '.join(map(str, fault.cases[:14]))})"
            )

    def _progress(self) -> None:
        taken = self._outcome.memory[-1][1] if self._outcome.memory else 0
        faults = len(self._outcome.faults)
        self._say(f"{self._outcome.done} cases, {faults} faults, {taken / 2**20:.0f} MiB")

    async def _settle(self, before: int) -> None:
        """Connections that were left are closed again, and with them their descriptors."""
        after = before + 1
        for _ in range(100):
            after = self._server.descriptors()
            if after <= before:
                break
            await asyncio.sleep(0.1)
        self._outcome.descriptors = before, after
        if after > before and not self._outcome.restarts:
            self._note(Fault("descriptors", f"{before} were open before and {after} are open after"))


def _take_waits(bystanders: list[Bystander]) -> list[float]:
    """The calls of bystanders since this was last asked."""
    waits = [wait for bystander in bystanders for wait in bystander.waits]
    for bystander in bystanders:
        bystander.waits.clear()
    return waits


def percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that this share of them does not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _recorded(message: dict[str, object]) -> dict[str, object]:
    """An assistant message as it is stored."""
    return {name: value for name, value in message.items() if name != "refusal"}


def find_culprits(
    try_alone: Callable[[Sequence[int]], Outcome], fault: Fault, tries: int = 3
) -> tuple[int, ...]:
    """Which of the cases that may have caused a fault cause it alone."""
    found = []
    for number in fault.cases:
        outcome = try_alone([number] * tries)
        if any(same[0].kind == fault.kind for same in outcome.faults.found.values()):
            found.append(number)
    return tuple(found)
