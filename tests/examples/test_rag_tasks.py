"""The generated libraries and tasks: split by names, answered by the searches that the questions need."""

import random
from itertools import islice, pairwise
from pathlib import Path

import pytest

from examples.rag.library import Library, Passage, write_library
from examples.rag.names import POOLS, get_names
from examples.rag.questions import FORMS, ask_all
from examples.rag.tasks import PER_FORM, SPLITS, generate_split, load_tasks
from examples.rag.world import generate_world
from recipes.rag.corpus import converse, copy, demonstrate

HELD_OUT = ("validation", "test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rag")


def library_of(split: str, folder: Path) -> Library:
    return Library(load_tasks(split, folder, limit=1)[0]["library"])


def names_of(split: str) -> set[str]:
    return {name for pool in POOLS for name in get_names(pool, split)}


def test_no_name_is_in_two_splits_and_every_word_is_in_all() -> None:
    splits = {split: names_of(split) for split in SPLITS}
    assert sum(map(len, splits.values())) == len(set().union(*splits.values())) == 3 * 32 * 32
    for names in splits.values():
        assert {word for name in names for word in name.split()} == {
            word for words in POOLS.values() for half in words for word in half
        }


def test_a_held_out_library_and_its_questions_have_held_out_names_alone(folder: Path) -> None:
    for split in SPLITS:
        world, questions = generate_split(split)
        assert {name for question in questions for name in question.path} <= set(world.entities)
        assert set(world.entities) <= names_of(split)


def test_demonstrations_show_no_held_out_name() -> None:
    rng = random.Random(9)
    shown = [*islice(demonstrate(rng), 100), *islice(converse(rng), 5), *islice(copy(rng), 20)]
    texts = [str(turn) for d in shown for turn in d.messages] + [d.reply for d in shown]
    joined = "\n".join(texts)
    assert not [name for split in HELD_OUT for name in names_of(split) if name in joined]
    assert len([name for name in names_of("train") if name in joined]) > 500


def test_the_first_hit_for_each_name_on_the_way_tells_the_next(folder: Path) -> None:
    for split in SPLITS:
        library = library_of(split, folder)
        for question in generate_split(split)[1][::3]:
            for here, there in pairwise(question.path):
                assert there in library.search(here)[0]


def test_no_single_search_for_a_name_in_the_question_answers_two_hops(folder: Path) -> None:
    library = library_of("test", folder)
    for question in generate_split("test")[1]:
        told = any(question.answer in hit for hit in library.search(question.path[0]))
        assert told == (question.form == "direct") or question.answer == question.path[1]


def test_every_form_has_as_many_tasks(folder: Path) -> None:
    for split in SPLITS:
        forms = [task["form"] for task in load_tasks(split, folder)]
        assert {form: forms.count(form) for form in FORMS} == dict.fromkeys(FORMS, PER_FORM[split])


def test_ids_are_unique_and_the_order_is_the_seeds(folder: Path) -> None:
    first, again, other = (load_tasks("validation", folder, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(t["id"] for t in first) == sorted({t["id"] for t in other})
    assert load_tasks("validation", folder, limit=5, seed=1) == first[:5]


def test_the_same_tasks_and_libraries_are_made_in_another_folder(folder: Path, tmp_path: Path) -> None:
    here, there = load_tasks("validation", folder), load_tasks("validation", tmp_path)
    assert [{**t, "library": ""} for t in here] == [{**t, "library": ""} for t in there]
    assert Path(here[0]["library"]).read_bytes() == Path(there[0]["library"]).read_bytes()


def test_all_questions_about_a_world_are_different() -> None:
    rng = random.Random(3)
    world = generate_world("train", 96, rng)
    texts = [question.text for question in ask_all(world, rng)]
    assert len(texts) == len(set(texts)) == 3 * 96


def test_an_unknown_split_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no split 'dev'"):
        load_tasks("dev", tmp_path)


def test_a_search_takes_any_text_for_words(tmp_path: Path) -> None:
    library = write_library([Passage("Ada Holt", 'Born in "Teal" Bay.')], tmp_path / "a.sqlite")
    for query in ("ada", "Holt OR", 'teal" bay', "NEAR(ada, *)", "title:Ada", "ada " * 500, "bay -ada ^"):
        assert library.search(query) == ['Ada Holt: Born in "Teal" Bay.'], query
    for query in ("", "?!", "Otto"):
        assert library.search(query) == []


def test_a_missing_library_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.sqlite"):
        Library(tmp_path / "none.sqlite").search("ada")
    assert not list(tmp_path.iterdir())
