"""The servers: which answer, which are lost, and how a lost one comes back with the right weights.

A server is lost once its process has ended, once it refuses a probe, or after `silence` seconds without a
byte of any reply or an answer to a probe. A slow one is not lost: thousands of replies make a server slow to
answer, so each piece of a reply is a sign of life.

A rollout stays with one server, whose prefix cache then holds its conversation: the server with the highest
hash of (rollout, address) among those that answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from lightning_core.backends.chat.completion import Request
from lightning_core.backends.vllm.client import Client, LostError, SilentError
from lightning_core.errors import EngineError

logger = logging.getLogger(__name__)
NONE = -1
"""No version of the weights."""
PROBES = 4
"""A server is probed so many times within `silence`."""
UNKNOWN = (
    "it is back, but not known to have version {version} of the weights; publish them to it and call "
    "replace(), or give Replicas(restore=...)"
)
Restore = Callable[[str, int], Awaitable[None]]
"""Gives the server at an address a version of the weights."""
Revive = Callable[[str], Awaitable[None]]
"""Starts the server at an address again, if it can. May be called again and again."""
Alive = Callable[[str], bool]
"""Whether the process of the server at an address is there."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all servers."""

    server_timeout: float
    """Seconds that a request waits while no server answers."""
    probe_seconds: float
    silence: float
    """Seconds without a sign of life after which a server is lost."""
    alive: Alive | None
    restore: Restore | None
    revive: Revive | None


@dataclass(eq=False, slots=True)
class Replica:
    """One server, as seen from here."""

    url: str
    started_with: int
    """The version of the weights that its process reads at its start; NONE: not known."""
    version: int
    """The version it has, or had when it was lost."""
    started_at: float | None = None
    """When its process started."""
    lost: str | None = None
    """Why it takes no requests; None: it answers."""
    sent: int = 0
    """Replies it was ever asked for."""
    running: int = 0
    """Replies in flight."""
    waiting: dict[asyncio.Future[bool], Request] = field(default_factory=dict)
    """Turns to come, in their order: True when it has come, False when the server was lost before."""
    heard: float = 0.0
    """When something came from it last, or the first of the replies in flight was sent to it."""
    doubted: bool = False
    """Whether it broke a reply off, and has answered no probe since."""
    streams: set[asyncio.Timeout] = field(default_factory=set)
    """Of the replies in flight; one that is due breaks its reply off."""


class Pool:
    """Chooses among the servers and probes them. Belongs to the event loop that starts it."""

    def __init__(self, replicas: list[Replica], client: Client, rules: Rules, version: int) -> None:
        self.replicas = replicas
        self.version = version
        """Of the weights that answer what comes now."""
        self.rules = rules
        self._client = client
        self._watching: asyncio.Task[None] | None = None
        self._looks: dict[Replica, asyncio.Task[None]] = {}
        """In flight; a slow server keeps no other waiting."""
        self._news = asyncio.Event()

    def start(self) -> None:
        """Begin to probe, once."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """End the probes."""
        if self._watching is not None:
            tasks = [self._watching, *self._looks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def choose(self, rollout: str | None) -> Replica | None:
        """The server to ask; None if none answers. Without a rollout: the one with the fewest replies."""
        answering = [replica for replica in self.replicas if replica.lost is None]
        if not answering:
            return None
        if rollout is None:
            return min(answering, key=lambda replica: replica.running + len(replica.waiting))
        return max(answering, key=lambda replica: _rank(rollout, replica.url))

    async def changed(self) -> None:
        """Wait until a server is lost or comes back."""
        await self._news.wait()

    def tell(self) -> None:
        """End every `changed`."""
        self._news.set()
        self._news = asyncio.Event()

    def lose(self, replica: Replica, why: str) -> None:
        """Send it nothing more; replies in flight there end with an error."""
        if replica.lost is None:
            logger.warning("vLLM's server is out: %s", why)
        replica.lost, replica.doubted = why, False
        for turn in replica.waiting:
            if not turn.done():
                turn.set_result(False)
        replica.waiting.clear()
        now = asyncio.get_running_loop().time()
        for stream in replica.streams:
            stream.reschedule(now)
        replica.streams.clear()
        self.tell()

    def doubt(self, replica: Replica) -> None:
        """It broke a reply off: probe it now."""
        if replica.lost is None:
            replica.doubted = True
            self._look_soon(replica)

    def distrust(self, url: str, why: str) -> None:
        """The server's weights are not what they should be: it is out until they were restored."""
        for replica in self.replicas:
            if replica.url == url:
                replica.version = replica.started_with = NONE
                self.lose(replica, why)

    def set_version(self, version: int, given: Collection[str]) -> None:
        """The servers at these addresses have the version that answers from now on."""
        self.version = version
        for replica in self.replicas:
            if replica.lost is None and replica.url in given:
                replica.version = version
            elif replica.lost is None:
                self.lose(replica, f"{replica.url}: it came back while weights were changed")

    def replace(self, urls: Sequence[str]) -> None:
        """The servers are these from now on, with the current weights; those that stay keep their replies."""
        known = {replica.url: replica for replica in self.replicas}
        self.replicas = [
            known[url] if url in known and known[url].lost is None else Replica(url, NONE, self.version)
            for url in urls
        ]
        for replica in known.values():
            if replica not in self.replicas:
                self.lose(replica, f"{replica.url}: other servers have taken its place")
        self.tell()

    async def learn_start_times(self, seconds: float) -> None:
        """Know which process serves at each address, so that a restart is seen."""
        for replica in self.replicas:
            replica.started_at = await self._find_start_time(replica, seconds)

    # probes -------------------------------------------------------------------------------
    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.rules.probe_seconds)
            for replica in self.replicas:
                self._look_soon(replica)

    def _look_soon(self, replica: Replica) -> None:
        if replica not in self._looks:
            look = asyncio.get_running_loop().create_task(self._look(replica))
            self._looks[replica] = look
            look.add_done_callback(lambda _: self._looks.pop(replica))

    async def _look(self, replica: Replica) -> None:
        """Boundary: an unexpected error about one server is logged, and the next look may do better."""
        try:
            await (self._look_at_answering(replica) if replica.lost is None else self._look_at_lost(replica))
        except Exception:
            logger.exception("vLLM's server %s could not be probed", replica.url)

    async def _look_at_answering(self, replica: Replica) -> None:
        rules, silent = self.rules, asyncio.get_running_loop().time() - replica.heard
        if rules.alive is not None and not rules.alive(replica.url):
            self.lose(replica, f"{replica.url}: its process has ended")
        elif replica.doubted or (replica.running and silent >= self._probe_timeout):
            await self._probe(replica)
        elif replica.started_at is None:  # it has taken another's place since all were checked
            replica.started_at = await self._find_start_time(replica, self._probe_timeout)

    @property
    def _probe_timeout(self) -> float:
        """How long the answer to a probe may take, and a silence before the first."""
        return self.rules.silence / PROBES

    async def _probe(self, replica: Replica) -> None:
        problem = await self._client.find_problem(replica.url, self._probe_timeout)
        now = asyncio.get_running_loop().time()
        if problem is None:
            replica.heard = now
            await self._settle_doubt(replica)
        elif replica.lost is None and (
            not isinstance(problem, SilentError) or now - replica.heard >= self.rules.silence
        ):
            self.lose(replica, str(problem))

    async def _settle_doubt(self, replica: Replica) -> None:
        """It is well; it may be another process than the one that broke a reply off."""
        if replica.doubted and replica.started_at is not None:
            try:
                started_at = await self._client.find_start_time(replica.url, self._probe_timeout)
            except LostError:  # the next look may learn it
                return
            if started_at not in (None, replica.started_at):
                self.lose(replica, f"{replica.url}: it was restarted")
        replica.doubted = False

    async def _look_at_lost(self, replica: Replica) -> None:
        problem = await self._client.find_problem(replica.url, self._probe_timeout)
        if problem is not None:
            replica.lost = str(problem)
            if self.rules.revive is not None:
                await self.rules.revive(replica.url)
            return
        try:
            await self._take_in(replica)
        except EngineError as error:
            replica.lost = f"it is back, but not ready: {error}"

    async def _take_in(self, replica: Replica) -> None:
        """Let it take part, if it has the current weights or can be given them."""
        started_at = await self._client.find_start_time(replica.url, self._probe_timeout)
        if started_at is None or started_at != replica.started_at:  # it has the weights of its start
            replica.version = replica.started_with
            replica.started_at = started_at
        while replica.version != (version := self.version):
            if self.rules.restore is None:
                replica.lost = UNKNOWN.format(version=version)
                return
            await self.rules.restore(replica.url, version)
            replica.version = version
        replica.lost = None
        replica.heard = asyncio.get_running_loop().time()
        logger.warning("vLLM's server %s is back with version %d", replica.url, replica.version)
        self.tell()

    async def _find_start_time(self, replica: Replica, seconds: float) -> float | None:
        try:
            return await self._client.find_start_time(replica.url, seconds)
        except LostError:  # the next look may learn it
            return None


def _rank(rollout: str, url: str) -> bytes:
    return hashlib.blake2b(f"{rollout} {url}".encode(), digest_size=8).digest()
