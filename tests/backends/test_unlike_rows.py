"""Rows of unlike length decode together: each reads about what it has, and none is changed by another."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lightning_core.backends.local.cache import Shape, Slots
from lightning_core.backends.local.decoder import make_decoder
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.exactness import plain_logprobs
from lightning_core.backends.local.memory import TokenRun
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.packed import PackedMemory, RowSpan, spans_of, whole_rows
from lightning_core.backends.local.tuning import kv_shape
from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from tests.backends.models import save_model

LENGTHS = (30, 25, 40, 33, 480, 20, 22, 31, 50, 400, 20, 28)


def test_one_long_row_makes_no_other_read_as_much() -> None:
    spans = spans_of([100] * 13 + [3000] + [110] * 18)
    assert spans == [RowSpan(0, 13, 100), RowSpan(13, 14, 3000), RowSpan(14, 32, 110)]
    assert sum(span.places for span in spans) == 13 * 100 + 3000 + 18 * 110


@pytest.mark.parametrize("lengths", [[], [7], [100, 120, 80, 115], [1] * 64])
def test_rows_of_like_length_are_one_product(lengths: list[int]) -> None:
    assert spans_of(lengths) == ([RowSpan(0, len(lengths), max(lengths))] if lengths else [])


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "gpt_oss", "gemma2"])
async def test_long_and_short_replies_side_by_side_are_the_network_s_own(family: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", family)
    model = load_model(folder, device="cpu")
    decoder = make_decoder(model.network, torch.float32, model.context)
    options = EngineOptions(max_batch=12, prefill_tokens=512)
    engine = Engine(decoder, kv_shape(model.network, torch.float32), frozenset(), options, 1)
    draw, request = random.Random(0), CompletionRequest()
    prompts = [[draw.randrange(5, 250) for _ in range(n)] for n in LENGTHS]
    replies = [Completion(each, SamplingOptions(max_tokens=12, seed="0"), request) for each in prompts]
    assert [span.end for span in spans_of(LENGTHS)] == [4, 5, 9, 10, 12]
    engine.start()
    for reply in replies:
        engine.submit(reply)
    while not all(reply.finished for reply in replies):
        await request.wait()
    engine.close()
    plain = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for reply in replies:
        assert reply.error is None
        wanted = plain_logprobs(plain, reply.prompt_ids + reply.ids)[-len(reply.ids) :].tolist()
        assert reply.logprobs == pytest.approx(wanted, abs=1e-4)


def test_in_bfloat16_a_processor_reads_rows_as_they_lie_unless_they_are_much_longer() -> None:
    device = torch.device("cpu")
    spans = [RowSpan(0, 4, 110), RowSpan(4, 5, 100)]
    for dtype, read in ((torch.float32, spans), (torch.bfloat16, [RowSpan(0, 4, 256), RowSpan(4, 5, 100)])):
        assert whole_rows(spans, Slots(Shape(1, 3, 64, dtype, device), 5, max_bytes=1 << 30)) == read


@torch.inference_mode()
def test_keys_behind_a_row_s_own_count_nothing(tmp_path: Path) -> None:
    """A row of a reply before is full of large keys and values, of which the next reply sees none."""
    model = load_model(save_model(tmp_path / "model", "qwen3"), device="cpu")
    decoder = make_decoder(model.network, torch.bfloat16, model.context)
    ids = [5 + 7 * n % 200 for n in range(110)]
    found = []
    for left_over in (0.0, 1000.0):
        memory = decoder.memory(kv_shape(model.network, torch.bfloat16), 3, 1 << 30, 0)
        assert isinstance(memory, PackedMemory)
        memory.slots.memory.fill_(left_over)
        memory.logits([], [TokenRun(row, 0, len(ids)) for row in range(3)], ids * 3, [109])
        found.append(memory.logits([110] * 3, [], [7] * 3, [0, 1, 2]))
    assert torch.equal(*found)
