"""The generated tasks: split by database, clear about the app's conventions, the same on every machine."""

import random
import sqlite3
from contextlib import closing
from itertools import combinations, islice
from pathlib import Path

import pytest

from examples.sql.databases import Database, create_tables, generate_database
from examples.sql.execution import describe_schema, open_database, run_query
from examples.sql.names import NOUNS, get_names
from examples.sql.questions import FORMS, ask
from examples.sql.reward import execution_match, is_ordered, same_rows
from examples.sql.tasks import SPLITS, generate_split, is_clear, load_tasks

COMMON = {"id", "name", "deleted", "price", "quantity", "size", "status"}
"""Columns with a fixed name, which any schema may have whatever its split."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sql")


def names_of(database: Database) -> set[str]:
    columns = {column.name.sql for table in database.tables for column in table.columns}
    return columns - COMMON | {table.name.sql for table in database.tables}


def test_no_name_of_the_held_out_databases_occurs_in_training() -> None:
    names = {split: set().union(*map(names_of, generate_split(split))) for split in SPLITS}
    assert names["train"]
    assert not names["train"] & (names["validation"] | names["test"])


def test_no_held_out_name_can_be_generated_for_training() -> None:
    for kind, nouns in NOUNS.items():
        train, held_out = set(get_names(kind, False)), set(get_names(kind, True))
        assert not train & held_out
        assert len(held_out) == len(train | held_out) / 4
        assert {name.noun for name in train} == set(nouns) == {name.noun for name in held_out}


@pytest.mark.parametrize(("one", "other"), list(combinations(SPLITS, 2)))
def test_two_splits_share_no_table_no_question_and_no_query(folder: Path, one: str, other: str) -> None:
    tables = [
        {t.name for database in generate_split(split) for t in database.tables} for split in (one, other)
    ]
    assert tables[0]
    assert not tables[0] & tables[1]
    for part in ("question", "gold"):
        held = [{task[part] for task in load_tasks(split, folder)} for split in (one, other)]
        assert held[0]
        assert not held[0] & held[1]


def test_no_database_is_in_two_splits(folder: Path) -> None:
    files = [{task["database"] for task in load_tasks(split, folder)} for split in SPLITS]
    assert [len(group) for group in files] == list(SPLITS.values())
    assert len(set().union(*files)) == sum(SPLITS.values())


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_has_every_form(folder: Path, split: str) -> None:
    assert {task["form"] for task in load_tasks(split, folder)} == set(FORMS)


def test_ids_are_unique_and_the_order_is_the_seeds(folder: Path) -> None:
    first, again, other = (load_tasks("validation", folder, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(t["id"] for t in first) == sorted({t["id"] for t in other})
    assert load_tasks("validation", folder, limit=5, seed=1) == first[:5]


def test_the_same_tasks_are_generated_in_another_folder(folder: Path, tmp_path: Path) -> None:
    here, there = load_tasks("validation", folder), load_tasks("validation", tmp_path)
    assert [{**t, "database": ""} for t in here] == [{**t, "database": ""} for t in there]
    for left, right in zip(here, there, strict=True):
        assert Path(left["database"]).name == Path(right["database"]).name
        with open_database(left["database"]) as one, open_database(right["database"]) as two:
            assert list(one.iterdump()) == list(two.iterdump())


def test_the_gold_query_earns_the_reward_on_the_file(folder: Path) -> None:
    for task in load_tasks("test", folder):
        assert execution_match(task["gold"], task["gold"], task["database"]) == 1.0


def test_no_other_convention_earns_the_reward_of_a_clear_question() -> None:
    rng, seen = random.Random(5), 0
    for number in range(20):
        database = generate_database(f"clear-{number}", "test", number % 3 == 0, rng)
        with closing(sqlite3.connect(":memory:")) as connection:
            create_tables(database, connection)
            questions = [q for form in FORMS for _ in range(5) if (q := ask(form, database, rng))]
            for question in (q for q in questions if q.others and is_clear(q, connection)):
                gold = run_query(connection, question.gold).rows
                for sql in question.others.values():
                    rows = run_query(connection, sql).rows
                    assert rows is not None
                    assert gold
                    assert not same_rows(rows, gold, is_ordered(question.gold))
                    seen += 1
    assert seen > 150


def test_the_code_of_active_rows_stands_in_no_prompt_of_the_writer(folder: Path) -> None:
    for task in [task for task in load_tasks("test", folder) if task["form"] == "active"]:
        code = task["gold"].split("'")[1]
        with open_database(task["database"]) as connection:
            schema = describe_schema(connection)
            guess = task["gold"].replace(f"'{code}'", "'active'")
            assert f"'{code}'" in run_query(connection, guess).feedback
        assert f"'{code}'" not in schema + task["question"]


def test_an_unknown_split_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no split 'dev'"):
        load_tasks("dev", tmp_path)


def test_questions_differ_in_their_words() -> None:
    rng = random.Random(0)
    database = generate_database("words", "train", False, rng)
    drawn = (ask(form, database, rng) for form in ("count", "list") for _ in range(50))
    starts = {question.text.split()[0] for question in islice(drawn, 100) if question}
    assert {"How", "Count", "List", "Which", "Name"} <= starts
