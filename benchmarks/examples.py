"""The examples that have results: each is a study of one variant, the example as it is, shown run by run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.outcomes import Outcome
from benchmarks.rewriting import Rewriting
from benchmarks.studies import REAL, Start, Study, Variant
from benchmarks.tables import example_tables

AS_IT_IS = (Variant("as it is", key="example"),)


@dataclass(frozen=True, slots=True)
class Example(Study):
    """One example, trained as its own script says."""

    seeds: int = 3
    steps: int | None = None
    tasks: int = 200
    extra: Rewriting | None = None
    runs_are: str = "seed"
    """What a run's name says."""
    parts: str = "form of question"
    """What the script's `group_by` tells apart; the first word heads the column."""

    @property
    def command(self) -> str:
        return f"make results EXAMPLE={self.name}"

    def render(self, variants: Mapping[str, Mapping[str, Outcome]]) -> str:
        """Its runs one by one, then by part and by agent, and its own table."""
        (runs,) = variants.values()
        return example_tables(self, runs)


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
        each.name: each
        for each in (
            Example(
                "sql",
                "The SQL agent, on two CPU cores",
                "sql",
                AS_IT_IS,
                starts=(Start("warm0-", shipped), Start("warm1-", second_warm_start)),
                runs_are="warm start, seed",
                extra=Rewriting("rewrite_query"),
            ),
            Example("calc", "The calculator agent, with AutoGen", "calc", AS_IT_IS, parts="form of problem"),
            Example("rag", "The research agent, with the OpenAI Agents SDK", "rag", AS_IT_IS),
            Example("plain", "A program without a framework", "plain", AS_IT_IS, extra=Rewriting("rewriter")),
            Example("crew", "The crew, with CrewAI", "crew", AS_IT_IS),
            Example(
                "words",
                "A real model: word problems, with LangGraph",
                "words",
                AS_IT_IS,
                seeds=5,
                tasks=60,
                backend=REAL,
                parts="kind of problem",
            ),
            Example(
                "orders",
                "A real model: orders into a form, with the OpenAI Agents SDK",
                "orders",
                AS_IT_IS,
                tasks=60,
                backend=REAL,
            ),
            Example(
                "support",
                "A real model: customers' messages, with AutoGen",
                "support",
                AS_IT_IS,
                seeds=5,
                tasks=90,
                backend=REAL,
                parts="action",
            ),
        )
    }
)
