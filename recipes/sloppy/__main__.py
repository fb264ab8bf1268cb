"""Make the sloppy SQL policy: `python -m recipes.sloppy --seed 0 --out DIR`."""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.sql.app import clean_sql
from examples.sql.execution import describe_schema, open_database, run_query
from examples.sql.prompts import write_prompt
from examples.sql.tasks import load_tasks
from lightning_core.backends.weights.sources import tiny_folder
from recipes.answering import answer
from recipes.command import read_options, train_in_sight
from recipes.sloppy.card import write_card
from recipes.sloppy.corpus import SHARE, demonstrate
from recipes.tiny.card import score_table, write_policy
from recipes.tiny.training import Recipe, make_batches
from recipes.tiny.trial import Task, measure

RECIPE = Recipe(steps=400, conversation_steps=0, muon_lr=5e-3, adamw_lr=1e-3)
"""From weights that can read and write already: no conversations, and a quarter of the step size."""


def main() -> None:
    """Train, measure and write one policy."""
    options = read_options("sloppy", __doc__, RECIPE)
    torch.set_num_threads(1)
    recipe, console, start = options.recipe, Console(), time.process_time()
    torch.manual_seed(recipe.seed)
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_folder())
    rng = random.Random(f"sloppy demonstrations {recipe.seed}")
    batches = make_batches(iter(()), demonstrate(SHARE, rng), tokenizer, recipe, rng)
    train_in_sight(model, tokenizer, recipe, batches, console)
    seconds = time.process_time() - start
    with tempfile.TemporaryDirectory() as scratch:
        tasks = load_tasks("validation", scratch, options.limit)
        ways = {"greedy": True, "sampled": False}
        scores = {how: measure(model, tokenizer, tasks, greedy) for how, greedy in ways.items()}
        refused = {how: refused_share(model, tokenizer, tasks, greedy) for how, greedy in ways.items()}
    console.print(score_table(scores), f"first queries refused: {refused}", sep="\n\n")
    card = write_card(recipe, SHARE, scores, refused)
    record = {"recipe": asdict(recipe), "scores": scores, "refused": refused, "cpu_seconds": round(seconds)}
    write_policy(options.out, model, tokenizer, record, card)
    console.print(f"{options.out} is ready, after {seconds:.0f} s of CPU time")


def refused_share(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: list[Task], greedy: bool
) -> float:
    """Returns the share of first queries that the database refuses."""
    prompts = []
    for task in tasks:
        with open_database(task["database"]) as connection:
            prompts.append(write_prompt(describe_schema(connection), task["question"]))
    refused = 0
    for task, reply in zip(tasks, answer(model, tokenizer, prompts, greedy), strict=True):
        with open_database(task["database"]) as connection:
            refused += run_query(connection, clean_sql(reply)).rows is None
    return round(refused / len(tasks), 3)


if __name__ == "__main__":
    main()
