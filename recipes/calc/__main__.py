"""Make the policy of the calculator example: `python -m recipes.calc --seed 0 --out DIR`."""

import argparse
import random
import tempfile
import time
from collections import deque
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

import lightning_core as lightning
from examples.calc.tasks import load_tasks
from examples.calc.train import solve
from recipes.calc.card import score_table, write_card
from recipes.calc.corpus import converse, demonstrate
from recipes.calc.vocabulary import learn_tokenizer
from recipes.tiny.card import Scores, write_policy
from recipes.tiny.training import Recipe, build_model, make_batches, train

RECIPE = Recipe(steps=360, conversation_steps=300, vocabulary=800)
TOKENIZER_DEMONSTRATIONS = 4000
"""What the tokenizer is learnt from, the same whatever the seed."""
REPORT_STEPS = 25


def main() -> None:
    """Train, measure and write one policy."""
    parser = argparse.ArgumentParser(prog="python -m recipes.calc", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the demonstrations")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write; replaced as a whole")
    parser.add_argument("--steps", type=int, default=RECIPE.steps)
    parser.add_argument(
        "--limit", type=int, default=None, help="validation tasks to measure on (default: all)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    console, start = Console(), time.process_time()
    recipe = replace(RECIPE, seed=options.seed, steps=options.steps)
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
    console.print(f"{model.num_parameters() / 1e6:.2f} M parameters, {len(tokenizer)} tokens")
    losses: deque[float] = deque(maxlen=REPORT_STEPS)

    def report(step: int, loss: float) -> None:
        losses.append(loss)
        if (step + 1) % REPORT_STEPS == 0:
            console.print(f"step {step + 1}: loss {sum(losses) / len(losses):.3f}")

    rng = random.Random(f"demonstrations {recipe.seed}")
    batches = make_batches(converse(rng), demonstrate(rng), tokenizer, recipe, rng)
    train(model, tokenizer, recipe, batches, report)
    return model.to(torch.bfloat16), tokenizer


def measure(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, limit: int | None) -> Scores:
    """Success in the app by form of problem, and over all tasks under "all": a run of no steps."""
    with tempfile.TemporaryDirectory() as scratch:
        policy = Path(scratch) / "policy"
        model.save_pretrained(policy)
        tokenizer.save_pretrained(policy)
        trainer = lightning.Trainer(
            model=policy, steps=0, breakdown="form", folder=Path(scratch) / "run", progress=False
        )
        before = trainer.fit(solve, train=[], validation=load_tasks("validation", limit)).before
    assert before is not None
    return {
        how: {**before.detail[how].by, "all": before.detail[how].success} for how in ("greedy", "sampled")
    }


if __name__ == "__main__":
    main()
