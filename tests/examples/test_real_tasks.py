"""Tasks of the apps that train a real model: split by content, each with one right answer."""

from itertools import combinations
from typing import Any

import pytest

from examples.calc.calculator import evaluate, show
from examples.orders import tasks as orders
from examples.support import tasks as support
from examples.support.app import DESKS
from examples.words import tasks as words

SPLITS = ("train", "validation", "test")
APPS = (words, support, orders)
TEXT = {words: "problem", support: "message", orders: "text"}
each_app = pytest.mark.parametrize("app", APPS, ids=lambda app: app.__name__)
PAIRS = list(combinations(SPLITS, 2))


def _all(app: Any) -> list[tuple[str, Any]]:
    """(split, task) of every task."""
    return [(split, task) for split in SPLITS for task in app.load_tasks(split)]


@each_app
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_text_is_in_two_splits(app: Any, one: str, other: str) -> None:
    texts = [{task[TEXT[app]] for task in app.load_tasks(split)} for split in (one, other)]
    assert texts[0]
    assert not texts[0] & texts[1]


@each_app
@pytest.mark.parametrize("split", SPLITS)
def test_the_tasks_are_the_same_each_time_and_their_ids_differ(app: Any, split: str) -> None:
    tasks = app.load_tasks(split)
    assert app.load_tasks(split, 7) == tasks[:7]
    assert len({task["id"] for task in tasks}) == len(tasks)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_word_that_tasks_are_made_of_is_in_two_splits(one: str, other: str) -> None:
    made_of = [words.NAMES, words.THINGS, support.PRODUCTS, orders.ITEMS, orders.CITIES, orders.NAMES]
    made_of += [orders.ASKS, orders.URGENT, orders.CALM]
    for pool in made_of:
        assert pool[one]
        assert not set(pool[one]) & set(pool[other])


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_wording_of_a_message_is_in_two_splits(one: str, other: str) -> None:
    said = {"train": support.TRAIN, **support.HELD_OUT}
    for action in support.TRAIN:
        assert not set(said[one][action]) & set(said[other][action])


def test_a_pair_of_numbers_belongs_to_one_split() -> None:
    pairs: dict[str, set[tuple[int, int]]] = {split: set() for split in SPLITS}
    for split, task in _all(words):
        if task["kind"] in ("times", "more", "lost"):
            first, second = task["arithmetic"].replace("*", " ").split()[:2]
            pairs[split].add((int(first), int(second)))
    assert all(pairs.values())
    assert not any(pairs[one] & pairs[other] for one, other in PAIRS)


def test_the_arithmetic_gives_the_answer_and_its_numbers_stand_in_the_problem() -> None:
    for task in words.load_tasks("test"):
        assert show(evaluate(task["arithmetic"])) == task["answer"]
        numbers = {part.strip("()") for part in task["arithmetic"].split() if part.strip("()").isdigit()}
        assert numbers <= set(task["problem"].replace(".", " ").replace("?", " ").split())


def test_every_action_is_one_of_a_desk_and_is_asked_for_in_every_split() -> None:
    known = {action for form in DESKS.values() for action in form.model_fields["action"].annotation.__args__}
    for split in SPLITS:
        assert {task["action"] for task in support.load_tasks(split)} == known


def test_the_form_of_an_order_is_in_its_text() -> None:
    for split, task in _all(orders):
        form: Any = task["form"]
        assert form["item"] in str(task["text"])
        assert any(
            orders.NUMBERS[word] == form["quantity"] and word in str(task["text"]).lower()
            for word in orders.NUMBERS
        )
        assert any(sentence in str(task["text"]) for sentence in orders.URGENT[split]) == form["express"]
