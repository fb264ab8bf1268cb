"""The loader of Calc-X datasets, on small folders in that layout."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from examples.calc.calcx import load_calcx

CLIPS = {
    "id": "gsm8k_train_00000",
    "question": "Natalia sold 48 clips in April, and half as many in May. How many did she sell?",
    "chain": '48/2 is <gadget id="calculator">48/2</gadget>\n<output>24</output>\n<result>72</result>',
    "result": "72",
    "result_float": 72.0,
}
RENT = {
    **CLIPS,
    "id": "gsm8k_train_00001",
    "question": "What is\u2028the rent?",
    "result": "1,200",
    "result_float": 1200,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, [CLIPS, RENT])
    return tmp_path


def write(folder: Path, rows: list[Any], name: str = "train.jsonl") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), "utf-8")


def test_rows_become_tasks(folder: Path) -> None:
    tasks = sorted(load_calcx("train", folder), key=lambda task: str(task["id"]))
    assert tasks == [
        {"id": row["id"], "question": row["question"], "result": row["result_float"], "form": "calcx"}
        for row in (CLIPS, RENT)
    ]


def test_several_files_of_a_split_lie_where_the_authors_put_them(folder: Path) -> None:
    write(folder / "data", [CLIPS], "test-00000-of-00002-98afb50d.jsonl")
    write(folder / "data", [RENT], "test-00001-of-00002-98afb50d.jsonl")
    assert {task["id"] for task in load_calcx("test", folder)} == {CLIPS["id"], RENT["id"]}


def test_an_export_as_csv_is_the_same(folder: Path) -> None:
    with (folder / "validation.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(CLIPS))
        writer.writeheader()
        writer.writerows([CLIPS, RENT])
    assert load_calcx("validation", folder) == load_calcx("train", folder)


def test_parquet_is_read_with_pyarrow_or_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "train-00000-of-00001-89011c0c.parquet"
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        path.touch()
        with pytest.raises(ImportError, match=r"parquet needs pyarrow"):
            load_calcx("train", tmp_path)
    else:
        parquet.write_table(pyarrow.Table.from_pylist([CLIPS]), path)
        assert [task["result"] for task in load_calcx("train", tmp_path)] == [72.0]


def test_the_text_of_a_result_serves_where_there_is_no_float(tmp_path: Path) -> None:
    write(tmp_path, [{"id": "a", "question": "How much?", "result": "1,200.5"}])
    assert load_calcx("train", tmp_path)[0]["result"] == 1200.5


def test_the_limit_takes_the_first_in_the_order_of_the_seed(folder: Path) -> None:
    assert load_calcx("train", folder, limit=1, seed=3) == load_calcx("train", folder, seed=3)[:1]


@pytest.mark.parametrize("column", ["id", "question"])
@pytest.mark.parametrize("value", [None, 4, " "])
def test_a_row_without_text_is_named(folder: Path, column: str, value: Any) -> None:
    write(folder, [CLIPS, {**RENT, column: value}])
    with pytest.raises(ValueError, match=rf"row 1 of train\.jsonl has no text in its column '{column}'"):
        load_calcx("train", folder)


@pytest.mark.parametrize("value", [None, "", "many", "nan", [3]])
@pytest.mark.parametrize("column", ["result", "result_float"])
def test_a_row_without_a_number_is_named(tmp_path: Path, column: str, value: Any) -> None:
    write(tmp_path, [CLIPS, {"id": "b", "question": "How many?", column: value}])
    with pytest.raises(ValueError, match=rf"row 1 of train\.jsonl has no number in its column '{column}'"):
        load_calcx("train", tmp_path)


def test_a_csv_without_the_columns_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("problem,solution\nHow many?,3\n")
    with pytest.raises(ValueError, match=r"row 0 of train\.csv has no text in its column 'id'"):
        load_calcx("train", tmp_path)


@pytest.mark.parametrize("line", ["{", "[1]", "3", ""])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(CLIPS)}\n{line}\n{json.dumps(RENT)}\n")
    with pytest.raises(ValueError, match=r"row 1 of train\.jsonl is no"):
        load_calcx("train", tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"train\.jsonl is not UTF-8"):
        load_calcx("train", tmp_path)


def test_a_split_without_a_file_is_named(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no validation\.jsonl"):
        load_calcx("validation", folder)


def test_an_unknown_split_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(ValueError, match="no split 'dev'"):
        load_calcx("dev", folder)
