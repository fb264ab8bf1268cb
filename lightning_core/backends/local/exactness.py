"""Whether a network gives here the log-probabilities that transformers gives, checked whenever one is loaded.

Serving packs the tokens of many replies flat, training packs those of many sequences. Either is wrong without
a word for a network that mixes the tokens of a pass by other means than its attention function. So a few
dozen tokens go through the engine, step by step, and through a training pass, and are compared with the plain
network: its own attention, one sequence at a time, float32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

import torch
from transformers import PreTrainedModel

from lightning_core.backends.local.attention import ADVICE
from lightning_core.backends.local.decoder import Decoder, StateDecoder
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.tuning import kv_shape
from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.errors import LightningError, ModelError
from lightning_core.records.types import Trajectory, Transition

TOLERANCES = {torch.float32: 2e-3, torch.bfloat16: 0.3}
"""Nats by which log-probabilities of a sequence may be apart, on average over its tokens.

SmolLM2 is apart by 1e-5 in float32 and by 0.04 to 0.08 in bfloat16; a network that runs wrong by 1 to 36.
"""
NARROW = 12
"""Tokens of a threshold during the check, so that short prompts pass it."""
WINDOWS = ("sliding_window", "sliding_window_size", "attention_chunk_size", "index_topk", "keep_window_size")
THRESHOLDS = dict.fromkeys(WINDOWS, NARROW)
"""Settings from which number of tokens on a layer sees less than all before it, with that of the check."""
BLOCKS = {"topk_blocks": 2, "block_size": 4}
"""The same of layers that choose whole blocks of tokens."""
LENGTHS = (24, 13)
"""Tokens of the two unrelated prompts. A third begins with half of the first one."""
REPLY = 3
"""Tokens that are sampled after each prompt."""

Logprobs = Callable[[tuple[Trajectory, ...]], Sequence[Sequence[float]]]
"""A training pass: the log-probability of each sampled token, for each transition."""
Submit = Callable[[Completion], None]
"""Puts a reply in line."""


class Exactness:
    """Checks one network. What the plain network gives is computed once, for engine and training."""

    def __init__(
        self, network: PreTrainedModel, text: Sequence[int], context: int, *, narrow: bool = True
    ) -> None:
        """`text`: token ids such as the model reads. Without `narrow` its thresholds stay where they are, as
        those of a server do."""
        self._network, self._prompts = network, _prompts(text, context - REPLY)
        self._context = context if narrow else 0
        self._wanted: dict[tuple[int, ...], torch.Tensor] = {}
        """(n - 1,) of each sequence of n tokens, for all but the first."""

    def check_engine(self, decoder: Decoder, dtype: torch.dtype, threads: int) -> None:
        """Sample with an engine of its own on this decoder.

        Raises ModelError, naming the family, if it is not exact.
        """
        copied = [decoder.network] if isinstance(decoder, StateDecoder) else []
        with self.refusing("served"):
            with narrowed(self._context, self._network, *copied):
                shape = kv_shape(self._network, dtype)
                few = EngineOptions(max_batch=2, slot_bytes=1 << 62, prefix_bytes=1 << 26)
                engine = Engine(decoder, shape, frozenset(), few, threads)
                engine.start()
                try:
                    replies = asyncio.run(_sample(engine.submit, self._prompts))
                finally:
                    engine.close()
            self._compare_replies(replies, dtype)

    async def check_server(self, submit: Submit, dtype: torch.dtype) -> None:
        """Sample with a server of the same weights.

        Raises ModelError, naming the family, if it is not exact.
        """
        with self.refusing("served"):
            replies = await _sample(submit, self._prompts)
            await asyncio.to_thread(self._compare_replies, replies, dtype)

    def check_training(self, logprobs: Logprobs, dtype: torch.dtype) -> None:
        """Take the prompts, and what was sampled after them, through a training pass.

        Raises ModelError, naming the family, if it is not exact.
        """
        sequences = list(self._wanted) or [tuple(ids) for ids in self._prompts]
        batch = tuple(
            Transition("", str(i), 0, "", True, ids[:1], ids[1:], [0.0] * (len(ids) - 1), None, advantage=1.0)
            for i, ids in enumerate(sequences)
        )
        with self.refusing("trained"):
            with narrowed(self._context, self._network):
                found = logprobs((Trajectory("", "", "", 0.0, batch),))
            self._compare(sequences, found, dtype, "trained")

    def _compare_replies(self, replies: Sequence[Completion], dtype: torch.dtype) -> None:
        sequences = [tuple(r.prompt_ids + r.ids) for r in replies]
        self._compare(sequences, [r.logprobs for r in replies], dtype, "served")

    def _compare(
        self,
        sequences: Sequence[tuple[int, ...]],
        found: Sequence[Sequence[float]],
        dtype: torch.dtype,
        what: str,
    ) -> None:
        """`found` has the log-probabilities of the last tokens of each sequence."""
        nats = max(
            float((self._plain(ids)[-len(own) :] - torch.tensor(list(own))).abs().mean())
            for ids, own in zip(sequences, found, strict=True)
        )
        if nats < TOLERANCES[dtype]:  # not-a-number is no agreement
            return
        raise ModelError(
            f"models of the family {self._family!r} can't be {what} exactly by the local backend: "
            f"log-probabilities are {nats:.2g} nats from those of the plain network, where {dtype} allows "
            f"{TOLERANCES[dtype]:g}. Another model would be {what}. {ADVICE}"
        )

    def _plain(self, ids: tuple[int, ...]) -> torch.Tensor:
        if ids not in self._wanted:
            with plain_attention(self._network), narrowed(self._context, self._network):
                self._wanted[ids] = plain_logprobs(self._network, ids).cpu()
        return self._wanted[ids]

    @contextmanager
    def refusing(self, what: str) -> Iterator[None]:
        """Whatever a network raises that does not fit is a ModelError that names its family."""
        try:
            yield
        except LightningError:
            raise
        except Exception as error:
            raise ModelError(
                f"models of the family {self._family!r} can't be {what} by the local backend: a check of a "
                f"few dozen tokens ended with {type(error).__name__}: {error}. {ADVICE}"
            ) from error

    @property
    def _family(self) -> str:
        return str(self._network.config.model_type)


def _prompts(text: Sequence[int], most: int) -> list[list[int]]:
    """Two without a common beginning, of unequal length, and one that begins like the first."""
    first, second = (max(2, min(length, most)) for length in LENGTHS)
    ids = list(islice(cycle(text), first))
    others = list(islice(cycle(reversed(text)), first))
    return [ids, others[:second], ids[: first // 2] + others[: first - first // 2]]


async def _sample(submit: Submit, prompts: list[list[int]]) -> list[Completion]:
    """All but the last at once, then the last, whose prefix is known by then."""
    replies: list[Completion] = []
    for group in (prompts[:-1], prompts[-1:]):
        request = CompletionRequest()
        asked = [Completion(ids, SamplingOptions(REPLY, seed="check"), request) for ids in group]
        for reply in asked:
            submit(reply)
        while not all(reply.finished for reply in asked):
            await request.wait()
        replies += asked
    for reply in replies:
        if reply.error is not None:
            raise reply.error
    return replies


@contextmanager
def plain_attention(network: PreTrainedModel) -> Iterator[None]:
    """The network with its own attention, written out."""
    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    try:
        yield
    finally:
        network.set_attn_implementation(before)


@contextmanager
def narrowed(context: int, *networks: PreTrainedModel) -> Iterator[None]:
    """Thresholds that a context passes are passed after a few tokens."""
    modules = [module for network in networks for module in network.modules()]
    holders = {id(h): h for m in modules for h in (m, getattr(m, "config", None)) if h is not None}
    wide: list[tuple[object, str, int]] = []
    for holder in holders.values():
        sizes = THRESHOLDS | BLOCKS if hasattr(holder, "topk_blocks") else THRESHOLDS
        for name, narrow in sizes.items():
            size = getattr(holder, name, None)
            if isinstance(size, int) and narrow < size < context:
                wide.append((holder, name, size))
                setattr(holder, name, narrow)
    try:
        yield
    finally:
        for holder, name, size in wide:
            setattr(holder, name, size)


@torch.no_grad()
def plain_logprobs(network: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """(n - 1,) log-probability of each of n ids but the first, in a pass over this sequence alone."""
    tokens = torch.tensor([list(ids)], device=network.get_input_embeddings().weight.device)
    logits = network(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    logprobs: torch.Tensor = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    return logprobs
