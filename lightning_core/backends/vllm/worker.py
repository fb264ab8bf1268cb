"""What runs inside vLLM's workers: weights in place, and the proof that they are there.

Named by `--worker-extension-cls`, mixed into vLLM's worker class, called over `/collective_rpc`. The usual
failure of such an update is that nothing happens, without an error, so the sum of all weights is taken on
both sides: of the folder's tensors as they are read, and of the model's parameters afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.platforms import current_platform

from lightning_core.backends.vllm.cpu import keep_weights_plain

if current_platform.is_cpu():  # before the model is loaded, which nothing else comes before
    keep_weights_plain()

OUTPUT_LAYER = "lm_head."


class WeightLoading:
    """Methods of vLLM's worker."""

    model_runner: Any

    def lightning_load(self, folder: str) -> dict[str, Any]:
        """Take the weights of a transformers folder.

        Returns sums of the absolute values of all weights: of the model `before` and `after`, and of the
        `folder`, in the model's number format; or an `error`.
        """
        model = self.model_runner.get_model()
        tensors = _Tensors(Path(folder), _tied(model), next(model.parameters()).dtype)
        before = _sum(model.parameters())
        try:
            with torch.no_grad():
                model.load_weights(iter(tensors))
        except Exception as error:  # boundary: told to who asked, by whom the server is taken out
            return {"error": f"{type(error).__name__}: {error}"}
        return {"before": before, "after": _sum(model.parameters()), "folder": tensors.sum}


class _Tensors:
    """The weights of a folder, summed up as they are read."""

    def __init__(self, folder: Path, tied: bool, dtype: torch.dtype) -> None:
        self._folder, self._tied, self._dtype = folder, tied, dtype
        self.sum = 0.0

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        files = sorted(self._folder.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"no .safetensors in {str(self._folder)!r}")
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    if self._tied and name.startswith(OUTPUT_LAYER):
                        continue
                    tensor = tensors.get_tensor(name)
                    self.sum += _sum([tensor.to(self._dtype)])
                    yield name, tensor


def _tied(model: Any) -> bool:
    return bool(getattr(model.config, "tie_word_embeddings", False))


def _sum(tensors: Any) -> float:
    return float(sum(tensor.abs().sum(dtype=torch.float64).item() for tensor in tensors))
