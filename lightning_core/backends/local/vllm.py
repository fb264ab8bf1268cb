"""vLLM as the engine of the local backend: a server of its own on the same device.

vLLM reads the weights from a transformers folder in shared memory. After each change a few dozen tokens are
sampled and compared with the network under training: a server that goes on with its old weights is found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_core.backends.local.exactness import Exactness
from lightning_core.backends.local.versions import LocalSettings
from lightning_core.backends.serving.upstream import ChatUpstream
from lightning_core.backends.vllm.server import ServerOptions
from lightning_core.backends.vllm.trained import TrainedServer
from lightning_core.backends.weights.folders import WEIGHTS, write_folder
from lightning_core.backends.weights.fourbit import plain_weights
from lightning_core.backends.weights.model import Model, parameter_count, plain_files

CONFIG = "config.json"


class VllmServing:
    """A vLLM server with a copy of the policy's weights (`serving.Serving`)."""

    def __init__(self, model: Model, dtype: torch.dtype, settings: LocalSettings) -> None:
        """`dtype` is the server's number format.

        Raises ConfigError or UnsupportedError if no server of vLLM can be started here, ModelError if there
        is no room for the weights.
        """
        self._model, self._dtype = model, dtype
        self._files = _server_files(model)
        on_gpu = model.network.device.type != "cpu"
        options = ServerOptions(
            dtype=str(dtype).removeprefix("torch."),
            context=model.context,
            max_num_seqs=settings.max_batch,
            gpu_memory_utilization=settings.gpu_memory if on_gpu else None,
            extra=("--enable-sleep-mode",) if on_gpu and settings.sleeps else (),
        )
        weights = plain_weights(model.network)
        self._server = TrainedServer(
            lambda folder: self._write(folder, weights),
            2 * parameter_count(model.network) * dtype.itemsize,
            name=model.name,
            options=options,
            seed=settings.seed,
        )

    @property
    def upstream(self) -> ChatUpstream:
        return self._server.upstream

    async def start(self) -> None:
        """Start the server. Raises EngineError if it does not come up, ModelError if it is not exact."""
        await self._server.start()
        try:
            await self._check()
        except BaseException:
            await self._server.close()
            raise

    async def close(self) -> None:
        """End the server."""
        await self._server.close()

    async def hold(self) -> None:
        """Keep new requests waiting; returns once those in flight have ended."""
        await self._server.hold()

    async def release(self) -> None:
        """Serve again what `hold` kept waiting, unless it sleeps."""
        if not self._server.asleep:
            await self._server.release()

    async def sleep(self) -> None:
        """Hold, and free memory, until `wake` or `refresh`."""
        if not self._server.asleep:
            await self._server.hold()
            await self._server.sleep()

    async def wake(self) -> None:
        """Serve with the weights as they were."""
        if self._server.asleep:
            await self._server.wake()
            await self._server.release()

    async def refresh(self, weights: Mapping[str, torch.Tensor], policy_version: int) -> None:
        """Answer with new weights. Call while held.

        Raises ModelError if there is no room for them or the server answers by others, EngineError if it
        does not take them.
        """
        await self._server.refresh(lambda folder: self._write(folder, weights), policy_version)
        await self._check()

    async def _check(self) -> None:
        model = self._model
        check = Exactness(model.network, model.sample, model.context, narrow=False)
        await check.check_server(self._server.submit, self._dtype)

    def _write(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """A safetensors file takes no weight under two names, so each is a copy."""
        copied = {name: weights[name].detach().to("cpu", self._dtype, copy=True) for name in weights}
        write_folder(folder, {**self._files, WEIGHTS: copied})


def _server_files(model: Model) -> dict[str, bytes]:
    """The model's files as vLLM is to read them: a text model whose matrices are not tied."""
    files = plain_files(model)
    config = json.loads(files[CONFIG])
    own = {"tie_word_embeddings": False, "architectures": [type(model.network).__name__]}
    return {**files, CONFIG: json.dumps({**config, **own}).encode()}
