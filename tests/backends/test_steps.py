"""Replayed and compiled steps of a GPU, by their counterpart on the processor: the numbers are equal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from transformers import AutoModelForCausalLM

from lightning_core.backends.local import kernel
from lightning_core.backends.local.attention import AttentionForm, Sees
from lightning_core.backends.local.decoder import LlamaDecoder, NetworkDecoder
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.exactness import plain_logprobs
from lightning_core.backends.local.kernel import Heads
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.packed import Capture, DecodeSteps, PackedMemory, Work
from lightning_core.backends.local.packing import TreePlan, kernel_heads
from lightning_core.backends.local.tuning import kv_shape
from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions


def make_engine(folder: Path, make: Callable[..., object], capture: Capture | None) -> Engine:
    """An engine of five rows that stops at no token."""
    model = load_model(folder, device="cpu")
    args = (model.network, torch.float32, model.context)
    decoder = LlamaDecoder(*args) if make is LlamaDecoder else NetworkDecoder(*args[:2])
    shape = kv_shape(model.network, torch.float32)
    engine = Engine(decoder, shape, frozenset(), EngineOptions(max_batch=5, prefill_tokens=64), 1)
    memory = engine.memory
    assert isinstance(memory, PackedMemory)
    if capture is not None:
        memory.steps = DecodeSteps(memory.decoder, memory.slots, capture)
    return engine


async def sample(engine: Engine) -> list[Completion]:
    """Replies of unlike lengths, some beyond the first length of a row."""
    draw, replies, request = random.Random(0), [], CompletionRequest()
    engine.start()
    for index in range(14):
        prompt = [draw.randrange(5, 300) for _ in range(240 if index == 3 else draw.randrange(1, 40))]
        asked = SamplingOptions(max_tokens=draw.randrange(1, 40), seed=str(index))
        replies.append(Completion(prompt, asked, request))
        engine.submit(replies[-1])
    while not all(reply.finished for reply in replies):
        await request.wait()
    engine.close()
    assert [reply.error for reply in replies] == [None] * len(replies)
    return replies


class Counted:
    """Captures by keeping the work, as a graph keeps its kernels."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, work: Work) -> Work:
        self.captured += 1

        def replay() -> torch.Tensor:
            self.replayed += 1
            return work()

        return replay


@pytest.mark.parametrize("make", [LlamaDecoder, NetworkDecoder])
def test_captured_steps_of_rounded_sizes_sample_what_single_steps_sample(
    qwen: Path, make: Callable[..., object]
) -> None:
    capture = Counted()
    captured = asyncio.run(sample(make_engine(qwen, make, capture)))
    single = asyncio.run(sample(make_engine(qwen, make, None)))
    assert capture.replayed > 5 * capture.captured > 0
    assert [reply.ids for reply in captured] == [reply.ids for reply in single]
    plain = AutoModelForCausalLM.from_pretrained(qwen, dtype=torch.float32).eval()
    for reply in captured:
        wanted = plain_logprobs(plain, reply.prompt_ids + reply.ids)[-len(reply.ids) :].tolist()
        assert reply.logprobs == pytest.approx(wanted, abs=1e-4)


def test_steps_that_cannot_be_captured_run_one_by_one_and_say_so(
    qwen: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def refuse(work: Work) -> Work:
        tried.append(work)
        raise RuntimeError("operation not permitted when stream is capturing")

    refused = asyncio.run(sample(make_engine(qwen, LlamaDecoder, refuse)))
    single = asyncio.run(sample(make_engine(qwen, LlamaDecoder, None)))
    assert [reply.ids for reply in refused] == [reply.ids for reply in single]
    assert len(tried) == 1
    assert "can't be captured as CUDA graphs" in caplog.text


@pytest.mark.parametrize("name", ["qwen", "llama"])
def test_new_weights_are_taken_in_place_so_that_captured_steps_see_them(
    name: str, request: pytest.FixtureRequest
) -> None:
    model = load_model(request.getfixturevalue(name), device="cpu")
    decoder, tokens = LlamaDecoder(model.network, torch.float32, model.context), torch.arange(5, 25)
    changed = {name: weight * 1.5 for name, weight in model.network.state_dict().items()}
    step = decoder.text_logits
    before = [tensor.data_ptr() for tensor in tensors(decoder)]
    decoder.refresh(changed)
    assert [tensor.data_ptr() for tensor in tensors(decoder)] == before
    model.network.load_state_dict(changed)
    wanted = LlamaDecoder(model.network, torch.float32, model.context).text_logits(tokens)
    torch.testing.assert_close(step(tokens), wanted)


def tensors(decoder: LlamaDecoder) -> list[torch.Tensor]:
    blocks = [getattr(block, name) for block in decoder._blocks for name in type(block).__slots__]
    found = [*blocks, decoder._embedding, decoder._head, decoder._norm]
    return [tensor for tensor in found if tensor is not None]


# the kernel of updates ------------------------------------------------------------------------
def near(batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A window of 40 tokens."""
    return (k <= q) & (q - k < 40)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("count", [5, 128, 300])
@pytest.mark.parametrize("sees", [None, Sees(near, 40)])
def test_the_kernel_gives_what_chunks_give_on_trees(count: int, sees: Sees | None) -> None:
    """Two roots; the second one's children branch at its middle."""
    torch.manual_seed(0)
    places = torch.arange(count)
    ends = torch.where(places < count // 3, count // 3, count)
    ends = torch.where((places >= count // 2) & (places < 2 * count // 3), 2 * count // 3, ends)
    query, key, value = (torch.randn(count, heads, 16) for heads in (6, 2, 2))
    form = AttentionForm(0.3, sees)
    found = TreePlan(ends, torch.float32, flex_attention).attend(query, key, value, form)
    wanted = TreePlan(ends, torch.float32).attend(query, key, value, form)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_kernel_that_computes_something_else_is_found_out() -> None:
    heads, cpu = Heads(4, 2, 32), torch.device("cpu")
    assert kernel._apart(flex_attention, heads, 165, cpu) < kernel.TOLERANCE

    def causal(*given: torch.Tensor, block_mask: object, **options: object) -> torch.Tensor:
        """Without the tree."""
        return torch.nn.functional.scaled_dot_product_attention(
            *(x.float() for x in given), is_causal=True, enable_gqa=True
        )

    assert kernel._apart(causal, heads, 165, cpu) > kernel.TOLERANCE


def test_only_large_plain_networks_on_a_gpu_compile_their_attention(qwen: Path) -> None:
    config = load_model(qwen, device="cpu").network.config
    large, cuda = 100_000_000, torch.device("cuda")
    sizes = kernel_heads(config, cuda, large)
    assert sizes is not None
    assert sizes.queries == config.num_attention_heads
    assert kernel_heads(config, torch.device("cpu"), large) is None
    assert kernel_heads(config, cuda, 1_000_000) is None
