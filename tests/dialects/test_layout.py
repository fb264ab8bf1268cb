"""Only the files of `dialects` know an API: a fifth one is one more file and one more entry of the tuple."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import lightning_core
from lightning_core.dialects import DIALECTS, find_dialect, get_dialect

ROOT = Path(lightning_core.__file__).parent
CLIENTS = ("trainer/judging.py", "backends/vllm/")
"""Modules that call a server of their own, through one API."""
FORMS = ("function_call_output", "input_schema", "tool_result", "tool_use", "content_block", "output_item")
"""Words of single APIs in requests, replies and streams."""


def known() -> set[str]:
    """Names, paths and ids that tell the APIs apart; an SDK may bear the name of its API."""
    names = {dialect.name for dialect in DIALECTS} - {dialect.sdk for dialect in DIALECTS}
    return names | {dialect.path for dialect in DIALECTS} | {dialect.id_prefix for dialect in DIALECTS}


def texts(path: Path) -> Iterator[str]:
    """The strings of a file, without docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value


def test_nothing_else_knows_which_api_a_call_came_from() -> None:
    found = [
        f"{name}: {text!r}"
        for path in sorted(ROOT.rglob("*.py"))
        if not (name := path.relative_to(ROOT).as_posix()).startswith(("dialects/", *CLIENTS))
        for text in texts(path)
        if text in known() or text.removeprefix("/v1") in known() or any(form in text for form in FORMS)
    ]
    assert found == ["records/types.py: 'chat'"]  # the default of a call that is made by hand


def test_each_is_found_by_its_name_and_its_path() -> None:
    assert [get_dialect(dialect.name) for dialect in DIALECTS] == [*DIALECTS]
    assert [find_dialect(dialect.path) for dialect in DIALECTS] == [*DIALECTS]
    assert len({dialect.id_prefix for dialect in DIALECTS}) == len(DIALECTS)
    assert find_dialect("/embeddings") is None
