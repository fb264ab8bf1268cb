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

RANK = 4
"""The rank of each role's own adapters; shared ones have twice that."""
RATE = "4e-3"
"""The learning rate of all; chosen on another seed with validation tasks, where 1e-3 was slower."""


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


def adapters(rank: int, **more: Any) -> Mapping[str, Any]:
    """The settings of a run with adapters of this rank; their product is scaled alike at every rank."""
    lora = lightning.LoraOptions(rank=rank, alpha=2.0 * rank)
    backend = lightning.LocalBackend("tiny", learning_rate=float(RATE), lora=lora)
    return {"model": None, "backend": backend, **more}


def variants(conventions: str) -> Iterator[Variant]:
    """One policy, and one for each role."""
    ways: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
        "one": ("one policy", 2 * RANK, {}),
        "each": ("a policy for each role", RANK, {"policies": {"audit": "audit"}}),
    }
    for key, (name, rank, more) in ways.items():
        yield Variant(
            name,
            partial(adapters, rank, **more),
            f"{conventions}-{key}-{RATE}",
            "research/policies/roles.py",
            ("--conventions", conventions),
        )


def study(conventions: str, title: str) -> Roles:
    """All variants on an app with these conventions."""
    return Roles(f"policies-{conventions}", title, "roles", tuple(variants(conventions)), seeds=4)


STUDIES: Mapping[str, Roles] = MappingProxyType(
    {
        each.name: each
        for each in (
            study("opposed", "Two roles that read the same questions differently: one policy, or two"),
            study("same", "Two roles that need the same skill: one policy, or two"),
        )
    }
)
