"""Make the policy of the RAG example: `python -m recipes.rag --seed 0 --out examples/rag/policy`."""

import argparse
import random
import tempfile
import time
from collections import deque
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.rag.tasks import load_tasks
from recipes.rag.card import write_folder
from recipes.rag.corpus import converse, copy, demonstrate
from recipes.rag.trial import measure
from recipes.rag.vocabulary import SIZE, make_tokenizer
from recipes.tiny.card import Scores
from recipes.tiny.training import Recipe, build_model, make_batches, train

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
    parser = argparse.ArgumentParser(prog="python -m recipes.rag", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the demonstrations")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write; replaced as a whole")
    parser.add_argument("--steps", type=int, default=RECIPE.steps, help="conversations first")
    parser.add_argument(
        "--limit", type=int, default=None, help="validation tasks to measure on (default: all)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = replace(RECIPE, seed=options.seed, steps=options.steps)
    console, start = Console(), time.process_time()
    tokenizer = make_tokenizer(islice(demonstrate(random.Random(0)), TOKENIZER_TEXTS), recipe.context)
    model = build_model(recipe, tokenizer)
    console.print(f"{model.num_parameters() / 1e6:.2f} M parameters, {len(tokenizer)} tokens")
    _train(model, tokenizer, recipe, console)
    seconds = time.process_time() - start
    with tempfile.TemporaryDirectory() as scratch:
        tasks = load_tasks("validation", scratch, options.limit)
        scores = {
            how: measure(model, tokenizer, tasks, greedy=how == "greedy") for how in ("greedy", "sampled")
        }
    console.print(_table(scores))
    write_folder(options.out, model, tokenizer, recipe, COPYING_STEPS, scores, seconds)
    console.print(f"{options.out} is ready, after {seconds:.0f} s of CPU time")


def _train(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe, console: Console
) -> None:
    losses: deque[float] = deque(maxlen=50)
    columns = (
        TextColumn("loss {task.fields[loss]:.3f}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("train", total=recipe.steps, loss=float("nan"))

        def report(step: int, loss: float) -> None:
            losses.append(loss)
            progress.update(bar, completed=step + 1, loss=sum(losses) / len(losses))

        rng = random.Random(f"demonstrations {recipe.seed}")
        first = chain(islice(copy(rng), COPYING_STEPS * recipe.conversations), converse(rng))
        batches = make_batches(first, demonstrate(rng), tokenizer, recipe, rng)
        train(model, tokenizer, recipe, batches, report)


def _table(scores: Scores) -> Table:
    table = Table("form", *scores, title="reward on an unseen library")
    for form in scores["greedy"]:
        table.add_row(form, *(f"{by_form[form]:.2f}" for by_form in scores.values()))
    return table


if __name__ == "__main__":
    main()
