"""A pack as tensors, and its way through a network: every token sees its ancestors in the token tree and
nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from lightning_core.backends.local.attention import (
    AttentionForm,
    Sees,
    network_logits,
    packed,
    takes_plans,
    weights,
)
from lightning_core.backends.local.chosen import chosen_logprobs
from lightning_core.backends.local.kernel import Flex, Heads, TreeKernel, compiled
from lightning_core.backends.local.model import FAMILIES
from lightning_core.backends.local.sampling import mask_logits
from lightning_core.backends.serving.constraints import Grammars, Words
from lightning_core.backends.settings import SMALL
from lightning_core.backends.weights.model import network_below, parameter_count
from lightning_core.experience.trajectories import Ints, Pack

LOGITS_BYTES = 1 << 26
"""Most that the logits of one part of a pass take; they are made again for the gradient, part by part. A pass
over 2,048 tokens of a vocabulary of 49 thousand would keep four times 400 MB otherwise."""
PACK_TOKENS = 2048
"""Tokens of a forward pass where the settings name none; on a GPU four times as many."""
WASTE = 1.25
"""How many times the tokens of its sequences a padded batch may take."""
BATCH_TOKENS = 2048
"""Tokens of a padded batch of several sequences."""
CHUNK = 128
"""Query tokens that attend together; each chunk gathers only the keys that one of its tokens sees."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    start: int
    end: int
    keys: torch.Tensor | slice
    """The L tokens seen, ascending: a slice where they are one run, which spares a copy."""
    bias: torch.Tensor
    """(G * n, L): 0 where query i sees key j, -inf elsewhere; repeated for the G query heads of a key head.
    """


def pass_tokens(asked: int | None, device: torch.device) -> int:
    """Tokens of a forward pass, where so many are asked for."""
    return asked or PACK_TOKENS * (4 if device.type == "cuda" else 1)


def logits_bytes(device: torch.device) -> int:
    """Most that the logits of one part of a pass take."""
    return LOGITS_BYTES * (4 if device.type == "cuda" else 1)


class PassPlan(Protocol):
    """How a pack of T tokens goes through a network."""

    @property
    def tokens(self) -> int:
        """Tokens that go through it."""

    @property
    def pairs(self) -> int:
        """Pairs of tokens whose scores are kept for the gradient."""

    def hidden(
        self, trunk: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor
    ) -> torch.Tensor:
        """tokens and positions (T,), keep (U,) → the trunk's hidden states (U, h) at those kept."""

    def logits(
        self, network: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor
    ) -> torch.Tensor:
        """The same of the whole network: next-token logits (U, V). Only what is kept passes the output
        layer."""


def make_plan(network: PreTrainedModel, ends: torch.Tensor) -> PassPlan:
    """The plan for a pack with these `ends` (T,): a tree where the network takes its attention from plans."""
    if not takes_plans(network):
        return SequencePlan(ends)
    sizes = kernel_heads(network.config, ends.device, parameter_count(network))
    return TreePlan(ends, torch.float32, None if sizes is None else compiled(sizes))


def kernel_heads(config: PreTrainedConfig, device: torch.device, parameters: int) -> Heads | None:
    """Sizes for the compiled attention; None for a network that takes plain products."""
    if not has_kernel(device, parameters, config.model_type):
        return None
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Heads(heads, config.num_key_value_heads, size)


def has_kernel(device: torch.device, parameters: int, family: str) -> bool:
    """Whether attention of such a network is compiled. That takes half a minute the first time on a machine,
    which small models do not pay back."""
    return device.type == "cuda" and parameters >= SMALL and family in FAMILIES


class TreePlan:
    """Attention over a pack of T tokens in depth-first order (`PassPlan`, `attention.Plan`).

    On a GPU one kernel (`kernel`), elsewhere plain products and a softmax on exact sub-blocks: on a CPU this
    is faster, backward above all, than masked fused attention over all T * T pairs, most of which are not in
    one branch. A window is measured along a token's own branch.
    """

    def __init__(self, ends: torch.Tensor, dtype: torch.dtype, flex: Flex | None = None) -> None:
        """`ends` (T,) as in `Pack`; `flex` computes what it can in place of chunks."""
        self.tokens, self._ends, self._dtype = len(ends), ends, dtype
        places = torch.arange(len(ends), device=ends.device)
        self._depths = places - torch.searchsorted(ends.sort().values, places, right=True)
        """(T,) position of each token in its sequence."""
        self._chunks: dict[tuple[Sees | None, int], list[_Chunk]] = {}
        self._kernel = None if flex is None else TreeKernel(ends, self._depths, flex)

    @property
    def pairs(self) -> int:
        """Pairs of tokens whose scores are kept, where all before a token are seen."""
        if self._kernel is not None:
            return self.tokens
        return sum(chunk.bias.numel() for chunk in self._find(None, 1))

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: AttentionForm
    ) -> torch.Tensor:
        if self._kernel is not None and self._kernel.takes(query, form):
            return self._kernel.attend(query, key, value, form)
        heads, size = query.shape[1:]
        kv_heads = key.shape[1]
        groups = heads // kv_heads
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))  # (heads, T, D)
        outs = []
        for chunk in self._find(form.sees, groups):
            n = chunk.end - chunk.start
            q = query[:, chunk.start : chunk.end].reshape(kv_heads, groups * n, size)
            sinks = None
            if form.sinks is not None:
                sinks = form.sinks.repeat_interleave(n).view(kv_heads, groups * n, 1)
            seen = weights(q, key[:, chunk.keys], chunk.bias.to(q.dtype), form, sinks)
            outs.append(torch.bmm(seen, value[:, chunk.keys]).view(heads, n, -1))
        return torch.cat(outs, 1).transpose(0, 1)

    def _find(self, sees: Sees | None, groups: int) -> list[_Chunk]:
        if (sees, groups) not in self._chunks:
            starts = range(0, self.tokens, CHUNK)
            self._chunks[sees, groups] = [
                self._chunk(start, min(start + CHUNK, self.tokens), sees, groups) for start in starts
            ]
        return self._chunks[sees, groups]

    def hidden(
        self, trunk: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor
    ) -> torch.Tensor:
        out = trunk(**packed(tokens, positions, self))
        found: torch.Tensor = out.last_hidden_state[0, keep]
        return found

    def logits(
        self, network: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor
    ) -> torch.Tensor:
        return network_logits(network, tokens, positions, self, keep)

    def _chunk(self, start: int, end: int, sees: Sees | None, groups: int) -> _Chunk:
        ends, depths = self._ends, self._depths
        keys = (ends[:end] > start).nonzero()[:, 0]
        queries = torch.arange(start, end, device=ends.device)[:, None]
        hidden = (keys > queries) | (ends[keys] <= queries)
        if sees is not None:
            hidden |= ~sees(depths[start:end, None], depths[keys][None])
            near = ~hidden.all(0)
            keys, hidden = keys[near], hidden[:, near]
        bias = torch.zeros(hidden.shape, dtype=self._dtype, device=ends.device)
        bias.masked_fill_(hidden, float("-inf"))
        first, last = int(keys[0]), int(keys[-1])
        run = last - first + 1 == len(keys)
        return _Chunk(start, end, slice(first, last + 1) if run else keys, bias.repeat(groups, 1))


class SequencePlan:
    """A pack whose branches are sequences of their own, run with the network's own attention (`PassPlan`).

    For networks with state outside attention. What branches share is computed with each of them. Sequences of
    like length run together, padded at their end: no token sees what comes after it.
    """

    def __init__(self, ends: torch.Tensor) -> None:
        """`ends` (T,) as in `Pack`."""
        self._count = len(ends)
        places = torch.arange(len(ends), device=ends.device)
        leaves = (ends == places + 1).nonzero()[:, 0].tolist()
        paths = [(ends[: leaf + 1] > leaf).nonzero()[:, 0] for leaf in leaves]
        self._batches = [[paths[i] for i in batch] for batch in make_batches([len(p) for p in paths])]

    @property
    def tokens(self) -> int:
        return sum(len(batch) * len(batch[-1]) for batch in self._batches)

    @property
    def pairs(self) -> int:
        return sum(len(batch) * len(batch[-1]) ** 2 for batch in self._batches)

    def hidden(
        self, trunk: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor
    ) -> torch.Tensor:
        return self._gather(
            tokens, keep, lambda ids, _: trunk(input_ids=ids, use_cache=False).last_hidden_state
        )

    def logits(
        self, network: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor
    ) -> torch.Tensor:
        return self._gather(
            tokens,
            keep,
            lambda ids, columns: network(input_ids=ids, use_cache=False, logits_to_keep=columns).logits,
        )

    def _gather(
        self,
        tokens: torch.Tensor,
        keep: torch.Tensor,
        run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Run each batch (B, L) and gather the U results. `run` may return all L columns, or those that are
        asked for."""
        missing = torch.zeros(self._count, dtype=torch.bool, device=tokens.device)
        missing[keep] = True
        found, places = [], []
        for batch in self._batches:
            longest = len(batch[-1])
            ids = torch.stack([functional.pad(tokens[p], (0, longest - len(p))) for p in batch])
            of_row = [missing[p].nonzero()[:, 0] for p in batch]
            columns = torch.unique(torch.cat(of_row))
            out = run(ids, columns)
            for row, (path, own) in enumerate(zip(batch, of_row, strict=True)):
                at = own if out.shape[1] == longest else torch.searchsorted(columns, own)
                found.append(out[row, at])
                places.append(path[own])
                missing[path[own]] = False
        order = torch.empty(self._count, dtype=torch.int64, device=tokens.device)
        order[torch.cat(places)] = torch.arange(sum(map(len, places)), device=tokens.device)
        return torch.cat(found)[order[keep]]


def make_batches(lengths: Sequence[int]) -> list[list[int]]:
    """Places of sequences that run in one padded batch: of like length, with little padding."""
    batches: list[list[int]] = []
    tokens = 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        tokens += lengths[place]
        padded = (len(batches[-1]) + 1) * lengths[place] if batches else 0
        if not batches or padded > min(BATCH_TOKENS, WASTE * tokens):
            batches.append([])
            tokens = lengths[place]
        batches[-1].append(place)
    return batches


@dataclass(frozen=True, slots=True)
class Tensors:
    """A pack on the training device."""

    tokens: torch.Tensor
    positions: torch.Tensor
    plan: PassPlan
    keep: torch.Tensor
    """(U,) tokens whose next-token logits are wanted."""
    scales: torch.Tensor
    """(U,) temperature of each such row."""
    held: torch.Tensor
    """(R,) those of the U rows that a grammar holds."""
    words: Words
    """(R, W) the mask of each."""
    rows: torch.Tensor
    """(E,) row of `keep` for each entry."""
    targets: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    sequences: torch.Tensor
    units: torch.Tensor
    teacher_logprobs: torch.Tensor


def to_tensors(pack: Pack, network: PreTrainedModel, grammars: Grammars | None = None) -> Tensors:
    """The pack as tensors for `network`, on its device; entries after the same token, at the same temperature
    and under the same mask, share a row of logits.

    `grammars` makes the masks of the entries that were held to something. Raises TrainingError for those that
    could not have been sampled under theirs.
    """
    places, masks = _masks(pack, grammars)
    parents, temperatures = torch.from_numpy(pack.parents), torch.from_numpy(pack.temperatures)
    triples = torch.stack((parents.double(), temperatures.double(), torch.from_numpy(places).double()), 1)
    unique, rows = torch.unique(triples, dim=0, return_inverse=True)
    held = (unique[:, 2] >= 0).nonzero()[:, 0]
    device = network.device
    return Tensors(
        tokens=torch.from_numpy(pack.tokens).to(device),
        positions=torch.from_numpy(pack.positions).to(device),
        plan=make_plan(network, torch.from_numpy(pack.ends).to(device)),
        keep=unique[:, 0].long().to(device),
        scales=unique[:, 1].float().to(device),
        held=held.to(device),
        words=masks[unique[held, 2].long().numpy()],
        rows=rows.to(device),
        targets=torch.from_numpy(pack.targets).to(device),
        logprobs=torch.from_numpy(pack.logprobs).to(device),
        advantages=torch.from_numpy(pack.advantages).to(device),
        weights=torch.from_numpy(pack.weights).to(device),
        sequences=torch.from_numpy(pack.sequences).to(device),
        units=torch.from_numpy(pack.units).to(device),
        teacher_logprobs=torch.from_numpy(pack.teacher_logprobs).to(device),
    )


def _masks(pack: Pack, grammars: Grammars | None) -> tuple[Ints, Words]:
    """(E,) which of the masks (M, W) each entry was sampled under, -1 for none."""
    places = np.full(len(pack.targets), -1, dtype=np.int64)
    if grammars is None or not any(pack.grammars):
        return places, np.zeros((0, 0), np.uint32)
    found: dict[bytes, int] = {}
    for index, (key, grammar) in enumerate(zip(pack.keys, pack.grammars, strict=True)):
        if grammar is not None:
            own = pack.sequences == index
            words = grammars.replay(grammar, pack.targets[own].tolist(), f"call {key[1]!r} of {key[0]!r}")
            places[own] = [found.setdefault(mask.tobytes(), len(found)) for mask in words]
    masks = np.frombuffer(b"".join(found), np.uint32).reshape(len(found), grammars.words)
    return places, masks


def recompute_layers(network: torch.nn.Module, on: bool) -> None:
    """Whether a pass keeps only the input of each layer, and computes the rest again for its gradient.

    Chen et al., arXiv 1604.06174. It costs one more forward pass and changes no gradient. transformers asks
    for a layer in training mode; the layer itself runs in evaluation mode, without dropout.
    """
    for layer in network.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.gradient_checkpointing = layer.training = on
            layer._gradient_checkpointing_func = partial(_recompute, layer)


def _recompute(layer: torch.nn.Module, run: Callable[..., Any], *given: Any) -> Any:
    """The output of a layer in evaluation mode, which is computed again for the gradient."""

    def work(*given: Any) -> Any:
        layer.training = False
        try:
            return run(*given)
        finally:
            layer.training = True

    return checkpoint(work, *given, use_reentrant=False)


def kept_bytes(work: Callable[[], torch.Tensor], network: torch.nn.Module) -> int:
    """Measures the bytes a pass of the network keeps for its gradient, beside the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = work()
    found = sum(kept[place].untyped_storage().nbytes() for place in kept.keys() - weights)
    del out
    return found


def entry_logprobs(network: torch.nn.Module, pack: Tensors) -> torch.Tensor:
    """(E,) log-probability of each entry's token under `network`, at the entry's temperature and among the
    tokens that its mask left. Where that was one token it is 0, and so is its gradient."""
    count, base = len(pack.keep), network_below(network)
    size = max(1, logits_bytes(pack.tokens.device) // (4 * base.config.vocab_size))
    if count <= size or not _head_is_plain(network, pack.tokens[:2]):
        logits = pack.plan.logits(network, pack.tokens, pack.positions, pack.keep)
        return _chosen(logits, pack, slice(0, count), torch.arange(len(pack.rows), device=pack.rows.device))
    hidden = pack.plan.hidden(base.get_decoder(), pack.tokens, pack.positions, pack.keep)  # (U, h)
    head = base.get_output_embeddings()
    found = []
    parts = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    entries = [((pack.rows >= part.start) & (pack.rows < part.stop)).nonzero()[:, 0] for part in parts]
    for part, of_part in zip(parts, entries, strict=True):

        def logprobs(rows: torch.Tensor, part: slice = part, own: torch.Tensor = of_part) -> torch.Tensor:
            return _chosen(head(rows), pack, part, own)

        found.append(checkpoint(logprobs, hidden[part], use_reentrant=False))
    order = torch.cat(entries).argsort()
    return torch.cat(found)[order]


@torch.no_grad()
def _head_is_plain(network: torch.nn.Module, tokens: torch.Tensor) -> bool:
    """Whether the output layer's product with the trunk's hidden states is all there is to logits.

    Two tokens show what scales them. They may be too small to show a softcap, which is looked up.
    """
    base, places = network_below(network), torch.arange(len(tokens), device=tokens.device)
    if base.config.model_type in FAMILIES:
        return True
    if any("softcap" in name and value for name, value in base.config.to_dict().items()):
        return False
    plan = make_plan(base, torch.full_like(tokens, len(tokens)))
    wanted = plan.logits(network, tokens, places, places)
    found = base.get_output_embeddings()(plan.hidden(base.get_decoder(), tokens, places, places))
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


def _chosen(logits: torch.Tensor, pack: Tensors, part: slice, entries: torch.Tensor) -> torch.Tensor:
    """(n,) of these entries, whose rows of the U are those of `part`, with their logits."""
    held = ((pack.held >= part.start) & (pack.held < part.stop)).nonzero()[:, 0]
    if len(held):
        words = pack.words[held.cpu().numpy()]
        logits = mask_logits(logits.float(), pack.held[held] - part.start, words)
    return chosen_logprobs(logits, pack.scales[part], pack.rows[entries] - part.start, pack.targets[entries])
