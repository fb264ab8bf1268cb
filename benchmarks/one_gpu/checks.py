"""Whether engine and update compute what plain transformers computes, and go on where memory runs out."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch.nn.attention.flex_attention import flex_attention
from transformers import PreTrainedModel

from benchmarks.one_gpu.models import SHAPES, SHIPPED, Where, random_network
from benchmarks.one_gpu.rows import Rows
from lightning_core.algorithms.base import Algorithm, Entries
from lightning_core.backends.local.decoder import Decoder, LlamaDecoder, NetworkDecoder
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.exactness import plain_logprobs
from lightning_core.backends.local.kernel import Heads, compiled
from lightning_core.backends.local.model import make_ready
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.packed import DecodeSteps, PackedMemory
from lightning_core.backends.local.packing import TreePlan
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.local.tuning import kv_shape
from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.backends.settings import TrainingSettings
from lightning_core.backends.weights.model import Model
from lightning_core.backends.weights.sources import find_source, load_tokenizer
from lightning_core.experience.trajectories import trained_transitions
from lightning_core.records.types import Key, Trajectory, Transition

BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Nats by which a log-probability of these networks may be apart, at most."""
GRADIENTS = {torch.float32: 1e-3, torch.bfloat16: 0.05}
"""The share of its length by which a gradient may be apart."""


def ready(where: Where) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A network for the backend, and the same as transformers runs it; large weights tell more apart."""
    network = random_network(where.checked, where.device)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "norm" not in name:
                weight.mul_(3.0)
    plain = copy.deepcopy(network)
    plain.set_attn_implementation("eager")
    make_ready(network, where.device)
    return network, plain


# the engine -----------------------------------------------------------------------------------
def engine_exact(where: Where, rows: Rows) -> None:
    """Captured and single steps, of both decoders, in both number formats, beside plain transformers."""
    rows.title("Engine against plain transformers: nats apart at most")
    network, plain = ready(where)
    for dtype in BOUNDS:
        made: dict[str, Decoder] = {
            "fused": LlamaDecoder(network, dtype, 1_024),
            "general": NetworkDecoder(network, dtype),
        }
        for name, decoder in made.items():
            with rows.row(decoder=name, dtype=str(dtype)) as row:
                replies = sample(decoder, network, dtype, where, captured=True)
                wanted = [
                    plain_logprobs(plain, r.prompt_ids + r.ids)[-len(r.ids) :].tolist() for r in replies
                ]
                row["captured"] = apart([r.logprobs for r in replies], wanted)
                single = sample(decoder, network, dtype, where, captured=False)
                wanted = [plain_logprobs(plain, r.prompt_ids + r.ids)[-len(r.ids) :].tolist() for r in single]
                row["one by one"] = apart([r.logprobs for r in single], wanted)
                row["equal ids"] = sum(a.ids == b.ids for a, b in zip(replies, single, strict=True)) / len(
                    replies
                )
                check(max(row["captured"], row["one by one"]), BOUNDS[dtype])


def sample(
    decoder: Decoder, network: PreTrainedModel, dtype: torch.dtype, where: Where, *, captured: bool
) -> list[Completion]:
    """Replies of unlike lengths to prompts of unlike lengths, more than there are rows."""
    options = EngineOptions(max_batch=6, slot_bytes=1 << 28, prefix_bytes=1 << 22, prefill_tokens=256)
    engine = Engine(decoder, kv_shape(network, dtype), frozenset(), options, torch.get_num_threads())
    memory = engine.memory
    assert isinstance(memory, PackedMemory)
    if not captured:
        memory.steps = None
    elif memory.steps is None:  # as a GPU's, without a GPU
        memory.steps = DecodeSteps(memory.decoder, memory.slots, lambda work: work)
    return asyncio.run(_sample(engine, few=where.quick))


async def _sample(engine: Engine, *, few: bool) -> list[Completion]:
    draw = random.Random(0)
    engine.start()
    try:
        request, replies = CompletionRequest(), []
        for index in range(8 if few else 20):
            prompt = [draw.randrange(5, 2_000) for _ in range(draw.randrange(1, 300))]
            asked = SamplingOptions(max_tokens=draw.randrange(2, 20 if few else 90), seed=str(index))
            replies.append(Completion(prompt, asked, request))
            engine.submit(replies[-1])
        while not all(reply.finished for reply in replies):
            await request.wait()
    finally:
        engine.close()
    for reply in replies:
        if reply.error is not None:
            raise reply.error
    return replies


def apart(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> float:
    pairs = ((a, b) for one, two in zip(found, wanted, strict=True) for a, b in zip(one, two, strict=True))
    return max(abs(a - b) for a, b in pairs)


def check(found: float, bound: float) -> None:
    if not found < bound:  # not-a-number is no agreement
        raise AssertionError(f"{found:.3g} apart, where {bound:g} is allowed")


# the update -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reinforce:
    """-sum of w A log p: a gradient that plain transformers can be asked for."""

    epochs: int = 1
    needs_reference: bool = False
    needs_proximal: bool = False
    needs_teacher: bool = False
    learns_from: None = None
    name: str = "reinforce"
    group_size: int = 2

    def weigh(self, trajectories: tuple[Trajectory, ...]) -> dict[Key, float]:
        return {t.key: 1.0 for t in trained_transitions(trajectories)}

    def units(self, trajectories: tuple[Trajectory, ...]) -> dict[Key, int]:
        return {}

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return -(entries.weights * entries.advantages * entries.logprobs).sum(), {}


def reinforce() -> Algorithm:
    return cast(Algorithm, Reinforce())


def branching(few: bool) -> tuple[Trajectory, ...]:
    """Rollouts with a common beginning, whose turns go on from one another or branch."""
    draw = random.Random(1)

    def ids(count: int) -> list[int]:
        return [draw.randrange(5, 2_000) for _ in range(count)]

    common, found = ids(150), []
    for index in range(2 if few else 6):
        said, calls = common + ids(draw.randrange(1, 90)), []
        for turn in range(3):
            reply = ids(draw.randrange(2, 60))
            prompt = common + ids(40) if turn == 2 else said
            advantage = (-1.0) ** (index + turn)
            calls.append(
                Transition(
                    f"r{index}",
                    f"c{turn}",
                    0,
                    "agent",
                    True,
                    prompt,
                    reply,
                    [-5.0] * len(reply),
                    0,
                    advantage=advantage,
                )
            )
            said = prompt + reply + ids(draw.randrange(1, 40))
        found.append(Trajectory(f"r{index}", "g", "t", 0.0, tuple(calls)))
    return tuple(found)


def update_exact(where: Where, rows: Rows) -> None:
    """A token tree, by kernel and by chunks, beside plain transformers one sequence at a time. torch has no
    gradient of the kernel on a processor: there it is the log-probabilities alone."""
    rows.title("Update against plain transformers: apart, as a share of its length")
    network, plain = ready(where)
    batch = branching(where.quick)
    wanted = {"log-probabilities": plain_batch(plain, batch), "gradient": plain_gradient(plain, batch)}
    for dtype in GRADIENTS:
        for attention in ("kernel", "chunks"):
            for what in wanted:
                if attention == "kernel" and not kernel_takes(where, dtype, what):
                    continue
                with (
                    rows.row(attention=attention, dtype=str(dtype), what=what) as row,
                    attention_by(attention),
                ):
                    found = our_batch(network, batch, dtype, what)
                    row["apart"] = float((found - wanted[what]).norm() / wanted[what].norm())
                    check(row["apart"], GRADIENTS[dtype])


def kernel_takes(where: Where, dtype: torch.dtype, what: str) -> bool:
    return dtype == torch.bfloat16 if where.device.type == "cuda" else what != "gradient"


def plain_batch(network: PreTrainedModel, batch: tuple[Trajectory, ...]) -> torch.Tensor:
    found = [
        plain_logprobs(network, [*call.prompt_ids, *call.completion_ids])[-len(call.completion_ids) :]
        for call in trained_transitions(batch)
    ]
    return torch.cat(found).cpu()


def plain_gradient(network: PreTrainedModel, batch: tuple[Trajectory, ...]) -> torch.Tensor:
    network.requires_grad_(True)
    for call in trained_transitions(batch):
        ids = torch.tensor([[*call.prompt_ids, *call.completion_ids]], device=network.device)
        logits = network(input_ids=ids, use_cache=False).logits[0, :-1].float()
        chosen = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[-len(call.completion_ids) :]
        assert call.advantage is not None
        torch.autograd.backward(-call.advantage * chosen.sum())
    return gradient(network)


def our_batch(
    network: PreTrainedModel, batch: tuple[Trajectory, ...], dtype: torch.dtype, what: str
) -> torch.Tensor:
    policy = Policy(as_model(network), None)
    settings, source = TrainingSettings(pack_tokens=600), find_source(SHIPPED)[0]
    optimizer = Optimizer(policy, settings, source=source, bfloat16=dtype == torch.bfloat16)
    if what == "log-probabilities":
        return torch.tensor([each for call in optimizer.logprobs(batch) for each in call])
    optimizer.accumulate(optimizer.packs(batch, reinforce().weigh(batch), {}), reinforce())
    return gradient(policy.base)


def gradient(network: PreTrainedModel) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def as_model(network: PreTrainedModel) -> Model:
    return Model("small", network, load_tokenizer(find_source(SHIPPED)[0]), 4_096, frozenset())


@contextmanager
def attention_by(kind: str) -> Iterator[None]:
    """Make plans of one kind; without a GPU the kernel runs as plain torch, which computes the same."""
    from lightning_core.backends.local import packing

    chosen = packing.make_plan
    flex = None
    if kind == "kernel":
        own = SHAPES["small"]
        sizes = Heads(own["num_attention_heads"], own["num_key_value_heads"], own["head_dim"])
        flex = compiled(sizes) if torch.cuda.is_available() else flex_attention
        assert flex is not None, "attention can't be compiled here; the log says why"
    packing.make_plan = lambda network, ends: TreePlan(ends, torch.float32, flex)
    try:
        yield
    finally:
        packing.make_plan = chosen
