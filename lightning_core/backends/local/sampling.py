"""Drawing the next token for a whole batch in a handful of operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lightning_core.backends.chat.completion import Completion, Options
from lightning_core.backends.chat.constraints import Matcher, Words, penalties
from lightning_core.errors import EngineError

BELOW_ONE = 1.0 - 2.0**-20
"""Keeps a point below the last cumulative sum in float32, where 0.99999999 would round to 1."""


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
        except EngineError as error:  # boundary: this reply fails, the others go on
            replies[row].error = error
    return mask_logits(logits.float(), torch.tensor(rows, device=logits.device), words)


def _matcher(reply: Completion) -> Matcher:
    assert reply.matcher is not None
    return reply.matcher


def mask_logits(logits: torch.Tensor, rows: torch.Tensor, words: Words) -> torch.Tensor:
    """logits (N, V), with minus infinity for what the masks (R, W) of these rows do not allow."""
    added = torch.from_numpy(penalties(words, logits.shape[-1])).to(logits.device)
    return logits + added if len(rows) == len(logits) else logits.index_add(0, rows, added)


@dataclass(frozen=True, slots=True)
class Draws:
    """What was drawn for N rows."""

    ids: list[int]
    logprobs: list[float]
    """At the temperature sampled with (1 for greedy), over all that the grammar allows, whatever `top_p` cut
    off.
    Not finite where the row's logits were not: its id means nothing then."""
    best: list[list[tuple[int, float]]] | None
    """The most probable ids with their logprobs, as many as the largest request for them."""


class Sampler:
    """The sampling settings of N rows as tensors; made again only when the rows change."""

    def __init__(self, options: list[Options], device: torch.device) -> None:
        self._device = device
        greedy = [o.temperature == 0.0 for o in options]
        self._all_greedy, self._any_greedy = all(greedy), any(greedy)
        self._greedy = torch.tensor(greedy, device=device)[:, None]
        scales = [o.temperature or 1.0 for o in options]
        self._scales = None if set(scales) == {1.0} else torch.tensor(scales, device=device)[:, None]
        top_ps = [o.top_p for o in options]
        self._top_p = torch.tensor(top_ps, device=device)[:, None] if min(top_ps) < 1.0 else None
        self._best = max(o.top_logprobs for o in options)

    def draw(self, logits: torch.Tensor, uniforms: list[float]) -> Draws:
        """logits (N, V), one number in [0, 1) for each row → the drawn ids.

        Inverse transform sampling: a row's draw depends on its own number only, so a seed gives the same
        reply whichever others are in the batch.
        """
        logits = logits.float()
        logprobs = torch.log_softmax(logits if self._scales is None else logits / self._scales, -1)
        ids = self._pick(logprobs, uniforms)
        chosen = logprobs.gather(1, ids)
        pairs: list[list[float]] = torch.cat((ids.double(), chosen.double()), 1).tolist()
        best = self._top(logprobs) if self._best else None
        return Draws([int(i) for i, _ in pairs], [p for _, p in pairs], best)

    def _pick(self, logprobs: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
        if self._all_greedy:
            return logprobs.argmax(-1, keepdim=True)
        probabilities = logprobs.exp()
        if self._top_p is not None:
            probabilities = _nucleus(probabilities, self._top_p)
        cumulative = probabilities.cumsum(-1)
        points = (
            torch.tensor([u * BELOW_ONE for u in uniforms], device=self._device)[:, None] * cumulative[:, -1:]
        )
        ids = torch.searchsorted(cumulative, points, right=True)  # "right" skips probability zero
        ids.clamp_(max=logprobs.shape[-1] - 1)  # a row that is not finite has no such place
        if self._any_greedy:
            ids = torch.where(self._greedy, logprobs.argmax(-1, keepdim=True), ids)
        return ids

    def _top(self, logprobs: torch.Tensor) -> list[list[tuple[int, float]]]:
        values, ids = logprobs.topk(min(self._best, logprobs.shape[-1]), -1)
        return [
            [(i, v) for i, v in zip(row, tops, strict=True) if v > float("-inf")]
            for row, tops in zip(ids.tolist(), values.tolist(), strict=True)
        ]


def _nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero all but the fewest most probable tokens whose probabilities add up to at least `top_p` (N, 1)."""
    ordered, order = probabilities.sort(-1, descending=True)
    cut = ordered.cumsum(-1) - ordered >= top_p
    cut[:, 0] = False  # the first is always among them, whatever float32 makes of `top_p`
    kept = ordered.masked_fill(cut, 0.0)
    return torch.zeros_like(probabilities).scatter_(-1, order, kept)
