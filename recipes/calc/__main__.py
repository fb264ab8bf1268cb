"""Make the policy of the calculator example: `python -m recipes.calc --seed 0 --out DIR`."""

import random
import tempfile
import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

import lightning_core as lightning
from examples.calc.tasks import load_tasks
from examples.calc.train import solve
from recipes.calc.card import write_card
from recipes.calc.corpus import converse, demonstrate
from recipes.calc.vocabulary import learn_tokenizer
from recipes.command import read_options, train_in_sight
from recipes.tiny.card import Scores, score_table, write_policy
from recipes.tiny.training import Recipe, build_model, make_batches

RECIPE = Recipe(steps=360, conversation_steps=300, vocabulary=800)
TOKENIZER_DEMONSTRATIONS = 4000
"""Demonstrations that the tokenizer is learnt from, the same whatever the seed."""


def main() -> None:
    """Train, measure and write one policy."""
    options = read_options("calc", __doc__, RECIPE)
    torch.set_num_threads(1)
    recipe, console, start = options.recipe, Console(), time.process_time()
    model, tokenizer = make_policy(recipe, console)
    seconds = time.process_time() - start
    scores = measure(model, tokenizer, options.limit)
    console.print(score_table(scores))
    card = write_card(recipe, model.num_parameters(), scores, seconds)
    record = {"recipe": asdict(recipe), "cpu_seconds": round(seconds), "scores": scores}
    write_policy(options.out, model, tokenizer, record, card, torch.bfloat16)
    console.print(f"{options.out} is ready, after {seconds:.0f} s of CPU time")


def make_policy(recipe: Recipe, console: Console) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A policy after its warm start, its weights rounded to bfloat16."""
    texts = islice(demonstrate(random.Random(0)), TOKENIZER_DEMONSTRATIONS)
    tokenizer = learn_tokenizer(texts, recipe.vocabulary, recipe.context)
    model = build_model(recipe, tokenizer)
    rng = random.Random(f"demonstrations {recipe.seed}")
    batches = make_batches(converse(rng), demonstrate(rng), tokenizer, recipe, rng)
    train_in_sight(model, tokenizer, recipe, batches, console)
    return model.to(torch.bfloat16), tokenizer


def measure(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, limit: int | None) -> Scores:
    """Success in the app by form of problem, and over all tasks under "all": a run of no steps."""
    with tempfile.TemporaryDirectory() as scratch:
        policy = Path(scratch) / "policy"
        model.save_pretrained(policy)
        tokenizer.save_pretrained(policy)
        trainer = lightning.Trainer(
            model=policy, steps=0, group_by="form", folder=Path(scratch) / "run", progress=False
        )
        before = trainer.fit(solve, train=[], validation=load_tasks("validation", limit)).before
    assert before is not None
    return {
        how: {**before.detail[how].by, "all": before.detail[how].success} for how in ("greedy", "sampled")
    }


if __name__ == "__main__":
    main()
