"""The Spider dataset, read from the folder that its authors publish.

    spider/
    ├── tables.json                     one object per database, with `db_id`
    ├── train_spider.json, dev.json     lists of objects with `db_id`, `question`, `query`
    └── database/<db_id>/<db_id>.sqlite

The dataset's own split is by database too: no database of `dev.json` occurs in `train_spider.json`.
Yu et al. 2018, https://arxiv.org/abs/1809.08887
"""

import json
import random
from pathlib import Path
from typing import Any

FILES = {"train": "train_spider.json", "validation": "dev.json"}
"""The file of each split. The test split of Spider is not in its folder."""

FIELDS = ("db_id", "question", "query")


def load_spider(
    split: str, folder: str | Path, limit: int | None = None, seed: int = 0
) -> list[dict[str, str]]:
    """The tasks of a split as `examples.sql.tasks.load_tasks` gives them; `form` is "spider".

    Raises FileNotFoundError for a missing file, and ValueError for one that is not as described above,
    naming the file and the index of the row.
    """
    if split not in FILES:
        raise ValueError(f"no split {split!r} in a Spider folder; there are {', '.join(FILES)}")
    known = {_text(row, "db_id", i, "tables.json") for i, row in enumerate(_read(folder, "tables.json"))}
    name = FILES[split]
    tasks = [_task(row, i, name, Path(folder), known) for i, row in enumerate(_read(folder, name))]
    random.Random(seed).shuffle(tasks)
    return tasks[:limit]


def _read(folder: str | Path, name: str) -> list[Any]:
    path = Path(folder) / name
    if not path.is_file():
        raise FileNotFoundError(
            f"no {name} in {str(folder)!r}; a Spider folder holds tables.json, {_names()}"
        )
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ValueError(f"{name} holds a {type(rows).__name__}, not a list of rows")
    return rows


def _task(row: Any, index: int, name: str, folder: Path, known: set[str]) -> dict[str, str]:
    db_id, question, query = (_text(row, field, index, name) for field in FIELDS)
    if db_id not in known:
        raise ValueError(
            f"row {index} of {name} names the database {db_id!r}, which tables.json does not list"
        )
    database = folder / "database" / db_id / f"{db_id}.sqlite"
    if not database.is_file():
        raise FileNotFoundError(f"row {index} of {name} needs {str(database)!r}, which is not there")
    return {
        "id": f"spider-{name.removesuffix('.json')}-{index:05}",
        "question": question,
        "database": str(database),
        "gold": query,
        "form": "spider",
    }


def _text(row: Any, field: str, index: int, name: str) -> str:
    value = row.get(field) if isinstance(row, dict) else None
    if not isinstance(value, str) or not value:
        raise ValueError(f"row {index} of {name} has no text in its field {field!r}: {row!r:.120}")
    return value


def _names() -> str:
    return ", ".join(FILES.values()) + " and database/"
