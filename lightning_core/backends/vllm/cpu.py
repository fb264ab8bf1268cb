"""What vLLM's CPU build needs beyond what a GPU's does. Nothing here is used on a GPU.

The CPU build is for tests, small models and machines without a GPU. It differs in five ways that matter:

1. It packs the weights of linear layers into a form of its own when it has loaded them, and drops the plain
   ones. Weights loaded later would change nothing. `keep_weights_plain` has it multiply by the plain weights.
2. It binds its threads to the first cores, so that two servers on one machine share a core while others idle.
   `ENVIRONMENT` leaves that to the system.
3. It keeps keys and values in main memory, by default in a large share of all there is. `ARGUMENTS` say
   1 GiB; VLLM_CPU_KVCACHE_SPACE, in GiB, goes before them.
4. Its engine dies of a request with a seed whose prompt does not fit one step ("CPU Generator does not use
   offset", vLLM 0.28). `ARGUMENTS` has every prompt computed in one step; so must any other who starts it.
5. It computes in a process beside the engine's, so that the threads of both can be bound. As they are not
   (see 2), `ENVIRONMENT` has the engine compute by itself: measured on two cores it starts in 17 s, not 24,
   samples a fifth to a half more tokens a second, and takes .7 GB less.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

ENVIRONMENT = MappingProxyType({"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
"""Set where the user has not set it."""
ARGUMENTS = ("--enforce-eager", "--no-enable-chunked-prefill", "--kv-cache-memory-bytes", str(1 << 30))
"""Compiling takes a minute at every start and gains little here; for the others see above."""


def is_cpu_build() -> bool:
    """Whether the vLLM of this environment is its CPU build."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # the build of that name brings no other metadata
        return True


def keep_weights_plain() -> None:
    """To be called in vLLM's worker before it loads a model."""
    import torch
    from vllm.model_executor.layers import utils

    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = plain
