"""The generated problems: split by content, each with one right answer, the same on every machine."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from examples.calc.app import calculator
from examples.calc.problems import CONTAINERS, FORMS, THINGS, pose
from examples.calc.reward import exact_match
from examples.calc.tasks import NOUNS, SPLITS, generate_split, load_tasks, split_of

PROBLEMS = {split: generate_split(split) for split in SPLITS}
PAIRS = list(itertools.combinations(SPLITS, 2))


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_numbers_of_one_split_occur_in_another_in_whatever_order(one: str, other: str) -> None:
    numbers = [{frozenset(p.numbers[:2]) for p in PROBLEMS[split]} for split in (one, other)]
    assert numbers[0]
    assert not numbers[0] & numbers[1]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_nouns_of_one_split_occur_in_another(one: str, other: str) -> None:
    nouns = [{p.nouns for p in PROBLEMS[split]} for split in (one, other)]
    assert nouns[0]
    assert not nouns[0] & nouns[1]


def test_every_pair_of_nouns_belongs_to_one_split_and_every_word_to_training() -> None:
    assert sorted(itertools.chain(*NOUNS.values())) == sorted(itertools.product(CONTAINERS, THINGS))
    for place, words in enumerate((CONTAINERS, THINGS)):
        assert {nouns[place] for nouns in NOUNS["train"]} == set(words)
    assert min(map(len, NOUNS.values())) >= 10


def test_the_order_of_a_pair_does_not_matter() -> None:
    assert split_of((14, 23)) == split_of((23, 14))


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_has_its_size_and_every_form_about_as_often(split: str) -> None:
    forms = Counter(problem.form for problem in PROBLEMS[split])
    assert len({problem.text for problem in PROBLEMS[split]}) == sum(forms.values()) == SPLITS[split]
    assert set(forms) == set(FORMS)
    assert max(forms.values()) <= 1.2 * min(forms.values())


def test_the_numbers_of_a_problem_stand_in_its_text_in_their_order() -> None:
    for problem in PROBLEMS["test"]:
        words = problem.text.replace(",", " ").replace(".", " ").split()
        assert [int(word) for word in words if word.isdigit()] == list(problem.numbers)
        assert all(noun in problem.text for noun in problem.nouns)


def test_the_right_calculation_earns_the_reward_and_no_mistake_does() -> None:
    for problem in PROBLEMS["validation"]:
        result = float(problem.answer)
        assert exact_match(problem.answer, result) == 1.0
        if problem.form != "trips":
            assert calculator(problem.expression) == problem.answer
        wrong = [calculator(mistake) for mistake in problem.mistakes.values()]
        assert not any(exact_match(reply, result) for reply in [*wrong, *problem.guesses.values()])


@pytest.mark.parametrize(
    ("form", "numbers", "answer"),
    [
        ("total", (14, 23), "322"),
        ("left", (85, 37), "48"),
        ("share", (130, 13), "10"),
        ("extra", (14, 23, 9), "331"),
        ("sale", (80, 15), "68"),
        ("mean", (14, 23), "18.5"),
        ("rate", (14, 23), "322"),
        ("trips", (130, 12), "11"),
    ],
)
def test_the_answers_are_those_worked_out_by_hand(
    form: str, numbers: tuple[int, ...], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMS, form, replace(FORMS[form], draw=lambda rng: numbers))
    assert pose(form, ("crates", "books"), random.Random(0)).answer == answer


def test_a_problem_that_a_mistake_solves_too_is_not_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    for numbers, clear in (((20, 30), False), ((14, 23), True)):
        monkeypatch.setitem(FORMS, "rate", replace(FORMS["rate"], draw=lambda rng, n=numbers: n))
        assert pose("rate", ("crates", "books"), random.Random(0)).is_clear == clear


def test_ids_are_unique_and_the_order_is_the_seeds() -> None:
    first, again, other = (load_tasks("validation", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(str(t["id"]) for t in first) == sorted({str(t["id"]) for t in other})
    assert load_tasks("validation", limit=5, seed=1) == first[:5]


def test_an_unknown_split_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no split 'dev'"):
        load_tasks("dev")
