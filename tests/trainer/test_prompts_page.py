"""docs/prompts.md says what there is, and its code runs."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import lightning_core as lightning

PAGE = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text()


def test_every_block_of_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        scope: dict[str, Any] = {}
        exec(block, scope)
        if (trainer := scope.get("trainer")) is not None:
            assert trainer.prompts
            assert trainer.searches


def test_every_option_has_a_row_with_its_default() -> None:
    rows = re.findall(r"^\| `(?:(\w+)\()?(\w+)\)?`(, of APO too)? \| (.*?) \|", PAGE, re.MULTILINE)
    kinds: Any = (lightning.Bootstrap, lightning.GEPA, lightning.APO)
    names = [kind.__name__ for kind in kinds]
    told = {(of or "every", name): default for of, name, _, default in rows if name not in names}
    told |= {("APO", name): default for _, name, shared, default in rows if shared}
    defaults = {"reflection": "must be given", "tokens": "none"}
    wanted = {
        ("every" if each.name in ("budget", "repeats") else kind.__name__, each.name): defaults.get(
            each.name, str(each.default)
        )
        for kind in kinds
        for each in fields(kind)
    }
    assert told == wanted
