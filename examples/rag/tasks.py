"""Tasks: questions on a library each split has of its own, made of names that no other split uses."""

import random
import zlib
from pathlib import Path
from typing import Any

from examples.rag.library import write_library
from examples.rag.questions import FORMS, Question, ask_all
from examples.rag.world import World, generate_world

SPLITS = {"train": 768, "validation": 128, "test": 128}
"""The number of people in each split's world, all that its names allow; there are three passages for each."""

PER_FORM = {"train": 240, "validation": 50, "test": 60}
"""The number of questions of each form."""


def load_tasks(
    split: str, data_dir: str | Path, limit: int | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """The tasks of a split, in the order that the seed gives, the first `limit` of them.

    Each is a dict with `id`, `question`, `library` (the path of an index under `data_dir`, written when it is
    not there), `answers` (what is right, here one name) and `form` (the kind of question).
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    world, questions = generate_split(split)
    digest = zlib.crc32(repr(world).encode())  # so that an older generator's file is never taken for this one
    path = Path(data_dir) / f"{split}-{digest:08x}.sqlite"
    if not path.exists():
        write_library(world.passages, path)
    tasks = [
        {
            "id": f"{split}-{i:04}",
            "question": q.text,
            "library": str(path),
            "answers": [q.answer],
            "form": q.form,
        }
        for i, q in enumerate(questions)
    ]
    random.Random(seed).shuffle(tasks)
    return tasks[:limit]


def generate_split(split: str) -> tuple[World, list[Question]]:
    """The world of a split and its questions, as many of each form, without files."""
    rng = random.Random(f"world {split}")
    world = generate_world(split, SPLITS[split], rng)
    questions = ask_all(world, rng)
    rng.shuffle(questions)
    by_form = [[question for question in questions if question.form == form] for form in FORMS]
    return world, [question for group in by_form for question in group[: PER_FORM[split]]]
