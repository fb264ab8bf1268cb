"""The cost of constrained decoding beside unconstrained: `python -m benchmarks.constrained`.

Random weights in the shape of the shipped model, one thread, batch 32, replies of 40 tokens after prompts of
120 to 180. The vocabularies are those of the shipped model and of SmolLM2, each with its own tokenizer. The
network is small, so the masks' share is larger than with any model of use: about 1.4 M parameters, and 9.4 M
more in the output layer of the large vocabulary. "starting" is the time to make a grammar ready, in ms.
Each repeat runs all candidates after one another; a ratio is taken within a repeat.

- any JSON: what `response_format={"type": "json_object"}` asks for, but an array, which need not end
- a schema: an array of objects with a text, a number and one of three words
- maxLength: a text of 1,000 to 2,000 characters, which is counted
- a tool: calls of any of three functions
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import warnings
from functools import partial

import torch
from transformers import PreTrainedTokenizerBase

from benchmarks.engine import CONTEXT, Load, make_engine, make_load, speed
from benchmarks.report import Row, publish
from benchmarks.shapes import random_qwen3
from lightning_core.backends.local.attention import use_plans
from lightning_core.backends.local.decoder import LlamaDecoder
from lightning_core.backends.local.engine import Engine
from lightning_core.backends.serving.completion import Completion, CompletionRequest, SamplingOptions
from lightning_core.backends.serving.constraints import Grammars
from lightning_core.backends.weights.sources import find_source, load_tokenizer
from lightning_core.dialects.upstream import ChatRequest, Constraint

BATCH = 32
OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "unit": {"enum": ["day", "month", "year"]},
    },
    "required": ["name", "age", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": OBJECT}}
    for name in ("look_up", "order", "cancel", "answer")
]
LONG = {"type": "string", "minLength": 1000, "maxLength": 2000}
ASKED: dict[str, ChatRequest | None] = {
    "unconstrained": None,
    "any JSON": ChatRequest([], constraint=Constraint(schema={"type": "array", "minItems": 99})),
    "a schema": ChatRequest(
        [], constraint=Constraint(schema={"type": "array", "items": OBJECT, "minItems": 99})
    ),
    "maxLength": ChatRequest([], constraint=Constraint(schema=LONG)),
    "a tool": ChatRequest([], tools=TOOLS, constraint=Constraint(tools=("look_up", "order", "cancel"))),
}


def run(engine: Engine, load: Load, grammars: Grammars, grammar: str | None) -> None:
    """All requests at once, read to their end."""

    async def one(index: int) -> None:
        request = CompletionRequest()
        options = SamplingOptions(max_tokens=load.replies[index], seed=str(index))
        matcher = None if grammar is None else grammars.start(grammar)
        completion = Completion(load.prompts[index], options, request, matcher)
        engine.submit(completion)
        while not completion.finished:
            await request.wait()
        if completion.error is not None or len(completion.ids) != options.max_tokens:
            raise RuntimeError(f"a reply ended after {len(completion.ids)} tokens: {completion.error}")

    async def all_of_them() -> None:
        await asyncio.gather(*(one(i) for i in range(len(load.prompts))))

    asyncio.run(all_of_them())


def starting(tokenizer: PreTrainedTokenizerBase, vocabulary: int, stop: int) -> dict[str, float]:
    """Milliseconds until a new grammar is ready, the vocabulary being read already."""
    grammars = Grammars(tokenizer, vocabulary)
    grammars.start('start: "a"')
    found = {}
    for name, request in ASKED.items():
        if request is not None:
            started = time.perf_counter()
            grammars.write(request)
            found[name] = 1000 * (time.perf_counter() - started)
    return found


def measure(model: str, repeats: int, count: int) -> tuple[Row, dict[str, float]]:
    """The speeds of one vocabulary, and the milliseconds of its starts."""
    tokenizer = load_tokenizer(find_source(model)[0])
    network = random_qwen3(vocabulary=len(tokenizer))
    use_plans(network)
    stop = tokenizer.convert_tokens_to_ids(tokenizer.eos_token)
    grammars = Grammars(tokenizer, len(tokenizer))
    decoder = LlamaDecoder(network, torch.float32, CONTEXT)
    speeds: dict[str, list[float]] = {name: [] for name in ASKED}
    for repeat in range(repeats):
        load = make_load("equal", count, len(tokenizer) - 20, repeat)
        for name, request in ASKED.items():
            grammar = None if request is None else grammars.write(request)
            engine = make_engine(decoder, network, BATCH)
            speeds[name].append(speed(partial(run, engine, load, grammars, grammar), load, cpu=True))
            engine.close()
    starts = [starting(tokenizer, len(tokenizer), stop) for _ in range(repeats)]
    row = Row(f"{len(tokenizer):,} tokens", "unconstrained", speeds, "tokens/CPU s")
    return row, {name: statistics.median(each[name] for each in starts) for name in starts[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows, notes = [], {}
    for model in asked.models:
        row, notes[f"starting, ms, {model}"] = measure(model, asked.repeats, asked.requests)
        rows.append(row)
    publish("constrained", f"Constrained decoding at batch {BATCH}", rows, notes)


if __name__ == "__main__":
    main()
