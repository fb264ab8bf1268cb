"""Tasks: generated word problems, split by what they are about and by the first two numbers in them.

A pair of nouns (crates, apples) and a pair of first two numbers (14, 23) belong to one split each, whatever
the order: no problem of another split has the nouns, or the first two numbers, of a held-out one. Single
words and numbers occur everywhere, and a third number is drawn without regard to splits.
"""

import itertools
import random
from collections.abc import Iterable
from zlib import crc32

from examples.calc.problems import CONTAINERS, FORMS, THINGS, Nouns, Problem, pose

SPLITS = {"train": 1600, "validation": 400, "test": 400}
"""The number of tasks in each split."""

SHARES = {"validation": 1, "test": 1, "train": 6}
"""How many of eight pairs belong to each split."""


def load_tasks(split: str, limit: int | None = None, seed: int = 0) -> list[dict[str, str | float]]:
    """The tasks of a split, in the order that the seed gives, the first `limit` of them.

    Each is a dict with `id`, `question`, `result` (the right number) and `form` (the kind of problem).
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    tasks: list[dict[str, str | float]] = [
        {
            "id": f"{split}-{i:04}",
            "question": problem.text,
            "result": float(problem.answer),
            "form": problem.form,
        }
        for i, problem in enumerate(generate_split(split))
    ]
    random.Random(seed).shuffle(tasks)
    return tasks[:limit]


def generate_split(split: str) -> list[Problem]:
    """The problems of a split, as many of each form, no text twice."""
    rng = random.Random(f"problems {split}")
    problems: dict[str, Problem] = {}
    forms = itertools.cycle(FORMS)
    while len(problems) < SPLITS[split]:
        problem = draw_problem(next(forms), split, rng)
        problems.setdefault(problem.text, problem)
    return list(problems.values())


def draw_problem(form: str, split: str, rng: random.Random) -> Problem:
    """A problem of that form, of nouns and numbers of the split, to whose answer no mistake leads."""
    while True:
        problem = pose(form, rng.choice(NOUNS[split]), rng)
        if problem.is_clear and split_of(problem.numbers[:2]) == split:
            return problem


def split_of(pair: Iterable[str | int]) -> str:
    """The split that a pair belongs to, the same on every machine."""
    place = crc32(" ".join(sorted(map(str, pair))).encode()) % sum(SHARES.values())
    ends = itertools.accumulate(SHARES.values())
    return next(split for split, end in zip(SHARES, ends, strict=True) if place < end)


NOUNS: dict[str, list[Nouns]] = {
    split: [nouns for nouns in itertools.product(CONTAINERS, THINGS) if split_of(nouns) == split]
    for split in SPLITS
}
"""The pairs of nouns that belong to each split."""
