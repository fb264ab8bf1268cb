"""Attention over a token tree by one kernel: flex attention, with the tree as a mask of blocks.

Chunks of plain products, as `packing.TreePlan` has them, start some hundred kernels a layer and keep every
score for the gradient. This is one kernel that keeps one number for each query, skips the blocks of which no
token sees another, and writes no mask of T * T pairs. torch compiles it, once for each model and machine.

Dong et al., Flex Attention, arXiv 2412.05496.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

if TYPE_CHECKING:
    from lightning_core.backends.local.attention import AttentionForm, Sees

logger = logging.getLogger(__name__)
BLOCK = 128
"""Queries, and keys, of a block."""
TOLERANCE = 0.02
"""The share of its length by which the kernel's result in bfloat16 may be apart from float64."""
Flex = Callable[..., torch.Tensor]


class TreeKernel:
    """Attention of a pack of T tokens in depth-first order, by one kernel for each call."""

    def __init__(self, ends: torch.Tensor, depths: torch.Tensor, flex: Flex) -> None:
        """`ends` (T,) as in `Pack`, `depths` (T,) the position of each token in its sequence."""
        self._ends, self._depths, self._flex = ends, depths, flex
        self._masks: dict[Sees | None, BlockMask] = {}

    @staticmethod
    def takes(query: torch.Tensor, form: AttentionForm) -> bool:
        """Whether it computes such a call. On a GPU it is tried and taken in bfloat16 alone."""
        plain = form.softcap is None and form.sinks is None
        return plain and (query.device.type == "cpu" or _number(query) == torch.bfloat16)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: AttentionForm
    ) -> torch.Tensor:
        """query (T, H, D), key (T, K, D) and value (T, K, V) → (T, H, V)."""
        if form.sees not in self._masks:
            self._masks[form.sees] = block_mask(self._ends, self._depths, form.sees)
        dtype = _number(query)
        found = self._flex(
            *(each.transpose(0, 1)[None].to(dtype) for each in (query, key, value)),
            block_mask=self._masks[form.sees],
            scale=form.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return found[0].transpose(0, 1)


def _number(query: torch.Tensor) -> torch.dtype:
    """The number format of a product with it."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype


def block_mask(ends: torch.Tensor, depths: torch.Tensor, sees: Sees | None) -> BlockMask:
    """Which blocks a block of queries reads in whole, and which in part.

    Token k is seen by itself and by those after it up to `ends[k]`. So a block of keys is seen in whole if
    the first of its ends lies beyond the last query, and not at all if the last one lies before the first.
    """
    count, device = len(ends), ends.device
    blocks = -(-count // BLOCK)
    padded = torch.nn.functional.pad(ends, (0, blocks * BLOCK - count)).view(blocks, BLOCK)
    first = torch.arange(blocks, device=device) * BLOCK
    last = (first + BLOCK - 1).clamp(max=count - 1)
    earlier, same = first[None] < first[:, None], first[None] == first[:, None]
    seen = same | (earlier & (padded.amax(1)[None] > first[:, None]))
    whole = earlier & (padded.amin(1)[None] > last[:, None])
    if sees is not None:
        whole = torch.zeros_like(whole)
    ends = padded.flatten()

    def tree(batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (k <= q) & (q < ends[k])

    def near(batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        assert sees is not None
        return (k <= q) & (q < ends[k]) & sees.mask(batch, head, depths[q], depths[k])

    return BlockMask.from_kv_blocks(
        *_listed(seen & ~whole),
        *_listed(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=tree if sees is None else near,
        seq_lengths=(count, count),
    )


def _listed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(Q, K) → how many blocks of keys each block of queries reads, and which."""
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(torch.int32)[None, None], order.to(torch.int32)[None, None]


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of a network's attention."""

    queries: int
    keys: int
    size: int


@functools.cache
def compiled(heads: Heads) -> Flex | None:
    """Flex attention as this machine's GPU runs it, for any number of tokens, or None.

    It is tried first on two small trees, with its gradient, beside plain products in float64.
    """
    flex: Flex = torch.compile(flex_attention, dynamic=True)
    try:
        apart = max(_apart(flex, heads, count, torch.device("cuda")) for count in (BLOCK + 37, 3 * BLOCK))
    except Exception as error:  # boundary: no compiler, or a card that it does not know
        logger.warning("torch can't compile attention here, so updates take slower products: %s", error)
        return None
    if not apart < TOLERANCE:
        logger.warning(
            "attention as torch compiles it here is %.2g of its length from plain products, so updates take "
            "those, which are slower",
            apart,
        )
        return None
    return flex


@torch.enable_grad()
def _apart(flex: Flex, heads: Heads, count: int, device: torch.device) -> float:
    """How far result and gradient are from plain products, as a share of their length, the most."""
    places = torch.arange(count, device=device)
    # a beginning that two branches share
    ends = torch.where(places < count // 3, count, torch.where(places < count // 2, count // 2, count))
    draw, learns = torch.Generator().manual_seed(0), device.type == "cuda"  # no gradient on a processor
    given = [
        torch.randn((count, n, heads.size), generator=draw).to(device, torch.bfloat16).requires_grad_(learns)
        for n in (heads.queries, heads.keys, heads.keys)
    ]
    mask, scale = block_mask(ends, places, None), heads.size**-0.5
    query, key, value = (each.transpose(0, 1)[None] for each in given)
    found = flex(query, key, value, block_mask=mask, scale=scale, enable_gqa=heads.queries != heads.keys)[0]
    query, key, value = (each.transpose(0, 1).double() for each in given)
    key, value = (each.repeat_interleave(heads.queries // heads.keys, 0) for each in (key, value))
    hidden = (places > places[:, None]) | (ends <= places[:, None])
    scores = (query @ key.transpose(1, 2) * scale).masked_fill(hidden, float("-inf"))
    wanted = scores.softmax(-1) @ value
    pairs = [(found, wanted)]
    if learns:
        grown = torch.randn(wanted.shape, generator=draw).to(device, torch.float64)
        gradients = (torch.autograd.grad(out, given, grown.to(out.dtype)) for out in (found, wanted))
        pairs += zip(*gradients, strict=True)
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)
