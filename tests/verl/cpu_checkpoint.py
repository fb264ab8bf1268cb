"""A checkpoint engine of verl's kind over gloo, for tests: its own reach other GPUs by NCCL and the like.

It comes in where verl lets it: `checkpoint_engine.custom_backend_module=cpu_checkpoint`. The first rank sends
each tensor to all servers' workers.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import BroadcastOptions, FileStore, ProcessGroupGloo
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

Tensors = Iterator[tuple[str, torch.Tensor]]
PATIENCE = timedelta(seconds=120)
IDLE = -1
"""The rank of a worker that sends nothing: the first one has all."""


@CheckpointEngineRegistry.register("gloo")
class GlooCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """Tensor after tensor, each behind its name and kind."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._group: ProcessGroupGloo | None = None

    def prepare(self) -> dict[str, Any]:
        return {"folder": tempfile.mkdtemp(prefix="lightning-gloo-")}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        def joining(ranks: list[int]) -> dict[str, list[Any]]:
            size, path = 1 + rollout_world_size, str(Path(metadata[0]["folder"]) / "store")
            return {"rank": ranks, "size": [size] * len(ranks), "path": [path] * len(ranks)}

        sending = [0] + [IDLE] * (actor_wg_world_size - 1)
        return joining(sending), joining(list(range(1, rollout_world_size + 1)))

    def init_process_group(self, rank: int, size: int, path: str) -> None:
        if rank != IDLE:
            self._group = ProcessGroupGloo(FileStore(path, size), rank, size, PATIENCE)

    def finalize(self) -> None:
        self._group = None

    async def send_weights(self, weights: Tensors, global_steps: int | None = None) -> None:
        for name, tensor in weights:  # all ranks take part in making it whole
            whole = tensor.detach().contiguous()
            self._tell((name, whole.shape, whole.dtype))
            self._pass(whole)
        self._tell(None)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        while (told := self._hear()) is not None:
            name, shape, dtype = told
            tensor = torch.empty(shape, dtype=dtype)
            self._pass(tensor)
            yield name, tensor

    def _tell(self, what: Any) -> None:
        said = torch.frombuffer(bytearray(pickle.dumps(what)), dtype=torch.uint8)
        self._pass(torch.tensor([len(said)]))
        self._pass(said)

    def _hear(self) -> Any:
        length = torch.zeros(1, dtype=torch.int64)
        self._pass(length)
        said = torch.empty(int(length), dtype=torch.uint8)
        self._pass(said)
        return pickle.loads(said.numpy().tobytes())

    def _pass(self, tensor: torch.Tensor) -> None:
        """From the first rank to the others."""
        if self._group is not None:
            self._group.broadcast([tensor], BroadcastOptions()).wait()
