"""Networks that keep state outside attention, and transformers' caches that hold it.

Linear attention, convolutions and state spaces mix the tokens of a sequence by more than the attention
function, so the tokens of several sequences can't lie in one sequence. Such a network is known by the layers
of its cache, and what it takes exactly, a padded batch or several tokens after a state, is measured.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel, cache_utils

from lightning_core.errors import UnsupportedError

TOLERANCE = 2e-3
"""Nats by which batching, or going on from a state, may move a log-probability of a float32 network."""


# one pass -------------------------------------------------------------------------------------
class CachedNetwork:
    """A network that goes on from transformers' cache."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self._takes = set(inspect.signature(network.forward).parameters)
        names = [name for name in ("cache", "past_key_values", "cache_params") if name in self._takes]
        if not names:
            raise _no_cache(network)
        self._name = names[0]

    def __call__(
        self, ids: Sequence[Sequence[int]], cache: Any | None, done: Sequence[int]
    ) -> tuple[torch.Tensor, Any]:
        """The next tokens of B sequences that have `done` tokens in `cache`, each → logits (B, V) after the
        last one, and the cache with them.

        Where the sequences are of unlike length, the shorter ones are padded on their left, in the cache and,
        where there is none, in `ids`.
        """
        device = self.network.get_input_embeddings().weight.device
        count, longest = max(map(len, ids)), max(done)
        tokens = torch.tensor([[0] * (count - len(own)) + list(own) for own in ids], device=device)
        places = torch.arange(count, device=device)
        missing = torch.tensor([count - len(own) for own in ids], device=device)
        positions = torch.tensor(done, device=device)[:, None] + (places - missing[:, None]).clamp(min=0)
        given: dict[str, Any] = {"position_ids": positions, "logits_to_keep": 1}
        padding = [longest - own for own in done] if cache is not None else missing.tolist()
        if any(padding):
            whole = longest + count
            given["attention_mask"] = torch.tensor(
                [[0] * own + [1] * (whole - own) for own in padding], device=device
            )
        if cache is not None:
            given[self._name] = cache
        taken = {name: value for name, value in given.items() if name in self._takes}
        out = self.network(input_ids=tokens, use_cache=True, **taken)
        found = out.get(self._name)
        if found is None:
            raise _no_cache(self.network)
        return out.logits[:, -1], found


def _no_cache(network: PreTrainedModel) -> UnsupportedError:
    return UnsupportedError(
        f"{type(network).__name__} keeps its state where it can't be read, so the local backend can't serve "
        f"{network.config.model_type!r}; use a family whose networks return a cache"
    )


# caches ---------------------------------------------------------------------------------------
Change = Callable[[str, list[torch.Tensor]], torch.Tensor]
"""From an attribute's name and that attribute of several caches to that of a new one."""
CACHES: tuple[type, ...] = tuple(
    getattr(cache_utils, name)
    for name in ("Cache", "CacheLayerMixin", "LinearAttentionCacheLayerMixin")  # the last came after 5.0
    if hasattr(cache_utils, name)
)
ALONG = ("keys", "values")
"""Attributes of a cache's layer with a place for each token: (B, K, L, D)."""


def _made_of(parts: Sequence[Any], change: Change, length: int, name: str = "") -> Any:
    """A cache, or a part of one, of several of the same network, whose longest row has `length` tokens.
    Raises ValueError if they differ in more than tensors and lengths."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return change(name, list(parts)) if first.ndim and first.numel() else first
    if isinstance(first, dict):
        return {key: _made_of([part[key] for part in parts], change, length, name) for key in first}
    if isinstance(first, list):
        return [_made_of(each, change, length, name) for each in zip(*parts, strict=True)]
    if isinstance(first, CACHES):
        made = copy.copy(first)
        for attribute in vars(first):
            own = [getattr(part, attribute) for part in parts]
            setattr(made, attribute, _made_of(own, change, length, attribute))
        return made
    if name == "cumulative_length":
        return length
    if any(part != first for part in parts):
        raise ValueError(f"states of one network differ in {name!r}: {list(parts)!r}")
    return first


def join_caches(caches: Sequence[Any], length: int) -> Any:
    """The rows of all, one after another; the keys and values of shorter ones padded on the left."""

    def joined(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        if name in ALONG:
            longest = max(part.shape[2] for part in parts)
            parts = [functional.pad(part, (0, 0, longest - part.shape[2], 0)) for part in parts]
        return torch.cat(parts)

    return _made_of(caches, joined, length)


def select_rows(cache: Any, places: Sequence[int], length: int) -> Any:
    """A copy of these rows, the longest of which has `length` tokens."""

    def selected(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        (part,) = parts
        kept = part[:, :, -length:] if name in ALONG else part
        return kept.index_select(0, torch.tensor(places, device=part.device))

    return _made_of([cache], selected, length)


def cache_bytes(cache: Any) -> int:
    """Memory of its tensors."""
    sizes: list[int] = []

    def measured(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        sizes.append(parts[0].nbytes)
        return parts[0]

    _made_of([cache], measured, 0)
    return sum(sizes)


# what a network takes exactly -----------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Traits:
    """Measurements of a network, taken when it was loaded."""

    pads: bool
    """Whether rows of unlike length run in one batch."""
    continues: bool
    """Whether several tokens at once go on from a state. One token always does."""
    row_bytes: int
    """Memory of a row without tokens."""
    token_bytes: int
    """Memory that each token adds."""


@torch.no_grad()
def measure_traits(network: PreTrainedModel) -> Traits:
    """Run two short sequences, of ids from all over the vocabulary, alone and together.

    Raises UnsupportedError if the network returns no cache.
    """
    run, vocabulary = CachedNetwork(network), network.config.vocab_size
    ids = [place * 7919 % vocabulary for place in range(1, 25)]
    long, short = ids[:12], ids[17:22]

    def after(begun: Sequence[Sequence[int]], rest: Sequence[Sequence[int]]) -> torch.Tensor:
        """(B, V) after `rest`, where the state after `begun` goes on with it."""
        _, cache = run(begun, None, [0] * len(begun))
        logits, _ = run(rest, cache, [len(own) for own in begun])
        return logits.float().log_softmax(-1)

    def agrees(found: Callable[[], torch.Tensor], wanted: torch.Tensor) -> bool:
        try:
            return bool((found() - wanted).abs().max() < TOLERANCE)
        except (
            RuntimeError,
            ValueError,
            IndexError,
            TypeError,
        ):  # a batch it can't take
            return False

    alone = torch.cat([after([own[:-1]], [own[-1:]]) for own in (long, short)])
    small, large = (cache_bytes(run([ids[:count]], None, [0])[1]) for count in (4, 12))
    return Traits(
        pads=agrees(lambda: after([long[:-1], short[:-1]], [long[-1:], short[-1:]]), alone),
        continues=agrees(lambda: after([long[:5]], [long[5:]]), alone[:1]),
        row_bytes=max(0, small - 4 * (large - small) // 8),
        token_bytes=(large - small) // 8,
    )
