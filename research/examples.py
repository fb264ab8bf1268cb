"""The examples that have results: each is a study of one variant, the example as it is, shown run by run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from research.design import Variant
from research.outcomes import Outcome
from research.rewriting import Rewriting
from research.studies import REAL, Study
from research.tables import example_tables

AS_IT_IS = (Variant("as it is", key="example"),)


@dataclass(frozen=True, slots=True)
class Example(Study):
    """One example, trained as its own script says."""

    seeds: int = 3
    steps: int | None = None
    tasks: int = 200
    extra: Rewriting | None = None
    parts: str = "form of question"
    """The groups of the script's `group_by`; the first word heads the column."""

    @property
    def command(self) -> str:
        return f"make results EXAMPLE={self.name}"

    def render(self, variants: Mapping[str, Mapping[str, Outcome]]) -> str:
        """Its runs one by one, then by part and by agent, and its own table."""
        (runs,) = variants.values()
        return example_tables(runs, self.parts, self.extra)


EXAMPLES = MappingProxyType(
    {
        each.name: each
        for each in (
            Example(
                "sql",
                "The SQL agent, on two CPU cores",
                "sql",
                AS_IT_IS,
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
                (Variant("as it is", key="grpo-curriculum"),),  # of the study words-learning too
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
