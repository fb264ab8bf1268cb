"""Make the SQL policy that reads instructions: `python -m recipes.promptable --seed 0 --out DIR`."""

from __future__ import annotations

import random
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.sql.app import clean_sql
from examples.sql.execution import describe_schema, open_database
from examples.sql.prompts import write_prompt
from examples.sql.reward import execution_match
from examples.sql.tasks import load_tasks
from lightning_core.backends.weights.sources import tiny_folder
from recipes.answering import answer
from recipes.command import read_options, train_in_sight
from recipes.promptable.corpus import demonstrate
from recipes.promptable.sentences import TOPICS, WORDINGS, say
from recipes.tiny.card import write_policy
from recipes.tiny.training import Recipe, make_batches
from recipes.tiny.trial import Task

RECIPE = Recipe(steps=700, conversation_steps=0, muon_lr=1e-2, adamw_lr=2e-3)
"""From weights that write already: no conversations, and half of the step size."""

CARD = """\
---
license: mit
library_name: transformers
pipeline_tag: text-generation
---

# The SQL policy that reads instructions

The tiny policy of `examples/sql` after {steps} steps on {batch_size} demonstrations each of writers who were
told conventions. Made by

    python -m recipes.promptable --seed {seed} --out DIR

Its prompts had a sentence for each of none to four topics, and the reply followed them. Where nothing is
said, it follows the wrong convention as a rule, as the tiny policy does.

## What it reads

Execution match of its first query, greedily, on the validation tasks of `examples.sql.tasks`. "Shown" and
"never shown" are the wordings of the four right sentences; the wrong sentences name other conventions.

{table}
"""
Scores = dict[str, dict[str, float]]


def main() -> None:
    """Train, measure and write one policy."""
    options = read_options("promptable", __doc__, RECIPE)
    torch.set_num_threads(1)
    recipe, console, start = options.recipe, Console(), time.process_time()
    torch.manual_seed(recipe.seed)
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_folder())
    rng = random.Random(f"promptable demonstrations {recipe.seed}")
    batches = make_batches(iter(()), demonstrate(rng), tokenizer, recipe, rng)
    train_in_sight(model, tokenizer, recipe, batches, console)
    seconds = time.process_time() - start
    with tempfile.TemporaryDirectory() as scratch:
        scores = measure(model, tokenizer, load_tasks("validation", scratch, options.limit))
    console.print(table(scores))
    record = {"recipe": asdict(recipe), "scores": scores, "cpu_seconds": round(seconds)}
    write_policy(options.out, model, tokenizer, record, CARD.format(table=table(scores), **asdict(recipe)))
    console.print(f"{options.out} is ready, after {seconds:.0f} s of CPU time")


def measure(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: list[Task], seed: int = 0
) -> Scores:
    """Execution match of first queries by what the prompt says and by form."""
    rng = random.Random(seed)
    scores: Scores = {}
    for way in ("nothing said", "shown", "never shown", "wrong"):
        prompts = []
        for task in tasks:
            with open_database(task["database"]) as connection:
                messages = write_prompt(describe_schema(connection), task["question"])
            said = {} if way == "nothing said" else dict.fromkeys(WORDINGS, "gold")
            if way == "wrong":
                said = {
                    topic: rng.choice([each for each in WORDINGS[topic] if each != "gold"]) for topic in said
                }
            held_out = way in ("never shown", "wrong")
            messages[0]["content"] = say(messages[0]["content"], said, rng, held_out=held_out)
            prompts.append(messages)
        by_form: dict[str, list[float]] = defaultdict(list)
        for task, reply in zip(tasks, answer(model, tokenizer, prompts, True), strict=True):
            reward = execution_match(clean_sql(reply), task["gold"], task["database"])
            by_form[task["form"] if task["form"] in TOPICS else "others"].append(reward)
        scores[way] = {form: round(fmean(rewards), 3) for form, rewards in sorted(by_form.items())}
    return scores


def table(scores: Scores) -> str:
    """The scores in Markdown, a row for each form."""
    lines = [f"| form | {' | '.join(scores)} |", "|---" * (len(scores) + 1) + "|"]
    for form in scores["nothing said"]:
        lines.append(f"| {form} | {' | '.join(f'{each[form]:.2f}' for each in scores.values())} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
