"""Roles that need opposite behaviour on like-looking prompts, and roles that need the same skill.

The variants differ in the policies alone: one set of adapters for both roles, or one of half the rank for
each. So all train equally many parameters, on equally many rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import lightning_core as lightning
from research.design import Variant
from research.outcomes import Outcome
from research.studies import Study
from research.tables import part_table, study_table


@dataclass(frozen=True, slots=True)
class Roles(Study):
    """A study of this package."""

    @property
    def command(self) -> str:
        return f"python -m research.policies {self.name}"

    def render(self, variants: Mapping[str, Mapping[str, Outcome]]) -> str:
        """The study's table, then success by role."""
        by_role = [
            f"By role, {name}:\n\n{part_table('role', [run.summary for run in runs.values()])}"
            for name, runs in variants.items()
        ]
        return "\n\n".join([study_table(self, variants), *by_role])


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is trained in two roles."""

    name: str
    script: str
    rank: int
    """The rank of each role's own adapters; shared ones have twice that."""
    rate: str
    """The learning rate of all."""


TINY = Model("tiny", "research/policies/roles.py", 4, "4e-3")
"""The rate was chosen on another seed with validation tasks, where 1e-3 was slower."""
SMOLLM2 = Model("smollm2", "research/policies/answers.py", 8, "4e-4")
"""Chosen alike, where 2e-4 was slower for two policies."""


def adapters(model: Model, rank: int, **more: Any) -> Mapping[str, Any]:
    """The settings of a run with adapters of this rank; their product is scaled alike at every rank."""
    lora = lightning.LoraOptions(rank=rank, alpha=2.0 * rank)
    backend = lightning.LocalBackend(model.name, learning_rate=float(model.rate), lora=lora)
    return {"model": None, "backend": backend, **more}


def variants(model: Model, conventions: str) -> Iterator[Variant]:
    """One policy, and one for each role."""
    ways: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
        "one": ("one policy", 2 * model.rank, {}),
        "each": ("a policy for each role", model.rank, {"policies": {"audit": "audit"}}),
    }
    for key, (name, rank, more) in ways.items():
        yield Variant(
            name,
            partial(adapters, model, rank, **more),
            f"{conventions}-{key}-{model.rate}",
            model.script,
            ("--conventions", conventions),
        )


def study(model: Model, conventions: str, name: str, title: str, **options: Any) -> Roles:
    """All variants on an app with these conventions."""
    return Roles(name, title, f"roles-{model.name}", tuple(variants(model, conventions)), **options)


REAL: Mapping[str, Any] = MappingProxyType(
    {"seeds": 5, "steps": 20, "tasks": 80, "backend": {"dtype": "bfloat16"}}
)

STUDIES: Mapping[str, Roles] = MappingProxyType(
    {
        each.name: each
        for each in (
            study(
                TINY,
                "opposed",
                "policies-opposed",
                "Two roles that read the same questions differently: one policy, or two",
                seeds=4,
            ),
            study(
                TINY,
                "same",
                "policies-same",
                "Two roles that need the same skill: one policy, or two",
                seeds=4,
            ),
            study(
                SMOLLM2,
                "opposed",
                "policies-opposed-smollm2",
                "A real model in two roles, one short and one long: one policy, or two",
                **REAL,
            ),
            study(
                SMOLLM2,
                "same",
                "policies-same-smollm2",
                "A real model in two short roles: one policy, or two",
                **REAL,
            ),
        )
    }
)
