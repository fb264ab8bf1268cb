"""A real server of Tinker's API on this machine's processor: SkyRL's, with its JAX engine.

    python tests/tinker/server.py MODEL_FOLDER FOLDER PORT

FOLDER holds its database and checkpoints; a server that is started there again knows what it had saved. Two
things of skyrl 0.3.0 are changed as it starts, and nothing of what it computes: pydantic refuses
`typing.TypedDict` before Python 3.12, and the engine's process would be started by `uv run`.
"""

from __future__ import annotations

import sys
import typing
from typing import Any

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]

ENGINE = "engine"
OPTIONS = {"max_lora_adapters": 8, "sample_max_num_sequences": 16, "train_micro_batch_size": 1}
"""Options of the JAX engine, which compiles each shape of a pass: fixed sizes keep those few."""


def serve(model: str, folder: str, port: int) -> None:
    """Serve until the process is ended."""
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    def engine_command(parent: list[str], config: Any) -> list[str]:
        return [sys.executable, __file__, ENGINE, *config_to_argv(config)]

    api._build_uv_run_cmd_engine = engine_command
    api.app.state.engine_config = EngineConfig(
        base_model=model,
        backend="jax",
        backend_config=OPTIONS,
        checkpoints_base=f"{folder}/checkpoints",
        database_url=f"sqlite:///{folder}/tinker.db",
    )
    uvicorn.run(api.app, host="127.0.0.1", port=port, log_level="warning")


def main() -> None:
    if sys.argv[1] == ENGINE:
        from skyrl.tinker.engine import main as run_engine

        sys.argv = [sys.argv[0], *sys.argv[2:]]
        run_engine()
    else:
        model, folder, port = sys.argv[1:]
        serve(model, folder, int(port))


if __name__ == "__main__":
    main()
