"""Word problems, each with the calculation that solves it and with the mistakes that people make in it.

Every problem belongs to a `form`. Three forms are plain. In the others a familiar mistake is near:

- extra: the loose pieces are forgotten;
- sale: the discount is given in place of the price;
- mean: the brackets are forgotten;
- rate: the product is guessed, with round numbers, instead of calculated;
- trips: what goes into the last container, half-empty, is dropped, instead of rounding up.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from examples.calc.calculator import evaluate, show

CONTAINERS = ("crates", "boxes", "bags", "carts", "trays", "jars", "racks", "trucks", "chests", "baskets")
THINGS = (
    "apples", "books", "bolts", "eggs", "lamps", "nails", "shirts", "tiles", "pens", "cups", "coins", "toys",
)  # fmt: skip

Nouns = tuple[str, str]
"""A container and what is in it."""
Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A word problem and its solution."""

    form: str
    text: str
    nouns: Nouns
    numbers: Numbers
    """The numbers of the text, in its order."""
    expression: str
    """The expression to calculate."""
    answer: str
    """The answer, as the calculator writes numbers."""
    mistakes: dict[str, str]
    """Wrong expressions for such a problem, by the name of the mistake."""
    guesses: dict[str, str]
    """Wrong answers, by the name of the mistake."""

    @property
    def is_clear(self) -> bool:
        """Whether no mistake leads to the answer by chance."""
        wrong = {show(evaluate(expression)) for expression in self.mistakes.values()}
        return self.answer not in wrong | set(self.guesses.values())


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of problem. {0}, {1} and {2} stand for its numbers, {c} for containers, {t} for things."""

    texts: tuple[str, ...]
    draw: Callable[[random.Random], Numbers]
    expression: str
    mistakes: dict[str, str] = field(default_factory=dict)
    guess: Callable[[Numbers], dict[str, int | float]] | None = None
    round_up: bool = False
    """Whether the answer is the calculation's value rounded up."""


def pose(form: str, nouns: Nouns, rng: random.Random) -> Problem:
    """A problem of that form about those nouns."""
    kind = FORMS[form]
    numbers = kind.draw(rng)
    expression = kind.expression.format(*numbers)
    value = evaluate(expression)
    return Problem(
        form=form,
        text=rng.choice(kind.texts).format(*numbers, c=nouns[0], t=nouns[1]),
        nouns=nouns,
        numbers=numbers,
        expression=expression,
        answer=show(math.ceil(value) if kind.round_up else value),
        mistakes={name: mistake.format(*numbers) for name, mistake in kind.mistakes.items()},
        guesses={name: show(value) for name, value in (kind.guess(numbers) if kind.guess else {}).items()},
    )


def _two(rng: random.Random) -> Numbers:
    return rng.randint(11, 99), rng.randint(11, 99)


def _three(rng: random.Random) -> Numbers:
    return *_two(rng), rng.randint(11, 99)


def _falling(rng: random.Random) -> Numbers:
    first = rng.randint(30, 99)
    return first, rng.randint(11, first - 11)


def _percent(rng: random.Random) -> Numbers:
    return rng.randint(11, 99), rng.randint(11, 60)


def _divisible(rng: random.Random) -> Numbers:
    size = rng.randint(11, 49)
    return size * rng.randint(3, 30), size


def _with_rest(rng: random.Random) -> Numbers:
    whole, size = _divisible(rng)
    return whole + rng.randint(1, size - 1), size


def _in_round_numbers(numbers: Numbers) -> dict[str, int | float]:
    first, second = ((number + 5) // 10 * 10 for number in numbers)
    return {"guessed": first * second}


def _not_rounded_up(numbers: Numbers) -> dict[str, int | float]:
    things, size = numbers
    return {"dropped": things // size, "copied": things / size}


FORMS = {
    "total": Form(
        (
            "A store has {0} {c} with {1} {t} each. How many {t} is that?",
            "There are {0} {t} in each of {1} {c}. How many {t} are there?",
        ),
        _two,
        "{0}*{1}",
    ),
    "left": Form(
        (
            "A store had {0} {c} of {t} and sold {1}. How many {c} are left?",
            "There were {0} {c} of {t}, and {1} are gone. How many {c} are there now?",
        ),
        _falling,
        "{0}-{1}",
    ),
    "share": Form(
        (
            "There are {0} {t} for {1} {c}, the same number for each. How many {t} are in one?",
            "Divide {0} {t} among {1} {c}. How many {t} does each get?",
        ),
        _divisible,
        "{0}/{1}",
    ),
    "extra": Form(
        (
            "A store has {0} {c} with {1} {t} each and {2} loose {t}. How many {t} is that?",
            "There are {0} {t} in each of {1} {c} and {2} more {t}. How many {t} are there?",
        ),
        _three,
        "{0}*{1}+{2}",
        {"forgotten": "{0}*{1}", "added": "{0}+{1}+{2}"},
    ),
    "sale": Form(
        (
            "The {c} of {t} cost {0} each, and now {1} percent less. What is the price now?",
            "The price of {c} of {t} was {0}. They are sold at {1} percent off. What do they cost?",
        ),
        _percent,
        "{0}*(100-{1})/100",
        {"discount": "{0}*{1}/100", "subtracted": "{0}-{1}"},
    ),
    "mean": Form(
        (
            "One store has {0} {c} of {t}, another has {1}. How many {c} is that on average?",
            "They sold {0} {c} of {t} one day and {1} the next. How many {c} a day on average?",
        ),
        _two,
        "({0}+{1})/2",
        {"unbracketed": "{0}+{1}/2", "summed": "{0}+{1}"},
    ),
    "rate": Form(
        (
            "A machine fills {0} {c} of {t} an hour. How many {c} in {1} hours?",
            "A store sells {0} {c} of {t} a day. How many {c} in {1} days?",
        ),
        _two,
        "{0}*{1}",
        {"added": "{0}+{1}"},
        _in_round_numbers,
    ),
    "trips": Form(
        (
            "There are {0} {t} to pack in {c} of {1}. How many {c} are needed?",
            "We have {0} {t}, and {1} fit in each of the {c}. How many {c} do we need?",
        ),
        _with_rest,
        "{0}/{1}",
        guess=_not_rounded_up,
        round_up=True,
    ),
}
