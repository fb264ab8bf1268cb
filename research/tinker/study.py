"""The study of LoRA here and at a training service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lightning_core as lightning
from lightning_core.backends.settings import LoraOptions
from research.design import Variant
from research.studies import Study
from research.tinker.server import serving

RANK = 32
ALPHA = 32.0
"""The service's own, which its API has no setting for."""
NO_CLIPPING = 1e9
"""The service does not clip gradients."""


@dataclass(frozen=True, slots=True)
class Services(Study):
    """A study of a training service."""

    @property
    def command(self) -> str:
        return "make bench-tinker"


def local() -> Mapping[str, Any]:
    """LoRA in this process, with what the service does."""
    lora = LoraOptions(rank=RANK, alpha=ALPHA)
    return {"backend": lightning.LocalBackend("tiny", lora=lora, max_grad_norm=NO_CLIPPING)}


def tinker() -> Mapping[str, Any]:
    """LoRA at the service whose address is in the environment."""
    return {"backend": lightning.TinkerBackend("tiny", rank=RANK, reduction="mean")}


@contextmanager
def served(folder: Path) -> Iterator[None]:
    """A server of the run's own; a run that is resumed finds its checkpoints there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = folder.absolute() / "server"
    place.mkdir(exist_ok=True)
    with serving(place):
        yield


STUDIES = MappingProxyType(
    {
        "tinker": Services(
            "tinker",
            "LoRA by a training service, beside the local backend",
            "sql",
            (
                Variant("local", local, key="lora-local"),
                Variant("tinker", tinker, key="tinker", beside=served),
            ),
            seeds=3,
        )
    }
)
