"""An engine of vLLM's servers, all started here: serving, new weights, and servers that die."""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path

from lightning_core.backends.vllm.command import ServerOptions
from lightning_core.backends.vllm.replicas import PER_PLACE, Replicas
from lightning_core.backends.vllm.server import VllmServer
from lightning_core.backends.vllm.upstream import VllmUpstream
from lightning_core.backends.vllm.weights import load_lora, load_weights, publish
from lightning_core.errors import ConfigError

logger = logging.getLogger(__name__)
LORA = "policy"
"""What adapters are served as: each version takes the place of the one before."""


class VllmEngine:
    """Servers of one model (`gateway.shelf.VersionEngine`). A process that ends is started anew."""

    def __init__(
        self,
        model: str | Path,
        *,
        servers: int = 1,
        options: ServerOptions | None = None,
        name: str | None = None,
        seed: int | None = 0,
        policy_version: int = 0,
        patience: float = 600.0,
    ) -> None:
        """`policy_version` is that of the weights in the model's folder. Raises ModelError or ConfigError."""
        if servers < 1:
            raise ConfigError(f"servers={servers!r} must be at least 1")
        self.servers = [VllmServer(model, name=name, options=options) for _ in range(servers)]
        self.replicas = Replicas(
            [server.url for server in self.servers],
            self.servers[0].name,
            patience=patience,
            max_running=PER_PLACE * self.servers[0].options.max_num_seqs,
            policy_version=policy_version,
            starts_with=policy_version,
            alive=self._alive,
            restore=self._restore,
            revive=self._revive,
        )
        self.upstream = VllmUpstream(model, self.replicas, name=name, seed=seed)
        self._folders = {policy_version: Path(self.servers[0].source)}
        """Where the versions are that a server may have to be given again."""
        self._starting: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Start the servers. Raises EngineError with what one that fails wrote last."""
        try:
            async with asyncio.TaskGroup() as starting:
                for server in self.servers:
                    starting.create_task(server.start())
            await self.upstream.check()
        except BaseException as error:
            await self.close()
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from error
            raise

    async def refresh(self, folder: str | Path, policy_version: int | None = None) -> int:
        """Answer by the weights of a transformers folder, or by the LoRA of a peft folder where the servers
        have `lora_rank`. Returns their version, by default one more.

        Raises EngineError, with the version as it was, if no server takes them.
        """
        version = self.replicas.policy_version + 1 if policy_version is None else policy_version
        folder = await asyncio.to_thread(Path(folder).absolute)
        self._folders = {version: folder, **self._folders}
        await publish(self.replicas, lambda url: self._give(url, folder), version)
        self._folders = {version: folder}
        if self._lora:
            self.replicas.model = LORA
        return version

    async def close(self) -> None:
        """End all; replies under way end with an error. A second time does nothing. From any event loop."""
        await self.replicas.close()
        await asyncio.gather(*(server.close() for server in self.servers))

    @property
    def _lora(self) -> bool:
        return self.servers[0].options.lora_rank is not None

    async def _give(self, url: str, folder: Path) -> None:
        if self._lora:
            await load_lora(self.replicas, url, folder, LORA)
        else:
            await load_weights(self.replicas, url, folder)

    async def _restore(self, url: str, version: int) -> None:
        """A server that was started anew, or did not take new weights, gets what the others have."""
        folder = self._folders[version]
        if not (self._lora and str(folder) == self.servers[0].source):
            await self._give(url, folder)

    async def _revive(self, url: str) -> None:
        """Start a server whose process has ended."""
        server = self._server(url)
        if not server.running and url not in self._starting:
            logger.warning(
                "vLLM's server %s has ended and is started again; it wrote last:\n%s", url, server.tail()
            )
            starting = self._starting[url] = asyncio.create_task(server.start())
            starting.add_done_callback(lambda ended: self._started(url, ended))

    def _alive(self, url: str) -> bool:
        return self._server(url).running

    def _server(self, url: str) -> VllmServer:
        return next(server for server in self.servers if server.url == url)

    def _started(self, url: str, starting: asyncio.Task[None]) -> None:
        del self._starting[url]
        if not starting.cancelled() and (error := starting.exception()) is not None:
            logger.warning("vLLM's server %s could not be started: %s", url, error)


async def open_vllm(
    folder: str | Path, version: int, *, options: ServerOptions | None = None, name: str | None = None
) -> VllmEngine:
    """An engine that serves one version alone. Raises ModelError or EngineError."""
    engine = VllmEngine(folder, options=options, name=name, seed=secrets.randbits(64), policy_version=version)
    await engine.start()
    return engine
