"""The one attention function through which every model here runs, in serving and in training.

transformers lets a model call an attention function and a mask function by name. Ours do nothing themselves:
query, key and value go to the `Plan` that was passed to the model's forward, with the `AttentionForm` that
the model asks for. A plan knows which token may see which: the engine's plan writes into its key/value
slots, the trainer's plan follows the token tree. The model code stays untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import causal_mask_function

from lightning_core.errors import ModelError

NAME = "lightning_core"
ADVICE = "Take a model of a family that docs/own-model.md calls exact, or a backend that runs this one"
UNSUPPORTED = ("position_bias",)
"""Attention variants no plan knows; a model that asks for one is refused rather than served wrongly."""


class Sees:
    """Which of the tokens before it, in its own sequence, a token sees: the model's mask, by positions."""

    def __init__(self, mask: Callable[..., torch.Tensor], reach: int | None) -> None:
        """`mask` is transformers' function of batch, head, query and key; `reach` the window or chunk."""
        self.mask, self.reach = mask, reach

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Positions (..., Q, 1) and (..., 1, L) → whether each query sees each key, (..., Q, L)."""
        first = torch.zeros((), dtype=torch.int64, device=queries.device)
        return self.mask(first, first, queries, keys)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionForm:
    """The arguments of a call of attention beside query, key and value."""

    scale: float
    sees: Sees | None = None
    """None: all tokens before it."""
    softcap: float | None = None
    """Scores are pressed between minus this and this."""
    sinks: torch.Tensor | None = None
    """(H,) score of a token that is always seen and has no value."""


class Plan(Protocol):
    """Who sees whom in one forward pass over T packed tokens; made for one pass."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: AttentionForm
    ) -> torch.Tensor:
        """query (T, H, D), key (T, K, D) and value (T, K, V) with H a multiple of K → (T, H, V)."""


def weights(
    query: torch.Tensor,
    key: torch.Tensor,
    bias: torch.Tensor,
    form: AttentionForm,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query (N, R, D), key (N, L, D), a bias that expands to (N, R, L), sinks (N, R, 1) → what each key's
    value counts, (N, R, L)."""
    if form.softcap is None:
        scores = torch.baddbmm(bias, query, key.transpose(1, 2), alpha=form.scale)
    else:
        raw = torch.bmm(query, key.transpose(1, 2)) * (form.scale / form.softcap)
        scores = raw.tanh() * form.softcap + bias
    if sinks is None:
        return scores.softmax(-1)
    return torch.cat((scores, sinks.to(scores.dtype)), -1).softmax(-1)[..., :-1]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Sees | None,
    *,
    plan: Plan | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that is registered; query (1, H, T, D), result (1, T, H, V)."""
    if plan is None:
        raise _unknown(module, "does not hand extra arguments to its attention function")
    for option in UNSUPPORTED:
        if options.get(option) is not None:
            raise _unknown(module, f"asks for {option!r}, which no plan knows")
    if attention_mask is not None and not isinstance(attention_mask, Sees):
        raise _unknown(module, "makes a mask of its own, which no plan can read")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    form = AttentionForm(scale, attention_mask, softcap, s_aux)
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    out = plan.attend(query, key, value, form)
    return out.contiguous().unsqueeze(0), None


def _unknown(module: torch.nn.Module, why: str) -> ModelError:
    family = getattr(getattr(module, "config", None), "model_type", type(module).__name__)
    return ModelError(
        f"the local backend can't run models of the family {family!r}: its attention {why}. {ADVICE}"
    )


def mask(
    *, mask_function: Callable[..., torch.Tensor], local_size: int | None = None, **_: Any
) -> Sees | None:
    """The mask function that is registered. What it returns reaches `attend` as the attention mask."""
    return None if mask_function is causal_mask_function else Sees(mask_function, local_size)


def use_plans(network: PreTrainedModel) -> None:
    """Make `network` take its attention from the plan given to each forward pass.

    Raises ModelError if the architecture does not let its attention function be chosen.
    """
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)
    network.set_attn_implementation(NAME)
    if network.config._attn_implementation != NAME:
        raise ModelError(
            f"the local backend can't run models of the family {network.config.model_type!r}: transformers "
            f"does not let its attention function be chosen. {ADVICE}"
        )


def leave_plans(network: PreTrainedModel) -> None:
    """Give it its own attention again."""
    network.set_attn_implementation("sdpa" if network._supports_sdpa else "eager")


def takes_plans(network: PreTrainedModel) -> bool:
    """Whether it takes its attention from plans; else it runs with its own, on transformers' caches."""
    return bool(network.config._attn_implementation == NAME)


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
    out = network(**packed(tokens, positions, plan), logits_to_keep=keep)
    logits: torch.Tensor = out.logits[0]
    return logits


def packed(tokens: torch.Tensor, positions: torch.Tensor, plan: Plan) -> dict[str, Any]:
    """Arguments of a forward pass over packed tokens.

    The mask of ones says that all belong together: without it transformers looks for sequences by itself.
    """
    ones = torch.ones_like(tokens)[None]
    return {
        "input_ids": tokens[None],
        "attention_mask": ones,
        "position_ids": positions[None],
        "use_cache": False,
        "plan": plan,
    }


# what a network asks for ----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of attention in a forward pass."""

    slot: int
    """Whose keys and values it reads; calls that share them have the same."""
    heads: int
    """Key heads (K)."""
    key_size: int
    value_size: int
    sees: Sees | None


class _Survey:
    """Notes the calls of a pass, and answers with zeros (`Plan`)."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: AttentionForm
    ) -> torch.Tensor:
        pairs = [(k.data_ptr(), v.data_ptr()) for k, v in self._kept]
        own = (key.data_ptr(), value.data_ptr())
        if own not in pairs:
            pairs.append(own)
            self._kept.append((key, value))
        self.calls.append(
            AttentionCall(pairs.index(own), key.shape[1], key.shape[2], value.shape[2], form.sees)
        )
        return query.new_zeros((*query.shape[:2], value.shape[-1]))


@torch.no_grad()
def survey(network: PreTrainedModel) -> tuple[AttentionCall, ...]:
    """The calls of attention that each forward pass makes, in their order."""
    plan, places = _Survey(), torch.arange(2, device=network.get_input_embeddings().weight.device)
    network_logits(network, places, places, plan, places)
    return tuple(plan.calls)
