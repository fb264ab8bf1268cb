"""The MuSiQue dataset, read from the folder that its authors publish.

    musique/
    ├── musique_ans_v1.0_train.jsonl
    └── musique_ans_v1.0_dev.jsonl

A line is an object with `id`, `question`, `answer`, `answer_aliases`, `answerable` and `paragraphs`, a list
of objects with `idx`, `title`, `paragraph_text` and `is_supporting`. The paragraphs of all questions of a
file make one library, so that each question is asked of all of them.
Trivedi et al. 2022, https://arxiv.org/abs/2108.00573
"""

import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.rag.library import Passage, write_library

FILES = {"train": "musique_ans_v1.0_train.jsonl", "validation": "musique_ans_v1.0_dev.jsonl"}
"""The file of each split. The answers of the test split are not published."""

Row = dict[str, Any]


def load_musique(
    split: str, folder: str | Path, data_dir: str | Path, limit: int | None = None, seed: int = 0
) -> list[Row]:
    """The tasks of a split as `examples.rag.tasks.load_tasks` gives them; aliases are answers too.

    `form` is what the id begins with, such as "2hop". Questions marked as not answerable are left out; their
    paragraphs are not.

    Raises FileNotFoundError for a missing file, and ValueError for one that is not as described above, naming
    the file and the number of the line.
    """
    if split not in FILES:
        raise ValueError(f"no split {split!r} in a MuSiQue folder; there are {', '.join(FILES)}")
    content = _read(Path(folder) / FILES[split])
    rows = list(_rows(content, FILES[split]))
    library = Path(data_dir) / f"musique-{split}-{zlib.crc32(content):08x}.sqlite"
    if not library.exists():
        write_library(dict.fromkeys(passage for row in rows for passage in row["passages"]), library)
    tasks = [_task(row, library) for row in rows if row["answerable"]]
    random.Random(seed).shuffle(tasks)
    return tasks[:limit]


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(
            f"no {path.name} in {str(path.parent)!r}; a MuSiQue folder holds {' and '.join(FILES.values())}"
        )
    return path.read_bytes()


def _rows(content: bytes, name: str) -> Iterator[Row]:
    for number, line in enumerate(content.splitlines(), start=1):
        where = f"line {number} of {name}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where} is not JSON: {error}") from error
        yield {
            **{field: _get(row, field, str, where) for field in ("id", "question")},
            "answers": [_get(row, "answer", str, where), *_aliases(row, where)],
            "answerable": _get(row, "answerable", bool, where),
            "passages": [_passage(paragraph, where) for paragraph in _get(row, "paragraphs", list, where)],
        }


def _aliases(row: Any, where: str) -> list[str]:
    return [_check(alias, str, "answer_aliases", where) for alias in _get(row, "answer_aliases", list, where)]


def _passage(paragraph: Any, where: str) -> Passage:
    return Passage(_get(paragraph, "title", str, where), _get(paragraph, "paragraph_text", str, where))


def _task(row: Row, library: Path) -> Row:
    kept = {field: row[field] for field in ("id", "question", "answers")}
    return {**kept, "library": str(library), "form": row["id"].partition("__")[0]}


def _get(row: Any, field: str, kind: type, where: str) -> Any:
    return _check(row.get(field) if isinstance(row, dict) else None, kind, field, where)


def _check(value: Any, kind: type, field: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{where} has no {kind.__name__} in its field {field!r}: {value!r:.120}")
    return value
