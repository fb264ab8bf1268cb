"""A real server of Tinker's API on this machine's processor: SkyRL's, with its JAX engine and the tiny model.

    .venv-tinker/bin/python -m research.tinker.server                # until Ctrl-C; prints its address
    .venv-tinker/bin/python -m research.tinker.server COMMAND ...    # as long as the command runs

The command finds the address in TINKER_BASE_URL. Two things of skyrl 0.3.0 are changed as it starts, and
nothing of what it computes: pydantic refuses `typing.TypedDict` before Python 3.12, and the engine's process
would be started by `uv run`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import typing
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typing_extensions

from lightning_core.backends.weights.sources import tiny_folder

ROOT = Path(__file__).parents[2]
COMPILED = ROOT / ".data" / "tinker" / "jax"
"""JAX keeps its compiled programs here from one server to the next."""
URL: Final = "TINKER_BASE_URL"
API, ENGINE = "--api", "--engine"
OPTIONS = {"max_lora_adapters": 16, "sample_max_num_sequences": 16, "train_micro_batch_size": 1}
"""Options of the JAX engine, which compiles each shape of a pass: fixed sizes keep those few."""


@dataclass
class Server:
    """The server's process. It may be killed, and started again on the same port and folder.

    The folder has its database, checkpoints and log; a server started there again knows what it had saved.
    """

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once it answers. Raises RuntimeError, with the end of its log, if it ends before."""
        COMPILED.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(COMPILED),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, __file__, API, str(tiny_folder()), str(self.folder), str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        while not self._answers():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended: {(self.folder / 'log').read_text()[-4000:]}")
            time.sleep(0.5)

    def kill(self) -> None:
        """End it and its engine at once."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server until the end of the block, whose address is in the environment meanwhile."""
    server, before = Server(folder, free_port()), os.environ.get(URL)
    try:
        server.start()
        os.environ[URL] = server.url
        yield server
    finally:
        server.kill()
        if before is None:
            os.environ.pop(URL, None)
        else:
            os.environ[URL] = before


def end_with(parent: int) -> None:
    """End this process and its engine as soon as the process that started it has gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def serve(model: str, folder: str, port: int) -> None:
    """Answer requests in this process until it is ended, or the one that started it."""
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    def engine_command(parent: list[str], config: Any) -> list[str]:
        return [sys.executable, __file__, ENGINE, *config_to_argv(config)]

    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    api._build_uv_run_cmd_engine = engine_command
    api.app.state.engine_config = EngineConfig(
        base_model=model,
        backend="jax",
        backend_config=OPTIONS,
        checkpoints_base=f"{folder}/checkpoints",
        database_url=f"sqlite:///{folder}/tinker.db",
    )
    uvicorn.run(api.app, host="127.0.0.1", port=port, log_level="warning")


def main(arguments: list[str]) -> int:
    """Serve for a command, or until Ctrl-C; returns the command's exit status."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        print(f"a server of Tinker's API answers at {server.url}", flush=True)
        if arguments:
            return run(arguments)
        with suppress(KeyboardInterrupt):
            signal.pause()
    return 0


def run(command: list[str]) -> int:
    """Wait for the command; returns its exit status. Ctrl-C reaches it too, and it ends in its own time."""
    with subprocess.Popen(command) as job:
        while True:
            with suppress(KeyboardInterrupt):
                return job.wait()


if __name__ == "__main__":
    if sys.version_info < (3, 12):
        typing.TypedDict = typing_extensions.TypedDict
    match sys.argv[1:]:
        case [str(mode), *rest] if mode == ENGINE:
            from skyrl.tinker.engine import main as run_engine

            sys.argv = [sys.argv[0], *rest]
            run_engine()
        case [str(mode), model, folder, port] if mode == API:
            serve(model, folder, int(port))
        case given:
            sys.exit(main(given))
