"""The study of the two backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from lightning_core.backends.local.backend import LocalBackend
from research.design import Variant
from research.outcomes import Outcome
from research.studies import Study
from research.tables import study_table
from research.verl.share import Share
from research.verl.usage import watched

RANKS = 2


@dataclass(frozen=True, slots=True)
class Backends(Study):
    """A study of backends, with what a step takes."""

    @property
    def command(self) -> str:
        return "make bench-verl"

    def render(self, variants: Mapping[str, Mapping[str, Outcome]]) -> str:
        figures = {
            name: [(run.extra, run.summary) for run in runs.values()] for name, runs in variants.items()
        }
        return f"{study_table(self, variants)}\n\n{Share().table(figures)}"


def backend(name: str, model: str = "tiny") -> Mapping[str, Any]:
    """The backend of a run: here verl has as many ranks on any machine."""
    if name == "local":
        return {"backend": "local"}
    if name == "vllm":
        return {"backend": LocalBackend(model, engine="vllm"), "model": None}
    from lightning_core.backends.verl.backend import VerlBackend

    return {"backend": VerlBackend("tiny", gpus=RANKS)}


STUDIES = MappingProxyType(
    {
        "verl": Backends(
            "verl",
            "verl and vLLM, beside the local backend",
            "sql",
            tuple(
                Variant(name, settings=partial(backend, name), key=f"on-{name}", beside=watched)
                for name in ("local", "verl")
            ),
            seeds=3,
            extra=Share(),
        ),
        "engines": Backends(
            "engines",
            "vLLM as the engine of the local backend, beside its own",
            "sql",
            tuple(
                Variant(label, settings=partial(backend, name), key=f"on-{name}", beside=watched)
                for label, name in (("engine torch", "local"), ("engine vllm", "vllm"))
            ),
            seeds=3,
            extra=Share(),
        ),
        "engines-smollm2": Backends(
            "engines-smollm2",
            "vLLM as the engine of the local backend, with SmolLM2",
            "words",
            tuple(
                Variant(
                    label, settings=partial(backend, name, "smollm2"), key=f"words-on-{name}", beside=watched
                )
                for label, name in (("engine torch", "local"), ("engine vllm", "vllm"))
            ),
            seeds=3,
            steps=8,
            tasks=40,
            extra=Share(),
        ),
    }
)
