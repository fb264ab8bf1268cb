"""An engine of vLLM's servers, all started here: serving, new weights, and servers that end.

New weights are given to running servers, without a restart. That takes vLLM's development endpoints
(`VLLM_SERVER_DEV_MODE=1`) and `worker.WeightLoading` for whole weights, `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`
and `--enable-lora` for LoRA; `VllmServer` starts them so.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lightning_core.backends.vllm.replicas import PER_SLOT, Replicas
from lightning_core.backends.vllm.server import WORKER, ServerOptions, VllmServer
from lightning_core.backends.vllm.upstream import VllmUpstream
from lightning_core.errors import ConfigError, EngineError

logger = logging.getLogger(__name__)
LORA = "policy"
"""Adapters are served by this name: each version takes the place of the one before."""
NEAR = 1e-6
"""Relative: how far sums of the same weights may differ by the order in which they are added."""
RESET_SECONDS, AGAIN_SECONDS = 60.0, 0.05
"""How long replies that were just cancelled may hold their part of the prefix cache, as a server may be slow
to end them; and the pause between two tries."""
Give = Callable[[str], Awaitable[None]]
"""Gives what is new to the server at an address."""


class VllmEngine:
    """Servers of one model (`gateway.engine_cache.VersionEngine`). A process that ends is started again."""

    def __init__(
        self,
        model: str | Path,
        *,
        servers: int = 1,
        options: ServerOptions | None = None,
        name: str | None = None,
        seed: int | None = 0,
        policy_version: int = 0,
        server_timeout: float = 600.0,
    ) -> None:
        """`policy_version` is that of the weights in the model's folder. Raises ModelError or ConfigError."""
        if servers < 1:
            raise ConfigError(f"servers={servers!r} must be at least 1")
        self.servers = [VllmServer(model, name=name, options=options) for _ in range(servers)]
        self.replicas = Replicas(
            [server.url for server in self.servers],
            self.servers[0].name,
            server_timeout=server_timeout,
            max_running=PER_SLOT * self.servers[0].options.max_num_seqs,
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
        """End all; replies in flight end with an error. A second time does nothing. From any event loop."""
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
        """Give a server that was started again, or did not take new weights, those of the others."""
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


async def publish(replicas: Replicas, give: Give, policy_version: int) -> None:
    """Hold requests, give the new weights to every server that answers, and serve again, by that version.

    A server that does not take them is out until `Replicas.restore` has given it the current ones. Raises
    EngineError, with the version as it was, if none took them.
    """
    try:
        await replicas.hold()
        living = [url for url in replicas.urls if url not in replicas.dead]
        taken = await asyncio.gather(*map(give, living), return_exceptions=True)
        failed = {url: error for url, error in zip(living, taken, strict=True) if error is not None}
        for url, error in failed.items():
            if not isinstance(error, EngineError):
                raise error
            await replicas.drop(url, str(error))
        if len(failed) == len(living):
            raise EngineError(
                f"no server took version {policy_version} of the weights: "
                f"{'; '.join(map(str, failed.values())) or 'none answers'}"
            )
        await replicas.set_version(policy_version, {*living} - {*failed})
    finally:
        await replicas.release()


async def load_weights(replicas: Replicas, url: str, folder: Path) -> None:
    """One server answers by the weights in a transformers folder. Raises EngineError if it does not."""
    try:
        answer: Any = await replicas.ask(url, "/collective_rpc", _call("lightning_load", str(folder)))
    except EngineError as error:
        raise EngineError(
            f"{error}; weights are changed in place only where vLLM runs with VLLM_SERVER_DEV_MODE=1 and "
            f"--worker-extension-cls {WORKER}, as VllmServer starts it"
        ) from error
    for result in answer["results"]:
        if "error" in result:
            raise EngineError(f"{url} can't take the weights in {str(folder)!r}: {result['error']}")
    if len(answer["results"]) == 1:  # with several, each has a part and some parts twice
        _check_sums(url, answer["results"][0], folder)
    await reset_prefixes(replicas, url)


def _check_sums(url: str, sums: dict[str, float], folder: Path) -> None:
    if abs(sums["after"] - sums["folder"]) > NEAR * sums["folder"]:
        raise EngineError(
            f"{url} does not have the weights in {str(folder)!r} after loading them: their absolute values "
            f"add up to {sums['folder']:.6f}, its own to {sums['after']:.6f} (before: {sums['before']:.6f}); "
            "its form of this model can't be changed in place"
        )


async def load_lora(replicas: Replicas, url: str, folder: Path, name: str) -> None:
    """One server has the LoRA in a peft folder under `name`, in place of an earlier one of that name.

    Raises EngineError if it has not.
    """
    body: dict[str, object] = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}
    try:
        await replicas.ask(url, "/v1/load_lora_adapter", body)
    except EngineError as error:
        raise EngineError(
            f"{error}; LoRA is loaded only where vLLM runs with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and "
            "--enable-lora, as VllmServer starts it with lora_rank"
        ) from error
    models: Any = await replicas.ask(url, "/v1/models")
    if (name, str(folder)) not in {(card["id"], card.get("root")) for card in models["data"]}:
        raise EngineError(f"{url} does not serve the LoRA in {str(folder)!r} as {name!r} after loading it")
    await reset_prefixes(replicas, url)


async def reset_prefixes(replicas: Replicas, url: str) -> None:
    """Forget what other weights have computed. Raises EngineError if the server goes on to hold it."""
    until = time.monotonic() + RESET_SECONDS
    while True:
        answer: Any = await replicas.ask(url, "/reset_prefix_cache", {})
        if answer is None or answer.get("success", True):  # older ones do not tell
            return
        if time.monotonic() > until:
            break
        await asyncio.sleep(AGAIN_SECONDS)
    raise EngineError(
        f"{url} still holds prefixes that older weights have computed; requests are in flight there"
    )


def _call(method: str, *arguments: str) -> dict[str, object]:
    return {"method": method, "args": list(arguments)}
