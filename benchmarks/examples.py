"""The examples that have results: what to train, from which models, and which table each has of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.rewriting import Rewriting

Model = Callable[[], str] | None
"""Gives the model to start from; None leaves it to the example's training script."""


@dataclass(frozen=True, slots=True)
class Example:
    """One example, as `benchmarks.results` trains and reports it."""

    name: str
    """Of its folder, its JSON, its plot and its marks in the page."""
    title: str
    """Heading of its section, where the page has none yet."""
    warm_starts: tuple[tuple[str, Model], ...] = (("", None),)
    """What a run's name begins with, and the model that it starts from."""
    runs_are: str = "seed"
    """What a run's name says."""
    parts: str = "form of question"
    """What the script's `breakdown` tells apart; the first word heads the column."""
    extra: Rewriting | None = None
    """A table of its own, after the others."""

    @property
    def command(self) -> str:
        return f"make results EXAMPLE={self.name}"

    @property
    def script(self) -> str:
        return f"examples/{self.name}/train.py"


def shipped() -> str:
    """The policy that ships."""
    return "tiny"


def second_warm_start() -> str:
    """The policy that the recipe makes with seed 1; made when it is not there (some 15 minutes)."""
    folder = Path(".data/tiny-1")
    if not folder.is_dir():
        command = [sys.executable, "-m", "recipes.tiny", "--seed", "1", "--out", str(folder)]
        subprocess.run(command, check=True)
    return str(folder)


EXAMPLES = MappingProxyType(
    {
        example.name: example
        for example in (
            Example(
                "sql",
                "The SQL agent, on two CPU cores",
                warm_starts=(("warm0-", shipped), ("warm1-", second_warm_start)),
                runs_are="warm start, seed",
                extra=Rewriting("rewrite_query"),
            ),
            Example("calc", "The calculator agent, with AutoGen", parts="form of problem"),
            Example("rag", "The research agent, with the OpenAI Agents SDK"),
            Example("plain", "A program without a framework", extra=Rewriting("rewriter")),
            Example("crew", "The crew, with CrewAI"),
        )
    }
)
