"""The Calc-X datasets, such as Calc-gsm8k, read from the folder that their authors publish or from an export.

    Calc-gsm8k/
    └── data/train-*.parquet, validation-*.parquet, test-*.parquet

The files may lie in the folder itself, and may be `.jsonl` or `.csv` with the same columns instead. Used
are `id`, `question` and `result_float`, or `result` where there is no `result_float`; `chain` and the
others are not. Parquet needs pyarrow, which this project does not install.
Kadlčík et al. 2023, https://arxiv.org/abs/2305.15017
"""

import csv
import importlib
import io
import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SUFFIXES = (".parquet", ".jsonl", ".csv")
SPLITS = ("train", "validation", "test")


def load_calcx(
    split: str, folder: str | Path, limit: int | None = None, seed: int = 0
) -> list[dict[str, str | float]]:
    """The tasks of a split as `examples.calc.tasks.load_tasks` gives them; `form` is "calcx".

    Raises FileNotFoundError when the split has no file, ValueError for a row that is not as described above,
    naming the file and the index of the row, and ImportError for Parquet without pyarrow.
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r} in a Calc-X folder; there are {', '.join(SPLITS)}")
    tasks = [
        _task(row, index, path.name)
        for path in _files(split, Path(folder))
        for index, row in enumerate(_read(path))
    ]
    random.Random(seed).shuffle(tasks)
    return tasks[:limit]


def _files(split: str, folder: Path) -> list[Path]:
    """The files of the split, of one format: the first of `SUFFIXES` that is there."""
    for place in (folder / "data", folder):
        for suffix in SUFFIXES:
            names = (f"{split}{suffix}", f"{split}-*{suffix}")
            if found := sorted(path for name in names for path in place.glob(name)):
                return found
    raise FileNotFoundError(
        f"no {split}.jsonl, {split}.csv or {split}-*.parquet in {str(folder)!r} or its folder data/"
    )


def _read(path: Path) -> Iterable[Any]:
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8 text: {error}") from error
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(text, newline="")))
    return [_object(line, index, path.name) for index, line in enumerate(text.rstrip().split("\n"))]


def _read_parquet(path: Path) -> Iterable[Any]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(
            f"{path.name} needs pyarrow: pip install pyarrow, or export the rows as .jsonl or .csv"
        ) from error
    rows: list[Any] = parquet.read_table(path).to_pylist()
    return rows


def _object(line: str, index: int, name: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"row {index} of {name} is no JSON: {error}") from error


def _task(row: Any, index: int, name: str) -> dict[str, str | float]:
    if not isinstance(row, dict):
        raise ValueError(f"row {index} of {name} is no object with columns: {row!r:.120}")
    for column in ("id", "question"):
        if not isinstance(row.get(column), str) or not row[column].strip():
            raise ValueError(f"row {index} of {name} has no text in its column {column!r}: {row!r:.120}")
    return {
        "id": row["id"],
        "question": row["question"],
        "result": _result(row, index, name),
        "form": "calcx",
    }


def _result(row: dict[str, Any], index: int, name: str) -> float:
    value = row.get("result_float", row.get("result"))
    try:
        result = float(str(value).replace(",", ""))
    except ValueError:
        result = math.nan
    if not math.isfinite(result):
        column = "result_float" if "result_float" in row else "result"
        raise ValueError(f"row {index} of {name} has no number in its column {column!r}: {value!r}")
    return result
