"""Looking after servers: one that hangs is given up, one that is back is taken in."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lightning_core.backends.vllm.routing import Replica
from lightning_core.errors import EngineError

if TYPE_CHECKING:
    from lightning_core.backends.vllm.serving import Serving

logger = logging.getLogger(__name__)
SILENCE_SECONDS = 5.0
"""A server with replies under way of which nothing is heard for so long is asked whether it is well."""
MISSES = 3
"""Times in a row without an answer after which it is given up. An answer may take `wire.PROBE_SECONDS`."""
UNKNOWN = (
    "it is back, but not known to have version {version} of the weights; publish them to it and call "
    "replace(), or give Replicas(restore=...)"
)


class Watch:
    """Probes the servers while there is something to learn. Belongs to the loop that starts it."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._task: asyncio.Task[None] | None = None
        self._news: asyncio.Event | None = None

    def start(self) -> None:
        """Begin, once."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self) -> None:
        """Until a server is there again."""
        if self._news is None or self._news.is_set():
            self._news = asyncio.Event()
        await self._news.wait()

    def tell(self) -> None:
        """A server is there again."""
        if self._news is not None:
            self._news.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._serving.rules.probe_seconds)
            await asyncio.gather(*map(self._look_at, self._serving.replicas))

    async def _look_at(self, replica: Replica) -> None:
        """Boundary: what goes wrong with one server is told, and the next look may do better."""
        try:
            await self._look(replica)
        except Exception:
            logger.exception("vLLM's server %s could not be looked after", replica.url)

    async def _look(self, replica: Replica) -> None:
        if replica.lost is None:
            if replica.born is None:  # it has taken another's place since all were checked
                replica.born = await self._serving.wire.born(replica.url)
            await self._look_at_running(replica)
        elif (ailment := await self._serving.wire.ailment(replica.url)) is not None:
            replica.lost = ailment
            if self._serving.rules.revive is not None:
                await self._serving.rules.revive(replica.url)
        else:
            try:
                await self._take_in(replica)
            except EngineError as error:
                replica.lost = f"it is back, but could not be given its weights: {error}"

    async def _look_at_running(self, replica: Replica) -> None:
        silent = asyncio.get_running_loop().time() - replica.heard
        if not replica.running or silent < SILENCE_SECONDS:
            replica.misses = 0
            return
        ailment = await self._serving.wire.ailment(replica.url)
        replica.misses = 0 if ailment is None else replica.misses + 1
        if replica.misses >= MISSES and ailment is not None:
            self._serving.lose(replica, ailment)

    async def _take_in(self, replica: Replica) -> None:
        """Let it take part, if it has the current weights or can be given them."""
        serving, restore = self._serving, self._serving.rules.restore
        born = await serving.wire.born(replica.url)
        if born is None or born != replica.born:  # another process: it has what it reads at its start
            replica.version = replica.started_with
            replica.born = born
        while replica.version != (version := serving.version):
            if restore is None:
                replica.lost = UNKNOWN.format(version=version)
                return
            await restore(replica.url, version)
            replica.version = version
        replica.lost, replica.misses = None, 0
        logger.warning("vLLM's server %s is back with version %d", replica.url, replica.version)
        self.tell()
