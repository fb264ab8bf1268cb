"""Shared parts of the recipes' commands: their options, and a training that one can watch."""

import argparse
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from recipes.tiny.training import Example, Recipe, train


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    recipe: Recipe
    out: Path
    """The folder to write."""
    limit: int | None
    """Validation tasks to measure on; None means all."""


def read_options(name: str, description: str | None, recipe: Recipe) -> Options:
    """The options of `python -m recipes.NAME`; `recipe` gives what they leave open."""
    parser = argparse.ArgumentParser(prog=f"python -m recipes.{name}", description=description)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the demonstrations")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write; replaced as a whole")
    parser.add_argument("--steps", type=int, default=recipe.steps, help="conversations first")
    parser.add_argument(
        "--limit", type=int, default=None, help="validation tasks to measure on (default: all)"
    )
    read = parser.parse_args()
    return Options(replace(recipe, seed=read.seed, steps=read.steps), read.out, read.limit)


def train_in_sight(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    batches: Iterator[list[Example]],
    console: Console,
) -> None:
    """Train the model in place, with a bar that shows the steps and the mean loss of the last fifty."""
    console.print(f"{model.num_parameters() / 1e6:.2f} M parameters, {len(tokenizer)} tokens")
    losses: deque[float] = deque(maxlen=50)
    loss_column = TextColumn("loss {task.fields[loss]:.3f}")
    columns = (loss_column, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("train", total=recipe.steps, loss=float("nan"))

        def report(step: int, loss: float) -> None:
            losses.append(loss)
            progress.update(bar, completed=step + 1, loss=sum(losses) / len(losses))

        train(model, tokenizer, recipe, batches, report)
