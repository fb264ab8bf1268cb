"""A generated world: works, companies, people and towns, each with one passage about it.

bridge, ship --built by, owned by--> company --founded by--> person, --based in--> town
film, song --directed by, written by--> person --born in--> town, --taught by--> person
"""

import random
from dataclasses import dataclass

from examples.rag.library import Passage
from examples.rag.names import get_names

WORKS = {
    "bridge": ("builder", "company"),
    "ship": ("owner", "company"),
    "film": ("director", "person"),
    "song": ("writer", "person"),
}
"""The facts of each kind of work, and the kind of entity that each names."""

TEXTS = {
    "bridge": "A bridge built by {builder}.",
    "ship": "A ship owned by {owner}.",
    "film": "A film directed by {director}.",
    "song": "A song written by {writer}.",
    "company": "A company in {town}, founded by {founder}.",
    "person": "Born in {town}, taught by {teacher}.",
    "town": "A town whose mayor is {mayor}.",
}
"""The passage about an entity of each kind."""


@dataclass(frozen=True, slots=True)
class Entity:
    """Something that has a name and a passage."""

    name: str
    kind: str
    facts: dict[str, str]
    """The names that its passage tells, by what they are to it."""

    @property
    def passage(self) -> Passage:
        """The library's passage about it."""
        return Passage(self.name, TEXTS[self.kind].format(**self.facts))


@dataclass(frozen=True, slots=True)
class World:
    """All entities, by name."""

    entities: dict[str, Entity]

    def find_all(self, *kinds: str) -> list[Entity]:
        """The entities of these kinds, in a fixed order."""
        return [entity for entity in self.entities.values() if entity.kind in kinds]

    @property
    def passages(self) -> list[Passage]:
        """The passages of a library about this world."""
        return [entity.passage for entity in self.entities.values()]


def generate_world(split: str, size: int, rng: random.Random) -> World:
    """A world of the split's names: `size` people, as many works, and half as many towns and companies."""
    pools = ("person", "work", "place")
    people, works, places = (rng.sample(get_names(pool, split), size) for pool in pools)
    companies, towns = places[: size // 2], places[size // 2 :]
    known = {"company": companies, "person": people}
    entities = [Entity(name, "town", {"mayor": rng.choice(people)}) for name in towns]
    for name in people:
        teacher = rng.choice([other for other in people if other != name])
        entities.append(Entity(name, "person", {"town": rng.choice(towns), "teacher": teacher}))
    for name in companies:
        facts = {"town": rng.choice(towns), "founder": rng.choice(people)}
        entities.append(Entity(name, "company", facts))
    for number, name in enumerate(works):
        kind = list(WORKS)[number % len(WORKS)]
        relation, target = WORKS[kind]
        entities.append(Entity(name, kind, {relation: rng.choice(known[target])}))
    rng.shuffle(entities)
    return World({entity.name: entity for entity in entities})
