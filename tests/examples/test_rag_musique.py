"""The loader of MuSiQue's folder, on a small folder in that layout."""

import json
from pathlib import Path
from typing import Any

import pytest

from examples.rag.library import Library
from examples.rag.musique import FILES, load_musique


def paragraph(title: str, text: str) -> dict[str, Any]:
    return {"idx": 0, "title": title, "paragraph_text": text, "is_supporting": True}


GREEN = paragraph("Green", "Green is a film by Steve Hillage.")
HILLAGE = paragraph("Steve Hillage", "His wife is Miquette.")
OTHER = paragraph("Miquelon", "An island.")
SPOUSE = {
    "id": "2hop__1_2",
    "question": "Who is the spouse of the Green performer?",
    "answer": "Miquette",
    "answer_aliases": ["Miquette Giraudy"],
    "answerable": True,
    "paragraphs": [GREEN, HILLAGE],
}
ISLAND = {**SPOUSE, "id": "3hop1__3", "answer_aliases": [], "paragraphs": [GREEN, OTHER]}
LOST = {**SPOUSE, "id": "2hop__9", "answerable": False, "paragraphs": [OTHER]}


@pytest.fixture
def musique(tmp_path: Path) -> Path:
    folder = tmp_path / "musique"
    folder.mkdir()
    write(folder, "train", [SPOUSE, ISLAND, LOST])
    write(folder, "validation", [SPOUSE])
    return folder


def write(folder: Path, split: str, rows: list[Any]) -> None:
    (folder / FILES[split]).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_rows_become_tasks_on_a_library_of_their_paragraphs(musique: Path, tmp_path: Path) -> None:
    (task,) = load_musique("validation", musique, tmp_path)
    library = Library(task.pop("library"))
    assert task == {
        "id": "2hop__1_2",
        "question": "Who is the spouse of the Green performer?",
        "answers": ["Miquette", "Miquette Giraudy"],
        "form": "2hop",
    }
    assert library.search("Green") == ["Green: Green is a film by Steve Hillage."]
    assert library.search("Steve Hillage")[0] == "Steve Hillage: His wife is Miquette."


def test_all_questions_of_a_file_share_its_paragraphs_each_once(musique: Path, tmp_path: Path) -> None:
    tasks = load_musique("train", musique, tmp_path)
    assert sorted(task["id"] for task in tasks) == ["2hop__1_2", "3hop1__3"]
    (path,) = {task["library"] for task in tasks}
    assert Library(path).search("Green film", hits=9) == ["Green: Green is a film by Steve Hillage."]
    assert len(Library(path).search("Green Steve Miquelon", hits=9)) == 3


def test_the_limit_takes_the_first_in_the_order_of_the_seed(musique: Path, tmp_path: Path) -> None:
    everything = load_musique("train", musique, tmp_path, seed=3)
    assert load_musique("train", musique, tmp_path, limit=1, seed=3) == everything[:1]


def test_a_changed_file_gets_a_library_of_its_own(musique: Path, tmp_path: Path) -> None:
    (before,) = load_musique("validation", musique, tmp_path)
    write(musique, "validation", [ISLAND])
    (after,) = load_musique("validation", musique, tmp_path)
    assert Library(before["library"]).search("Miquelon") == []
    assert Library(after["library"]).search("Miquelon") == ["Miquelon: An island."]


def test_a_missing_file_is_named(musique: Path, tmp_path: Path) -> None:
    (musique / FILES["train"]).unlink()
    with pytest.raises(FileNotFoundError, match=r"musique_ans_v1\.0_train\.jsonl"):
        load_musique("train", musique, tmp_path)


def test_musique_publishes_no_answers_of_its_test_split(musique: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no split 'test'"):
        load_musique("test", musique, tmp_path)


@pytest.mark.parametrize("field", SPOUSE)
def test_a_row_without_one_of_its_fields_is_named(musique: Path, tmp_path: Path, field: str) -> None:
    row = {key: value for key, value in SPOUSE.items() if key != field}
    write(musique, "validation", [SPOUSE, row])
    with pytest.raises(ValueError, match=rf"line 2 of musique_ans_v1\.0_dev\.jsonl .*'{field}'"):
        load_musique("validation", musique, tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {**SPOUSE, "answer": 4},
        {**SPOUSE, "answer_aliases": [None]},
        {**SPOUSE, "paragraphs": [GREEN, "text"]},
        {**SPOUSE, "paragraphs": [{**GREEN, "title": None}]},
    ],
)
def test_a_row_of_another_shape_is_named(musique: Path, tmp_path: Path, row: Any) -> None:
    write(musique, "validation", [row])
    with pytest.raises(ValueError, match="line 1"):
        load_musique("validation", musique, tmp_path)


def test_a_line_that_is_not_json_is_named(musique: Path, tmp_path: Path) -> None:
    with (musique / FILES["validation"]).open("a") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=r"line 2 .* is not JSON"):
        load_musique("validation", musique, tmp_path)
