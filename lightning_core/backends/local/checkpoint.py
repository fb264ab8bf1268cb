"""Checkpoints: a folder that appears whole or not at all.

model/                a transformers folder (with LoRA: a peft adapter folder that names its base)
moments.safetensors   AdamW's state, until the run has finished
critic.safetensors    weights and AdamW's state of the critic, if an algorithm needed one
state.json            policy version, context, steps made
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

# safetensors takes it from numpy, which recurses without end if two threads ask first at the same time
import numpy.ctypeslib  # noqa: F401
import peft
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from lightning_core.backends.local.policy import Policy
from lightning_core.backends.weights.folders import (
    ADAPTER,
    ADAPTER_CONFIG,
    STATE,
    WEIGHTS,
    Files,
    read_state,
    recover,
    write_folder,
)
from lightning_core.backends.weights.model import plain_files, read_files
from lightning_core.errors import ModelError

MOMENTS, CRITIC = "moments.safetensors", "critic.safetensors"
Tensors = dict[str, dict[str, torch.Tensor]]
"""Named tensors, by the name of the file they are in."""


class Checkpoints:
    """Writes and reads checkpoints of one policy; what never changes (tokenizer, config) is prepared once."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._fixed: dict[str, bytes] | None = None

    def save(self, folder: Path, tensors: Tensors, state: dict[str, Any]) -> None:
        """Write `folder`, replacing an older one of that name. Raises ModelError if the disk refuses."""
        files = {f"model/{name}": content for name, content in self._model_files().items()}
        write_folder(folder, {**files, **tensors, STATE: json.dumps(state).encode()})

    def export(self, folder: Path) -> None:
        """Write the policy as it serves as a transformers folder. Raises ModelError if the disk refuses."""
        policy = self._policy
        served = policy.serving_weights().items()  # with LoRA, a second set of all weights
        weights = {name: weight.cpu() for name, weight in served if name not in policy.tied_names}
        write_folder(folder, {**plain_files(policy.model), WEIGHTS: weights})

    def load(self, folder: Path) -> tuple[Tensors, dict[str, Any]]:
        """Put the folder's weights into the policy; returns what else was saved.

        Raises ModelError naming the folder if a part is missing or does not fit.
        """
        recover(folder)
        try:
            state = read_state(folder)
            packed, asked = state.get("load_in_4bit", False), self._policy.in_4bit
            if packed is not asked:
                raise ValueError(f"its lora option load_in_4bit is {packed!r}, that of this run is {asked!r}")
            names = [MOMENTS] * state.get("moments", True) + [CRITIC] * (
                state.get("critic_steps") is not None
            )
            tensors = {name: load_file(folder / name) for name in names}
            self._put(folder / "model")
            self._check_finite(tensors)
        except (ModelError, OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise ModelError(
                f"can't go on from checkpoint {str(folder)!r}: {error}; give a folder written by `save` "
                "with the same model and the same lora options"
            ) from error
        return tensors, state

    def _check_finite(self, tensors: Tensors) -> None:
        """Raise ValueError if a number among the tensors, or the policy's own, is not finite."""
        own = {f"model/{name}": weight for name, weight in self._policy.network.named_parameters()}
        named = {f"{file}/{name}": w for file, of_file in tensors.items() for name, w in of_file.items()}
        for name, tensor in {**own, **named}.items():
            if not tensor.isfinite().all():
                raise ValueError(f"{name} is not finite (delete the folder, and the one before is taken)")

    def _put(self, folder: Path) -> None:
        policy = self._policy
        if policy.lora is None:
            missing, unexpected = policy.base.load_state_dict(load_file(folder / WEIGHTS), strict=False)
            wrong = [*unexpected, *(name for name in missing if name not in policy.tied_names)]
        else:
            _check_same(policy.network, folder)
            loaded = peft.set_peft_model_state_dict(policy.network, load_file(folder / ADAPTER))
            wrong = [*loaded.unexpected_keys, *(n for n in loaded.missing_keys if "lora_" in n)]
        if wrong:
            raise ValueError(f"weights that don't fit: {wrong[:3]}")

    def _model_files(self) -> Files:
        if self._fixed is None:
            self._fixed = _fixed_files(self._policy)
        policy = self._policy
        if policy.lora is None:
            weights = {n: w for n, w in policy.base.state_dict().items() if n not in policy.tied_names}
            return {**self._fixed, WEIGHTS: weights}
        return {**self._fixed, ADAPTER: peft.get_peft_model_state_dict(policy.network)}


def forget_moments(folder: Path) -> None:
    """Delete AdamW's state from a checkpoint. A kill on the way leaves a checkpoint that can be loaded.
    Raises ModelError for a damaged one."""
    state = read_state(folder)
    draft = folder / f".{STATE}"  # renamed over the old one, which other folders may hold as well
    draft.touch(mode=0o600)
    draft.write_text(json.dumps({**state, "moments": False}))
    draft.replace(folder / STATE)
    (folder / MOMENTS).unlink(missing_ok=True)


def _check_same(network: torch.nn.Module, folder: Path) -> None:
    """Raise ValueError unless the folder's adapters are of the network's options."""
    assert isinstance(network, peft.PeftModel)
    present = network.peft_config["default"].to_dict()
    saved = json.loads((folder / ADAPTER_CONFIG).read_text())
    for option in ("r", "lora_alpha", "target_modules"):
        here, there = (sorted(v) if isinstance(v := c[option], list | set) else v for c in (present, saved))
        if here != there:
            raise ValueError(f"its lora option {option} is {there!r}, that of this run is {here!r}")


def _fixed_files(policy: Policy) -> dict[str, bytes]:
    """The files of a checkpoint's model folder that training does not change, by name."""
    if policy.lora is None:
        return plain_files(policy.model)
    with tempfile.TemporaryDirectory() as name:
        assert isinstance(policy.network, peft.PeftModel)
        policy.model.tokenizer.save_pretrained(name)
        policy.network.peft_config["default"].save_pretrained(name)
        return read_files(Path(name))
