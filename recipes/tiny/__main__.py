"""Make the tiny policy: `python -m recipes.tiny --seed 0 --out DIR`."""

import random
import tempfile
import time
from itertools import islice

import torch
from rich.console import Console

from examples.sql.tasks import load_tasks
from recipes.command import read_options, train_in_sight
from recipes.tiny.card import score_table, write_folder
from recipes.tiny.corpus import converse, demonstrate
from recipes.tiny.training import Recipe, build_model, make_batches
from recipes.tiny.trial import measure
from recipes.tiny.vocabulary import render, train_tokenizer

TOKENIZER_TEXTS = 8000
"""Demonstrations that the tokenizer is learnt from, the same ones whatever the seed."""


def main() -> None:
    """Train, measure and write one policy."""
    options = read_options("tiny", __doc__, Recipe())
    torch.set_num_threads(1)
    recipe, console, start = options.recipe, Console(), time.process_time()
    texts = [render(d.messages, d.reply) for d in islice(demonstrate(random.Random(0)), TOKENIZER_TEXTS)]
    tokenizer = train_tokenizer(texts, recipe.vocabulary, recipe.context)
    model = build_model(recipe, tokenizer)
    rng = random.Random(f"demonstrations {recipe.seed}")
    batches = make_batches(converse(rng), demonstrate(rng), tokenizer, recipe, rng)
    train_in_sight(model, tokenizer, recipe, batches, console)
    seconds = time.process_time() - start
    with tempfile.TemporaryDirectory() as scratch:
        tasks = load_tasks("validation", scratch, options.limit)
        scores = {
            how: measure(model, tokenizer, tasks, greedy=how == "greedy") for how in ("greedy", "sampled")
        }
    console.print(score_table(scores))
    write_folder(options.out, model, tokenizer, recipe, scores, seconds)
    console.print(f"{options.out} is ready, after {seconds:.0f} s of CPU time")


if __name__ == "__main__":
    main()
