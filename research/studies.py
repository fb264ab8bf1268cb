"""The studies: what is trained, in which ways, from where, and over how many seeds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lightning_core as lightning
from lightning_core.stores.base import Store
from research.design import Design, Variant
from research.invalid_queries import invalid_queries
from research.outcomes import Outcome
from research.tables import study_table, worst_table


@dataclass(frozen=True, slots=True)
class Study(Design):
    """A study whose table compares its variants."""

    def render(self, variants: Mapping[str, Mapping[str, Outcome]]) -> str:
        """The tables of what its runs came to, as Markdown."""
        return study_table(self, variants)


@dataclass(frozen=True, slots=True)
class Learning(Study):
    """A study of what is learnt at last: its worst runs and kinds of tasks count too."""

    def render(self, variants: Mapping[str, Mapping[str, Outcome]]) -> str:
        """The study's table, then the worst runs."""
        return f"{study_table(self, variants)}\n\n{worst_table(variants)}"


def grpo(**options: Any) -> Callable[[], Mapping[str, Any]]:
    """GRPO with these options."""
    return lambda: {"algorithm": lightning.GRPO(**options)}


def sloppy() -> str:
    """A policy whose queries the database often refuses; made when it is not there (some two minutes)."""
    folder = Path(".data/sloppy")
    if not folder.is_dir():
        subprocess.run([sys.executable, "-m", "recipes.sloppy", "--out", str(folder)], check=True)
    return str(folder)


async def invalid_share(store: Store, run_id: str) -> float:
    """Queries that the database refused, for each 1,000 training rollouts."""
    steps = await invalid_queries(store, run_id)
    return 1000 * sum(step.invalid for step in steps) / sum(step.rollouts for step in steps)


def credits_of(example: str, names: tuple[str, ...], title: str) -> Study:
    """GRPO with each of these credit methods."""
    variants = (Variant(name, grpo(credit=name), key=f"grpo-{name}") for name in names)
    return Study(f"credit-{example}", title, example, tuple(variants))


REAL: Mapping[str, Any] = MappingProxyType({"dtype": "bfloat16"})
"""The apps with a real model are measured on one core, in bfloat16: their machine multiplies it in hardware,
which takes half the time there."""


VOTES = Variant("best of 8 by votes", lambda: {"steps": 0}, "votes", script="research/votes/words.py")


def instead(example: str, title: str, *, more: tuple[Variant, ...] = ()) -> Study:
    """Returns the study of the other things a user could do with an app and a real model."""
    return Study(
        f"{example}-instead",
        title,
        example,
        (
            Variant("GRPO", key="example"),
            Variant("SFT on its own successes", lambda: {"algorithm": lightning.SFT()}, key="sft"),
            Variant("a prompt by hand", lambda: {"steps": 0}, "by-hand", arguments=("--prompt", "by hand")),
            Variant(
                "more examples in it",
                lambda: {"steps": 0},
                "more-examples",
                arguments=("--prompt", "more examples"),
            ),
            *more,
        ),
        seeds=1,
        steps=None,
        backend=REAL,
    )


def learning(example: str, title: str, field: str, keys: tuple[str, ...], *, seeds: int, tasks: int) -> Study:
    """Returns the study of some algorithms on an app with a real model; `field` is that of its curriculum.
    "By the mean" is `scale="mean"`."""
    rows: Mapping[str, tuple[str, Callable[[], Mapping[str, Any]]]] = {
        "grpo": ("GRPO", grpo(credit="uniform")),
        "sft": ("SFT on its own successes", lambda: {"algorithm": lightning.SFT()}),
        "grpo-curriculum": ("GRPO, curriculum", grpo(credit="uniform", curriculum=field)),
        "mean-curriculum": (
            "GRPO by the mean, curriculum",
            grpo(credit="uniform", scale="mean", curriculum=field),
        ),
        "sft-curriculum": ("SFT, curriculum", lambda: {"algorithm": lightning.SFT(curriculum=field)}),
    }
    return Learning(
        f"{example}-learning",
        title,
        example,
        tuple(Variant(*rows[key], key=key) for key in keys),
        seeds=seeds,
        steps=None,
        tasks=tasks,
        backend=REAL,
    )


def distilled(example: str, title: str, field: str) -> Study:
    """Returns the study of self-distillation, alone and beside GRPO, with the curriculum that GRPO has."""
    rows = {
        "sdpo": ("SDPO", {}),
        "sdpo-gated": ("GRPO and a tenth of SDPO, gated", {"grpo": 0.9, "gate": 5.0}),
    }
    return Learning(
        f"{example}-distilled",
        title,
        example,
        tuple(
            Variant(name, partial(_sdpo, field, options), key=key) for key, (name, options) in rows.items()
        ),
        seeds=3,
        steps=None,
        tasks=60,
        backend=REAL,
    )


def _sdpo(field: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"algorithm": lightning.SDPO(curriculum=field, **options)}


def memory(example: str, title: str) -> Study:
    """Returns the study of what saves memory, and what that costs in learning."""
    rows: Mapping[str, tuple[str, Mapping[str, Any]]] = {
        "adamw-8bit": ("all weights, AdamW in 8 bits", {"optimizer": "adamw_8bit"}),
        "lora": ("LoRA", {"lora": lightning.LoraOptions()}),
        # bfloat16 moves log-probabilities of the rounded model by up to .49 nats, and is refused
        "lora-4bit": (
            "LoRA on weights in 4 bits, float32",
            {"lora": lightning.LoraOptions(load_in_4bit=True), "dtype": "float32"},
        ),
    }
    return Learning(
        f"{example}-memory",
        title,
        example,
        tuple(Variant(name, key=key, backend=settings) for key, (name, settings) in rows.items()),
        seeds=3,
        steps=None,
        tasks=60,
        backend=REAL,
    )


RANKED = ("grpo", "sft", "grpo-curriculum", "mean-curriculum", "sft-curriculum")
"""The algorithms of `learning`."""
COMPARED = ("uniform", "per_agent", "turn", "anchor", "relevance")
"""The paper's method, the default before, the two best known of others, and the default. What needs a critic
is PPO's, in the study of algorithms; the rest is compared where the truth is known (`research.credit`)."""
ONE_AGENT = tuple(name for name in COMPARED if name != "per_agent")
"""With a single agent, per_agent is uniform."""

STUDIES = MappingProxyType(
    {
        study.name: study
        for study in (
            Study(
                "algorithms",
                "Algorithms on the SQL agent",
                "sql",
                (
                    Variant("GRPO", grpo(), key="grpo"),
                    Variant("RLOO", lambda: {"algorithm": lightning.RLOO()}),
                    Variant("REINFORCE++", lambda: {"algorithm": lightning.ReinforcePP()}),
                    Variant("PPO", lambda: {"algorithm": lightning.PPO()}),
                    Variant("DPO", lambda: {"algorithm": lightning.DPO()}),
                    Variant("SFT", lambda: {"algorithm": lightning.SFT()}),
                ),
                seeds=3,
            ),
            Study(
                "air",
                "Automatic intermediate rewards on the SQL agent",
                "sql",
                (
                    Variant("without AIR", grpo(), key="sloppy-grpo"),
                    Variant("with AIR", lambda: {"air": True, **grpo()()}, key="sloppy-air"),
                ),
                model=sloppy,
                compared="measured",
                measure=invalid_share,
                measured="invalid queries in 1,000 rollouts",
            ),
            credits_of("sql", COMPARED, "Credit methods on the SQL agent"),
            credits_of("calc", ONE_AGENT, "Credit methods on the calculator agent"),
            credits_of("rag", ONE_AGENT, "Credit methods on the research agent"),
            learning("words", "Word problems: which algorithm", "kind", RANKED, seeds=5, tasks=60),
            learning(
                "support", "Customers' messages: which algorithm", "action", RANKED[:2], seeds=3, tasks=90
            ),
            learning("orders", "Orders: which algorithm", "", RANKED[:2], seeds=3, tasks=60),
            distilled("words", "Word problems: self-distillation", "kind"),
            memory("words", "Word problems: weights and moments in fewer bits"),
            instead("words", "Word problems: what else one could do", more=(VOTES,)),
            instead("support", "Customers' messages: what else one could do"),
            instead("orders", "Orders: what else one could do"),
        )
    }
)
