"""Make the tiny policy: `python -m recipes.tiny --seed 0 --out DIR`."""

import argparse
import random
import tempfile
import time
from collections import deque
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.sql.tasks import load_tasks
from recipes.tiny.card import Scores, write_folder
from recipes.tiny.corpus import converse, demonstrate
from recipes.tiny.training import Recipe, build_model, make_batches, train
from recipes.tiny.trial import measure
from recipes.tiny.vocabulary import render, train_tokenizer

TOKENIZER_TEXTS = 8000
"""Demonstrations that the tokenizer is learnt from, the same ones whatever the seed."""


def main() -> None:
    """Train, measure and write one policy."""
    parser = argparse.ArgumentParser(prog="python -m recipes.tiny", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the demonstrations")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write; replaced as a whole")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="of 32 demonstrations each")
    parser.add_argument(
        "--limit", type=int, default=None, help="validation tasks to measure on (default: all)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe, console, start = Recipe(seed=options.seed, steps=options.steps), Console(), time.process_time()
    texts = [render(d.messages, d.reply) for d in islice(demonstrate(random.Random(0)), TOKENIZER_TEXTS)]
    tokenizer = train_tokenizer(texts, recipe.vocabulary, recipe.context)
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
    write_folder(options.out, model, tokenizer, recipe, scores, seconds)
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
        batches = make_batches(converse(rng), demonstrate(rng), tokenizer, recipe, rng)
        train(model, tokenizer, recipe, batches, report)


def _table(scores: Scores) -> Table:
    table = Table("form", *scores, title="execution match on unseen databases")
    for form in scores["greedy"]:
        table.add_row(form, *(f"{by_form[form]:.2f}" for by_form in scores.values()))
    return table


if __name__ == "__main__":
    main()
