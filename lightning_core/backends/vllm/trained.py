"""A vLLM server whose weights are trained beside it: it takes new ones in place, and may sleep meanwhile.

The weights go through a folder in shared memory, which vLLM reads: each byte is copied once, and a server
that is started again reads the same folder. vLLM sees two matrices where the model ties them, as it does not
tie them again after a change.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from lightning_core.backends.serving.completion import Completion
from lightning_core.backends.vllm.client import Client, LostError
from lightning_core.backends.vllm.server import ServerOptions, VllmServer
from lightning_core.backends.vllm.upstream import PER_SLOT, Replicas, VllmUpstream
from lightning_core.errors import EngineError

logger = logging.getLogger(__name__)
SHARED = Path("/dev/shm")
PREFIX, LOCK, MODEL = "lightning-weights-", "lock", "model"
DISCARD = 2
"""vLLM's level of sleep that frees weights and cache: `refresh` and `wake` read the folder again."""
SERVER_SECONDS = 600.0
"""Requests wait so long while the server is started again."""

YOUNG_SECONDS = 60.0
"""A folder so young may be about to be locked."""
Write = Callable[[Path], None]
"""Writes a transformers folder, replacing an older one."""


class TrainedServer:
    """Serves weights that `refresh` replaces. Methods may be called from any event loop."""

    def __init__(self, write: Write, size: int, *, name: str, options: ServerOptions, seed: int) -> None:
        """`write` writes the weights of the start, of some `size` bytes.

        Raises ConfigError or UnsupportedError if no server of vLLM can be started here.
        """
        self._folder = WeightsFolder(size)
        try:
            write(self._folder.model)
            self._server = VllmServer(self._folder.model, name=name, options=options)
            self._replicas = Replicas(
                [self._server.url],
                name,
                server_timeout=SERVER_SECONDS,
                max_running=PER_SLOT * options.max_num_seqs,
                revive=self._revive,
            )
            self.upstream = VllmUpstream(self._folder.model, self._replicas, name=name, seed=seed)
        except BaseException:
            self._folder.close()
            raise
        self._starting = asyncio.Lock()
        self._version = 0
        self.asleep = False
        """Whether the memory of weights and cache is freed."""

    async def start(self) -> None:
        """Start the server. Raises EngineError with what it wrote last if it fails."""
        try:
            await self._replicas.run(self._start())
            try:
                await self.upstream.check()
            except EngineError as error:
                raise EngineError(f"{error}; vLLM's server wrote last:\n{self._server.tail()}") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End it; replies in flight end with an error. A second time does nothing."""
        await self._replicas.close()
        await self._server.close()
        await asyncio.to_thread(self._folder.close)

    def submit(self, completion: Completion) -> None:
        """Ask for a reply that no token ends, now, whether requests are held or not."""
        completion.request.policy_version = self._version
        self._replicas.submit(completion, frozenset())

    async def hold(self) -> None:
        """Keep new requests waiting; returns once those in flight have ended."""
        await self._replicas.hold()

    async def release(self) -> None:
        """Serve again what `hold` kept waiting."""
        await self._replicas.release()

    async def sleep(self) -> None:
        """Free the memory of weights and cache; call while held. `refresh` or `wake` ends it."""
        self.asleep = True
        await self._replicas.run(self._ask(f"/sleep?level={DISCARD}"))

    async def wake(self) -> None:
        """Take memory again, and the weights as they were."""
        await self._replicas.run(self._reload())

    async def refresh(self, write: Write, policy_version: int) -> None:
        """Answer with the weights that `write` writes from now on; call while held.

        Raises ModelError if there is no room for them, EngineError if the server does not take them.
        """
        await asyncio.to_thread(write, self._folder.model)
        await self._replicas.run(self._reload())
        self._version = policy_version
        self._replicas.replace([self._server.url], policy_version)

    # in the loop of the replicas ------------------------------------------------------------
    async def _start(self) -> None:
        async with self._starting:
            await self._server.start()

    async def _revive(self) -> None:
        if not self._server.running:
            logger.warning(
                "vLLM's server has ended and is started again; it wrote last:\n%s", self._server.tail()
            )
            await self._start()

    async def _reload(self) -> None:
        asleep, self.asleep = self.asleep, False
        if asleep:
            await self._ask("/wake_up?tags=weights")
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(self._folder.model)}}
        await self._ask("/collective_rpc", body)
        if asleep:
            await self._ask("/wake_up?tags=kv_cache")
        await self._ask("/reset_prefix_cache")

    async def _ask(self, path: str, body: Mapping[str, object] | None = None) -> None:
        """Once more of a server that had ended: it is started again, from the same folder, awake."""
        client = Client()
        try:
            try:
                await client.ask(self._server.url, path, body or {})
            except LostError as error:
                logger.warning("vLLM's server is asked again: %s", error)
                await self._start()
                await client.ask(self._server.url, path, body or {})
        except EngineError as error:
            raise EngineError(
                f"vLLM's server does not take new weights: {error}; it wrote last:\n{self._server.tail()}"
            ) from error
        finally:
            await client.close()


class WeightsFolder:
    """A folder for weights: in shared memory if that has room, else where temporary files are.

    Folders that a killed process left there are deleted.
    """

    def __init__(self, size: int) -> None:
        """`size` of the weights, in bytes; twice as much must be free, as new ones are written beside."""
        roomy = SHARED.is_dir() and shutil.disk_usage(SHARED).free > 2 * size
        parent = SHARED if roomy else Path(tempfile.gettempdir())
        for left in parent.glob(f"{PREFIX}*"):
            _delete_unused(left)
        self._path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = os.open(self._path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def model(self) -> Path:
        """The transformers folder in it."""
        return self._path / MODEL

    def close(self) -> None:
        """Delete it; a second time does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _delete_unused(folder: Path) -> None:
    """Delete it if no process holds its lock."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return  # another user's, or not there yet
    try:
        if time.time() - os.fstat(lock).st_mtime < YOUNG_SECONDS:
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # in use
    finally:
        os.close(lock)
