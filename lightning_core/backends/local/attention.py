"""The one attention function through which every model here runs, in serving and in training.

transformers lets a model call an attention function by name. Ours does nothing itself: it hands query, key
and value to the `Plan` that was passed to the model's forward. A plan knows which token may see which: the
engine's plan writes into its key/value slots, the trainer's plan follows the token tree. The model code stays
untouched.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers import AttentionInterface, PreTrainedModel

from lightning_core.errors import ModelError

NAME = "lightning_core"
ADVICE = "Take a model of a family that docs/own-model.md calls exact, or a backend that runs this one"
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Attention variants no plan knows; a model that asks for one is refused rather than served wrongly."""


class Plan(Protocol):
    """Who sees whom in one forward pass over T packed tokens."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """query (T, H, D), key and value (T, K, D) with H a multiple of K → (T, H, D)."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    plan: Plan | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The function that is registered; query (1, H, T, D), result (1, T, H, D)."""
    if plan is None:
        raise ModelError(
            f"{type(module).__name__} does not hand extra arguments to its attention function, so the local "
            f"backend can't run this architecture. {ADVICE}"
        )
    for option in UNSUPPORTED:
        if options.get(option) is not None:
            raise ModelError(
                f"{type(module).__name__} uses {option!r}, which the local backend does not know. {ADVICE}"
            )
    layer = module.layer_idx
    assert isinstance(layer, int)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out = plan.attend(
        layer, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), scale
    )
    return out.unsqueeze(0), None


def use_plans(network: PreTrainedModel) -> None:
    """Make `network` take its attention from the plan given to each forward pass.

    Raises ModelError if the architecture does not let its attention function be chosen.
    """
    AttentionInterface.register(NAME, attend)
    network.set_attn_implementation(NAME)
    if network.config._attn_implementation != NAME:
        raise ModelError(
            f"{type(network).__name__} does not let its attention function be chosen, so the local backend "
            f"can't run it. {ADVICE}"
        )


def network_logits(
    network: torch.nn.Module,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    plan: Plan,
    keep: torch.Tensor,
) -> torch.Tensor:
    """A forward pass over packed tokens: tokens and positions (T,), keep (N,) indices into them → logits (N,
    V).

    Only what is kept goes through the output layer.
    """
    out = network(
        input_ids=tokens[None], position_ids=positions[None], use_cache=False, logits_to_keep=keep, plan=plan
    )
    logits: torch.Tensor = out.logits[0]
    return logits
