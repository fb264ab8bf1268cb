"""Questions about a generated world: of one hop, answered by the first passage, or of two."""

import random
from dataclasses import dataclass

from examples.rag.world import WORKS, Entity, World

ONE_HOP = {
    "builder": ("Who built the bridge {name}?", "Which company built the bridge {name}?"),
    "owner": ("Who owns the ship {name}?", "Which company owns the ship {name}?"),
    "director": ("Who directed the film {name}?", "Which person directed the film {name}?"),
    "writer": ("Who wrote the song {name}?", "Which person wrote the song {name}?"),
}
"""Ways to ask for what the passage about a work tells."""

TWO_HOPS = {
    "founder": ("Who founded the company that {did} the {kind} {name}?",),
    "town": ("Where is the company that {did} the {kind} {name}?",),
    "birthplace": ("Where was the person born who {did} the {kind} {name}?",),
    "teacher": ("Who taught the person who {did} the {kind} {name}?",),
}
"""Ways to ask for what the passage about that company or person tells."""

DID = {"builder": "built", "owner": "owns", "director": "directed", "writer": "wrote"}

SECOND = {
    "company": {"founder": "founder", "town": "town"},
    "person": {"birthplace": "town", "teacher": "teacher"},
}
"""Questions about a company or a person, and the fact that answers each."""

FORMS = ("direct", "by company", "by person")
"""One hop; two hops by way of a company; two hops by way of a person."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the names that lead to its answer."""

    form: str
    text: str
    path: tuple[str, ...]
    """The entity asked about, the one between if there is one, and the answer."""

    @property
    def answer(self) -> str:
        """The name that is right."""
        return self.path[-1]


def ask_all(world: World, rng: random.Random) -> list[Question]:
    """One question of one hop and each of two hops about every work."""
    works = world.find_all(*WORKS)
    return [question for work in works for question in ask_about(work, world, rng)]


def ask_about(work: Entity, world: World, rng: random.Random) -> list[Question]:
    """The question of one hop and those of two hops about one work."""
    relation, kind = WORKS[work.kind]
    between = world.entities[work.facts[relation]]
    text = rng.choice(ONE_HOP[relation]).format(name=work.name)
    questions = [Question("direct", text, (work.name, between.name))]
    for asked, fact in SECOND[kind].items():
        text = rng.choice(TWO_HOPS[asked]).format(name=work.name, kind=work.kind, did=DID[relation])
        questions.append(Question(f"by {kind}", text, (work.name, between.name, between.facts[fact])))
    return questions
