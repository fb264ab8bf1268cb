"""Looking after servers: one that is dead is given up, one that is slow is not, one that is back is taken in.

What counts as dead: its process has ended; it refuses probes, or says that it is ill, several times in a row;
or it misses as many probes and nothing has come from it for `Rules.silence` seconds. A piece of any reply is
a sign of life, as is the answer to a probe: thousands of replies make a server slow to answer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lightning_core.backends.vllm.routing import Replica
from lightning_core.backends.vllm.wire import LostError, SilentError
from lightning_core.errors import EngineError

if TYPE_CHECKING:
    from lightning_core.backends.vllm.serving import Serving

logger = logging.getLogger(__name__)
MISSES = 3
"""Probes in a row without a good answer or any other sign of life after which it may be given up."""
UNKNOWN = (
    "it is back, but not known to have version {version} of the weights; publish them to it and call "
    "replace(), or give Replicas(restore=...)"
)


class Watch:
    """Probes the servers while there is something to learn. Belongs to the loop that starts it."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._task: asyncio.Task[None] | None = None
        self._looks: dict[Replica, asyncio.Task[None]] = {}
        """Under way; a server that takes its time keeps no other waiting."""
        self._news: asyncio.Event | None = None

    def start(self) -> None:
        """Begin, once."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            tasks = [self._task, *self._looks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait(self) -> None:
        """Until there is news of a server."""
        if self._news is None or self._news.is_set():
            self._news = asyncio.Event()
        await self._news.wait()

    def tell(self) -> None:
        """There is news of a server."""
        if self._news is not None:
            self._news.set()

    async def settle(self, replica: Replica) -> None:
        """Return once a server that broke a reply off has answered a probe, or is lost."""
        if replica.lost is None:
            replica.doubted = True
            self._look_soon(replica)
        while replica.doubted:
            await self.wait()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._serving.rules.probe_seconds)
            for replica in self._serving.replicas:
                self._look_soon(replica)

    def _look_soon(self, replica: Replica) -> None:
        if replica not in self._looks:
            look = asyncio.get_running_loop().create_task(self._look_at(replica))
            self._looks[replica] = look
            look.add_done_callback(lambda _: self._looks.pop(replica))

    async def _look_at(self, replica: Replica) -> None:
        """Boundary: what goes wrong with one server is told, and the next look may do better."""
        try:
            await (self._look(replica) if replica.lost is None else self._look_at_lost(replica))
        except Exception:
            logger.exception("vLLM's server %s could not be looked after", replica.url)

    async def _look(self, replica: Replica) -> None:
        rules, silent = self._serving.rules, asyncio.get_running_loop().time() - replica.heard
        if rules.alive is not None and not rules.alive(replica.url):
            self._serving.lose(replica, f"{replica.url}: its process has ended")
        elif replica.doubted or (replica.running and silent >= self._probe_seconds):
            await self._probe(replica)
        elif replica.born is None:  # it has taken another's place since all were checked
            replica.born = await self._born(replica)

    @property
    def _probe_seconds(self) -> float:
        """How long the answer to a probe may take, and a silence before the first."""
        return self._serving.rules.silence / (MISSES + 1)

    async def _probe(self, replica: Replica) -> None:
        ailment = await self._serving.wire.ailment(replica.url, self._probe_seconds)
        if ailment is None:
            await self._take_answer(replica)
        elif replica.lost is None:
            self._take_miss(replica, ailment)

    async def _take_answer(self, replica: Replica) -> None:
        replica.heard, replica.misses = asyncio.get_running_loop().time(), 0
        if replica.doubted and replica.born is not None:
            try:
                born = await self._serving.wire.born(replica.url, self._probe_seconds)
            except LostError:  # the next look may learn it
                return
            if born is not None and born != replica.born:
                self._serving.lose(replica, f"{replica.url}: it was restarted")
        replica.doubted = False
        self.tell()

    def _take_miss(self, replica: Replica, ailment: EngineError) -> None:
        now, rules = asyncio.get_running_loop().time(), self._serving.rules
        replica.misses = 1 if replica.heard > replica.missed else replica.misses + 1
        replica.missed = now
        dead = not isinstance(ailment, SilentError) or now - replica.heard >= rules.silence
        if replica.misses >= MISSES and dead:
            self._serving.lose(replica, str(ailment))

    async def _look_at_lost(self, replica: Replica) -> None:
        ailment = await self._serving.wire.ailment(replica.url, self._probe_seconds)
        if ailment is not None:
            replica.lost = str(ailment)
            if self._serving.rules.revive is not None:
                await self._serving.rules.revive(replica.url)
            return
        try:
            await self._take_in(replica)
        except EngineError as error:
            replica.lost = f"it is back, but not ready: {error}"

    async def _take_in(self, replica: Replica) -> None:
        """Let it take part, if it has the current weights or can be given them."""
        serving, restore = self._serving, self._serving.rules.restore
        born = await serving.wire.born(replica.url, self._probe_seconds)
        if born is None or born != replica.born:  # another process: it has what it reads at its start
            replica.version = replica.started_with
            replica.born = born
        while replica.version != (version := serving.door.version):
            if restore is None:
                replica.lost = UNKNOWN.format(version=version)
                return
            await restore(replica.url, version)
            replica.version = version
        replica.lost, replica.misses = None, 0
        replica.heard = asyncio.get_running_loop().time()
        logger.warning("vLLM's server %s is back with version %d", replica.url, replica.version)
        self.tell()

    async def _born(self, replica: Replica) -> float | None:
        try:
            return await self._serving.wire.born(replica.url, self._probe_seconds)
        except LostError:  # the next look may learn it
            return None
