"""Make the policy of the RAG example: `python -m recipes.rag --seed 0 --out examples/rag/policy`."""

import random
import tempfile
import time
from itertools import chain, islice

import torch
from rich.console import Console

from examples.rag.tasks import load_tasks
from recipes.command import read_options, train_in_sight
from recipes.rag.card import write_folder
from recipes.rag.corpus import converse, copy, demonstrate
from recipes.rag.trial import measure
from recipes.rag.vocabulary import SIZE, make_tokenizer
from recipes.tiny.card import score_table
from recipes.tiny.training import Recipe, build_model, make_batches

TOKENIZER_TEXTS = 2000
"""Demonstrations that the tokenizer is learnt from, the same ones whatever the seed."""

COPYING_STEPS = 185
"""Steps on names to repeat, before those on conversations and counted among them."""

RECIPE = Recipe(
    steps=1000,
    batch_size=8,
    conversation_steps=715,
    conversations=2,
    hidden_size=128,
    layers=4,
    vocabulary=SIZE,
    context=2048,
)
"""How the policy is built and trained; what is not given here is as in the SQL policy's recipe."""


def main() -> None:
    """Train, measure and write one policy."""
    options = read_options("rag", __doc__, RECIPE)
    torch.set_num_threads(1)
    recipe, console, start = options.recipe, Console(), time.process_time()
    tokenizer = make_tokenizer(islice(demonstrate(random.Random(0)), TOKENIZER_TEXTS), recipe.context)
    model = build_model(recipe, tokenizer)
    rng = random.Random(f"demonstrations {recipe.seed}")
    first = chain(islice(copy(rng), COPYING_STEPS * recipe.conversations), converse(rng))
    batches = make_batches(first, demonstrate(rng), tokenizer, recipe, rng)
    train_in_sight(model, tokenizer, recipe, batches, console)
    seconds = time.process_time() - start
    with tempfile.TemporaryDirectory() as scratch:
        tasks = load_tasks("validation", scratch, options.limit)
        scores = {
            how: measure(model, tokenizer, tasks, greedy=how == "greedy") for how in ("greedy", "sampled")
        }
    console.print(score_table(scores))
    write_folder(options.out, model, tokenizer, recipe, COPYING_STEPS, scores, seconds)
    console.print(f"{options.out} is ready, after {seconds:.0f} s of CPU time")


if __name__ == "__main__":
    main()
