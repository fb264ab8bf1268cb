"""Engine tokens per second against `transformers.generate` at the same batch size: `python -m
benchmarks.engine`.

Random weights in the shape of the shipped model, one thread, requests whose prompts have 120 to 180 tokens.
"equal": every reply has 40 tokens. "mixed": 20 to 60, as agents ask; generate runs each batch to its longest
reply. "shared": mixed, and all prompts begin with the same 100 tokens. Each repeat runs all candidates after
one another, so that what disturbs the machine disturbs them alike; a ratio is taken within a repeat.

Also decoding steps alone, of rows of like and of unlike length, without `generate`.

`--states` measures networks that keep state outside attention instead, one of each kind: linear attention
(Qwen3.5), convolution (LFM2), state space (Falcon-H1). `--hidden 512 --layers 8` gives them some 25 M
parameters.

Left out: transformers' continuous batching (`generate_batch`). It runs on a CPU, at some 120 tokens/s here.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from benchmarks.report import Row, publish
from benchmarks.shapes import STATE_FAMILIES, random_qwen3, random_state_network
from lightning_core.backends.local.attention import use_plans
from lightning_core.backends.local.decoder import Decoder, LlamaDecoder, NetworkDecoder, StateDecoder
from lightning_core.backends.local.engine import Engine, EngineOptions
from lightning_core.backends.local.memory import Memory
from lightning_core.backends.local.tuning import kv_shape
from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.backends.weights.model import parameter_count

CONTEXT = 512
UNLIKE_CONTEXT, STEPS = 4096, 40
"""The context of that network, and the steps that are timed."""


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts and how many tokens each reply has."""

    prompts: list[list[int]]
    replies: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.replies)


def make_load(kind: str, count: int, vocabulary: int, seed: int) -> Load:
    """`count` requests of a kind: equal, mixed or shared."""
    draw = random.Random(f"{kind}/{seed}")
    common = [draw.randrange(5, vocabulary) for _ in range(100 if kind == "shared" else 0)]
    prompts = [
        common + [draw.randrange(5, vocabulary) for _ in range(draw.randrange(120, 180) - len(common))]
        for _ in range(count)
    ]
    return Load(prompts, [40 if kind == "equal" else draw.randrange(20, 61) for _ in range(count)])


def run_generate(network: PreTrainedModel, load: Load, batch: int) -> None:
    """Left-padded static batches."""
    for start in range(0, len(load.prompts), batch):
        prompts = load.prompts[start : start + batch]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=network.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=network.device)
        new = max(load.replies[start : start + batch])
        network.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=new,
            min_new_tokens=new,
            pad_token_id=0,
        )


def make_engine(decoder: Decoder, network: PreTrainedModel, batch: int) -> Engine:
    """An engine that stops at no token, so that both sides make the same number."""
    options = EngineOptions(max_batch=batch)
    engine = Engine(decoder, kv_shape(network, torch.float32), frozenset(), options, 1)
    engine.start()
    return engine


def run_engine(engine: Engine, load: Load) -> None:
    """All requests at once, read to their end."""

    async def one(index: int) -> None:
        request = CompletionRequest()
        options = SamplingOptions(max_tokens=load.replies[index], seed=str(index))
        completion = Completion(load.prompts[index], options, request)
        engine.submit(completion)
        while not completion.finished:
            await request.wait()

    async def all_of_them() -> None:
        await asyncio.gather(*(one(i) for i in range(len(load.prompts))))

    asyncio.run(all_of_them())


def speed(work: Callable[[], None], load: Load, *, cpu: bool) -> float:
    """Sampled tokens per second: of this process's processors, or on the wall."""
    now = time.process_time if cpu else time.perf_counter
    started = now()
    work()
    return load.tokens / (now() - started)


def compare(
    name: str, plain: PreTrainedModel, served: PreTrainedModel, decoders: dict[str, Decoder], asked: Asked
) -> list[Row]:
    """A row for each kind and batch size; an engine starts every repeat with an empty prefix store."""
    rows = []
    for kind in asked.kinds:
        for batch in asked.batches:
            speeds: dict[str, list[float]] = {each: [] for each in ("generate", *decoders)}
            for repeat in range(asked.repeats):
                load = make_load(kind, min(asked.requests, 8 * batch), plain.config.vocab_size, repeat)
                made = speed(partial(run_generate, plain, load, batch), load, cpu=asked.cpu_time)
                speeds["generate"].append(made)
                for each, decoder in decoders.items():
                    engine = make_engine(decoder, served, batch)
                    speeds[each].append(speed(partial(run_engine, engine, load), load, cpu=asked.cpu_time))
                    engine.close()
            rows.append(Row(f"{name}{kind}, batch {batch}", "generate", speeds, "tokens/s"))
    return rows


def measure_packed(folder: Path, asked: Asked) -> list[Row]:
    """A network whose attention alone carries the past."""
    plain, planned = random_qwen3(folder), random_qwen3(folder)
    use_plans(planned)
    decoders: dict[str, Decoder] = {
        "engine": LlamaDecoder(planned, torch.float32, CONTEXT),
        "engine, general path": NetworkDecoder(planned, torch.float32),
    }
    return [*compare("", plain, planned, decoders, asked), measure_unlike(folder, asked)]


def measure_unlike(folder: Path, asked: Asked) -> Row:
    """Decoding steps of 32 rows, of like and of unlike length."""
    network = random_qwen3(folder)
    use_plans(network)
    decoder, draw = LlamaDecoder(network, torch.float32, UNLIKE_CONTEXT), random.Random("rows")
    like = [draw.randrange(80, 121) for _ in range(32)]
    lengths = {
        "rows of 100": like,
        "one of 3,000 among them": [*like[:13], 3000, *like[14:]],
        "rows of 100 to 3,000": [draw.randrange(100, 3001) for _ in range(32)],
    }
    speeds: dict[str, list[float]] = {name: [] for name in lengths}
    for _ in range(asked.repeats):
        for name, rows in lengths.items():
            memory = decoder.memory(kv_shape(network, torch.float32), len(rows), 1 << 30, 0)
            memory.reserve(max(rows) + STEPS, len(rows))
            load = Load([], [STEPS] * len(rows))
            speeds[name].append(speed(partial(decode, memory, rows), load, cpu=asked.cpu_time))
    return Row("decoding, batch 32", "rows of 100", speeds, "tokens/s")


@torch.inference_mode()
def decode(memory: Memory, rows: list[int]) -> None:
    """Steps of rows that have so many tokens."""
    for step in range(STEPS):
        memory.logits([row + step for row in rows], [], [7] * len(rows), list(range(len(rows))))


def measure_states(asked: Asked) -> list[Row]:
    """Networks that keep state outside attention."""
    rows = []
    for family in STATE_FAMILIES:
        network = random_state_network(family, hidden=asked.hidden, layers=asked.layers)
        name = f"{family}, {parameter_count(network) / 1e6:.1f} M, "
        decoders: dict[str, Decoder] = {"engine": StateDecoder(network, torch.float32)}
        rows += compare(name, network, network, decoders, asked)
    return rows


class Asked(argparse.Namespace):
    """The command's options."""

    repeats: int
    requests: int
    batches: list[int]
    kinds: list[str]
    cpu_time: bool
    states: bool
    hidden: int
    layers: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--kinds", nargs="+", default=["equal", "mixed", "shared"])
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor seconds, for a machine that is shared"
    )
    parser.add_argument("--states", action="store_true", help="networks with state outside attention")
    parser.add_argument("--hidden", type=int, default=192, help="features of such a network")
    parser.add_argument("--layers", type=int, default=4)
    asked = parser.parse_args(namespace=Asked())
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    if asked.states:
        title = "Networks with state outside attention against transformers.generate"
        publish(f"engine-states-{asked.hidden}", title, measure_states(asked))
        return
    with tempfile.TemporaryDirectory() as name:
        rows = measure_packed(Path(name), asked)
    publish("engine", "Engine against transformers.generate", rows)


if __name__ == "__main__":
    main()
