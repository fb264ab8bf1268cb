"""What vLLM's CPU build needs beyond what a GPU's does. Nothing here is used on a GPU.

The CPU build is for tests, small models and machines without a GPU. It differs in four ways that matter:

1. It packs the weights of linear layers into a form of its own when it has loaded them, and drops the plain
   ones. Weights loaded later would change nothing. `keep_weights_plain` has it multiply by the plain weights.
2. It binds its threads to the first cores, so that two servers on one machine share a core while others idle.
   `ENVIRONMENT` leaves that to the system.
3. It keeps keys and values in main memory, as many GiB as VLLM_CPU_KVCACHE_SPACE says.
4. Its engine dies of a request with a seed whose prompt does not fit one step ("CPU Generator does not use
   offset", vLLM 0.28). `ARGUMENTS` has every prompt computed in one step; so must any other who starts it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

ENVIRONMENT = MappingProxyType({"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"})
"""Set where the user has not set it."""
ARGUMENTS = ("--enforce-eager", "--no-enable-chunked-prefill")
"""Compiling takes a minute at every start and gains little here; for the second see above."""


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
