"""A vLLM server for one version of a run's weights, by the settings of the servers it was trained with."""

from __future__ import annotations

from lightning_core.backends.local.reading import Content
from lightning_core.backends.verl.settings import VerlSettings, find_device
from lightning_core.backends.vllm.engine import open_vllm
from lightning_core.backends.vllm.server import ServerOptions
from lightning_core.gateway.engine_cache import VersionEngine


async def open_version(settings: VerlSettings, source: str, version: int) -> VersionEngine:
    """The server, once it answers. The context is the checkpoint's where the settings have none."""
    content = Content(source, str(settings.model))
    folder = content.folder
    options = ServerOptions(
        dtype=settings.number_format(find_device()),
        context=settings.context or content.context,
        max_num_seqs=settings.max_batch,
        gpu_memory_utilization=settings.gpu_memory,
        tensor_parallel_size=settings.tensor_parallel,
    )
    return await open_vllm(folder if folder is not None else content.source, version, options=options)
