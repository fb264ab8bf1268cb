"""The loader of Spider's folder, on a small folder in that layout."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.sql.reward import execution_match
from examples.sql.spider import load_spider

SINGERS = {
    "db_id": "concert",
    "question": "How many singers are there?",
    "query": "SELECT count(*) FROM singer",
}
PETS = {"db_id": "pets", "question": "List all pets.", "query": "SELECT name FROM pet"}


@pytest.fixture
def spider(tmp_path: Path) -> Path:
    make_database(
        tmp_path, "concert", "CREATE TABLE singer (name TEXT); INSERT INTO singer VALUES ('ann'), ('bob')"
    )
    make_database(tmp_path, "pets", "CREATE TABLE pet (name TEXT); INSERT INTO pet VALUES ('rex')")
    write(tmp_path, "tables.json", [{"db_id": "concert"}, {"db_id": "pets"}])
    write(tmp_path, "train_spider.json", [SINGERS, {**SINGERS, "question": "Count the singers."}])
    write(tmp_path, "dev.json", [PETS])
    return tmp_path


def make_database(folder: Path, db_id: str, script: str) -> None:
    (folder / "database" / db_id).mkdir(parents=True)
    with closing(sqlite3.connect(folder / "database" / db_id / f"{db_id}.sqlite")) as connection:
        connection.executescript(script)


def write(folder: Path, name: str, rows: Any) -> None:
    (folder / name).write_text(json.dumps(rows), encoding="utf-8")


def test_rows_become_tasks_on_their_databases(spider: Path) -> None:
    (task,) = load_spider("validation", spider)
    assert task == {
        "id": "spider-dev-00000",
        "question": "List all pets.",
        "database": str(spider / "database" / "pets" / "pets.sqlite"),
        "gold": "SELECT name FROM pet",
        "form": "spider",
    }
    assert execution_match("SELECT 'rex'", task["gold"], task["database"]) == 1.0


def test_a_text_that_is_not_utf_8_can_be_asked_for(spider: Path) -> None:
    make_database(
        spider, "tennis", "CREATE TABLE player (name TEXT); INSERT INTO player VALUES (x'c36e6ee9')"
    )
    database = spider / "database" / "tennis" / "tennis.sqlite"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE player SET name = CAST(name AS TEXT)")
        connection.commit()
    assert execution_match("SELECT name FROM player", "SELECT name FROM player", database) == 1.0


def test_the_limit_takes_the_first_in_the_order_of_the_seed(spider: Path) -> None:
    assert len(load_spider("train", spider)) == 2
    assert load_spider("train", spider, limit=1, seed=3) == load_spider("train", spider, seed=3)[:1]


@pytest.mark.parametrize("name", ["tables.json", "train_spider.json"])
def test_a_missing_file_is_named(spider: Path, name: str) -> None:
    (spider / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_spider("train", spider)


def test_a_missing_database_file_is_named_with_its_row(spider: Path) -> None:
    (spider / "database" / "pets" / "pets.sqlite").unlink()
    with pytest.raises(FileNotFoundError, match=r"row 0 of dev\.json.*pets\.sqlite"):
        load_spider("validation", spider)


@pytest.mark.parametrize("field", ["db_id", "question", "query"])
def test_a_row_without_its_fields_is_named(spider: Path, field: str) -> None:
    row = {key: value for key, value in PETS.items() if key != field}
    write(spider, "dev.json", [PETS, row])
    with pytest.raises(ValueError, match=f"row 1 of dev.json has no text in its field '{field}'"):
        load_spider("validation", spider)


@pytest.mark.parametrize("row", [None, 3, [], {**PETS, "question": 4}])
def test_a_row_that_is_no_object_or_no_text_is_named(spider: Path, row: Any) -> None:
    write(spider, "dev.json", [row])
    with pytest.raises(ValueError, match="row 0"):
        load_spider("validation", spider)


def test_an_unlisted_database_is_named(spider: Path) -> None:
    write(spider, "dev.json", [{**PETS, "db_id": "zoo"}])
    with pytest.raises(ValueError, match="'zoo'"):
        load_spider("validation", spider)


@pytest.mark.parametrize("text", ["{", '{"a": 1}'])
def test_a_file_that_is_no_list_of_rows_is_named(spider: Path, text: str) -> None:
    (spider / "dev.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"dev\.json"):
        load_spider("validation", spider)


def test_spider_has_no_test_split(spider: Path) -> None:
    with pytest.raises(ValueError, match="no split 'test'"):
        load_spider("test", spider)
