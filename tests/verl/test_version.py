"""One version is served alone as the run's servers served it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM lives in an environment of its own: make test-verl")

from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.backends.vllm.server import ServerOptions, VllmEngine
from lightning_core.backends.weights.folders import STATE
from lightning_core.backends.weights.sources import tiny_folder
from tests.backends.serving import ask


async def test_a_version_has_the_context_of_its_checkpoint_and_the_backend_s_settings(tmp_path: Path) -> None:
    shutil.copytree(tiny_folder(), tmp_path / "model")
    (tmp_path / STATE).write_text(json.dumps({"policy_version": 4, "context": 96}))
    backend = VerlBackend("tiny", max_batch=8, gpu_memory=0.3)
    engine = await backend.open_engine(str(tmp_path), 4)
    assert isinstance(engine, VllmEngine)
    try:
        assert engine.server.options == ServerOptions(
            dtype="float32", context=96, max_num_seqs=8, gpu_memory_utilization=0.3
        )
        assert engine.replicas.context == 96  # as the server itself says
        assert (await ask(engine, "List the boats", max_tokens=4)).policy_version == 4
    finally:
        await engine.close()
