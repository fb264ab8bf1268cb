"""Drawing the next token for a whole batch in a handful of operations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import pad

from lightning_core.backends.serving.completion import Completion, SamplingOptions
from lightning_core.backends.serving.constraints import Matcher, Words, penalties
from lightning_core.errors import ConstraintError
from lightning_core.records.sequences import pack_mask

BELOW_ONE = 1.0 - 2.0**-20
"""Keeps a point below the last cumulative sum in float32, where 0.99999999 would round to 1."""
BLOCK = 1024
"""Tokens in a block. A vocabulary of more is drawn from in two steps: a block, then a token."""


def hold(logits: torch.Tensor, replies: list[Completion]) -> torch.Tensor:
    """logits (N, V) with minus infinity where a reply's grammar allows no token.

    A reply whose grammar can't go on has an error then.
    """
    rows = [row for row, reply in enumerate(replies) if reply.matcher is not None and reply.error is None]
    if not rows:
        return logits
    vocabulary = logits.shape[-1]
    words = np.zeros((len(rows), (vocabulary + 31) // 32), np.uint32)
    for row, mask in zip(rows, words, strict=True):
        try:
            _matcher(replies[row]).fill(mask)
        except ConstraintError as error:  # boundary: this reply fails, the others go on
            replies[row].error = error
    return mask_logits(logits.float(), torch.tensor(rows, device=logits.device), words)


def _matcher(reply: Completion) -> Matcher:
    assert reply.matcher is not None
    return reply.matcher


def penalise(logits: torch.Tensor, replies: list[Completion]) -> torch.Tensor:
    """logits (N, V) with the biases and penalties that the replies' requests ask for."""
    rows = [row for row, reply in enumerate(replies) if reply.options.shaping.penalises]
    if not rows:
        return logits
    logits = logits.float().clone()
    for row in rows:
        _penalise(logits[row], replies[row])
    return logits


def _penalise(own: torch.Tensor, reply: Completion) -> None:
    """In place, on the logits (V,) after one reply."""
    shaping, device = reply.options.shaping, own.device
    if shaping.bias:
        ids, added = zip(*shaping.bias, strict=True)
        own[torch.tensor(ids, device=device)] += torch.tensor(added, device=device)
    if shaping.repetition != 1.0:
        seen = torch.tensor(list({*reply.prompt_ids, *reply.ids}), device=device)
        found = own[seen]
        own[seen] = torch.where(found > 0, found / shaping.repetition, found * shaping.repetition)
    if reply.ids and (shaping.presence or shaping.frequency):
        times = Counter(reply.ids)
        counts = torch.tensor(list(times.values()), dtype=torch.float32, device=device)
        own[torch.tensor(list(times), device=device)] -= shaping.frequency * counts + shaping.presence


def mask_logits(logits: torch.Tensor, rows: torch.Tensor, words: Words) -> torch.Tensor:
    """logits (N, V), with minus infinity for what the masks (R, W) of these rows do not allow."""
    added = torch.from_numpy(penalties(words, logits.shape[-1])).to(logits.device)
    return logits + added if len(rows) == len(logits) else logits.index_add(0, rows, added)


@dataclass(frozen=True, slots=True)
class Draws:
    """The draws for N rows."""

    ids: list[int]
    logprobs: list[float]
    """At the temperature sampled with (1 for greedy), among the tokens that were left to sample from.
    Not finite where the row's logits were not: its id means nothing then."""
    best: list[list[tuple[int, float]]] | None
    """The most probable ids with their logprobs, as many as the largest request for them."""
    kept: list[bytes | None]
    """For each row that is to be recorded so: the tokens that were left (`sequences.pack_mask`)."""


class Sampler:
    """The sampling settings of N rows as tensors; made again only when the rows change."""

    def __init__(self, options: list[SamplingOptions], device: torch.device) -> None:
        self._device = device
        greedy = [o.temperature == 0.0 for o in options]
        self._all_greedy, self._any_greedy = all(greedy), any(greedy)
        self._greedy = torch.tensor(greedy, device=device)[:, None]
        scales = [o.temperature or 1.0 for o in options]
        self._scales = None if set(scales) == {1.0} else torch.tensor(scales, device=device)[:, None]
        cuts = [o.cuts for o in options]
        self._cuts = torch.tensor(cuts, device=device)[:, None] if any(cuts) else None
        self._recorded = [row for row, o in enumerate(options) if o.cuts and o.records]
        self._top_p = torch.tensor([o.top_p for o in options], device=device)[:, None]
        self._top_k = torch.tensor([o.shaping.top_k or 1 << 30 for o in options], device=device)[:, None]
        self._min_p = torch.tensor([o.shaping.min_p for o in options], device=device)[:, None]
        self._best = max(o.top_logprobs for o in options)

    def draw(self, logits: torch.Tensor, uniforms: list[float]) -> Draws:
        """logits (N, V), one number in [0, 1) for each row → the drawn ids.

        Inverse transform sampling: a row's draw depends on its own number only, so a seed gives the same
        reply whichever others are in the batch. Rounding differs between batches, and a number that lies
        within it of a bound between two tokens may draw either. Blocks leave few bounds to lie near: SmolLM2
        with 49,152 tokens changed 67 of 100,000 draws in one step, and 5 in two.
        """
        logits = logits.float()
        logprobs = torch.log_softmax(logits if self._scales is None else logits / self._scales, -1)
        kept: list[bytes | None] = [None] * len(uniforms)
        if self._cuts is not None:
            left = _left(logprobs.exp(), self._top_p, self._top_k, self._min_p)
            among = logprobs.masked_fill(~left, float("-inf"))
            logprobs = torch.where(self._cuts, among - among.logsumexp(-1, keepdim=True), logprobs)
            for row in self._recorded:
                kept[row] = pack_mask(left[row].cpu().numpy())
        ids = self._pick(logprobs, uniforms)
        chosen = logprobs.gather(1, ids)
        pairs: list[list[float]] = torch.cat((ids.double(), chosen.double()), 1).tolist()
        best = self._top(logprobs) if self._best else None
        return Draws([int(i) for i, _ in pairs], [p for _, p in pairs], best, kept)

    def _pick(self, logprobs: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
        if self._all_greedy:
            return logprobs.argmax(-1, keepdim=True)
        ids = _invert(logprobs.exp(), uniforms)
        if self._any_greedy:
            ids = torch.where(self._greedy, logprobs.argmax(-1, keepdim=True), ids)
        return ids

    def _top(self, logprobs: torch.Tensor) -> list[list[tuple[int, float]]]:
        values, ids = logprobs.topk(min(self._best, logprobs.shape[-1]), -1)
        return [
            [(i, v) for i, v in zip(row, tops, strict=True) if v > float("-inf")]
            for row, tops in zip(ids.tolist(), values.tolist(), strict=True)
        ]


def _invert(shares: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
    """shares (N, V) of probability, one number in [0, 1) for each row → ids (N, 1).

    A number has 53 bits: the upper 26 draw the block, the others the token in it.
    """
    rows, vocabulary = shares.shape
    if vocabulary <= BLOCK:
        return _search(shares, uniforms)
    blocks = pad(shares, (0, -vocabulary % BLOCK)).view(rows, -1, BLOCK)
    lower, upper = zip(*(math.modf(u * 2.0**26) for u in uniforms), strict=True)
    block = _search(blocks.sum(-1), [number / 2.0**26 for number in upper])
    ids = block * BLOCK + _search(blocks[torch.arange(rows, device=block.device), block[:, 0]], lower)
    return ids.clamp_(max=vocabulary - 1)


def _search(shares: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """The first place in each row at which the shares so far exceed the row's part of their sum."""
    cumulative = shares.cumsum(-1)
    points = torch.tensor([u * BELOW_ONE for u in uniforms], device=shares.device)[:, None]
    ids = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)  # "right" skips zero
    return ids.clamp_(max=shares.shape[-1] - 1)  # a row that is not finite has no such place


def _left(
    probabilities: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """(N, V) the tokens that are left to sample from, at least the most probable one.

    `min_p` and `top_k` cut first, then `top_p`: of what they leave, the fewest most probable tokens whose
    probabilities add up to at least that share (N, 1).
    """
    ordered, order = probabilities.sort(-1, descending=True)
    ranks = torch.arange(ordered.shape[-1], device=ordered.device)
    left = (ranks < top_k) & (ordered >= min_p * ordered[:, :1])
    share = ordered.where(left, 0.0)
    left &= (share.cumsum(-1) - share < top_p * share.sum(-1, keepdim=True)) | (top_p >= 1.0)
    left &= ordered > 0.0  # what the grammar does not allow
    left[:, 0] = True
    return torch.zeros_like(left).scatter_(-1, order, left)
