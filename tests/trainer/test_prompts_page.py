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
            assert trainer.declared_prompts
            assert trainer.searches


def test_every_option_has_a_row_with_its_default() -> None:
    rows = re.findall(r"^\| `(?:(\w+)\()?(\w+)\)?` \| (.*?) \|", PAGE, re.MULTILINE)
    told = {(of or "both", name): default for of, name, default in rows if name not in ("Bootstrap", "GEPA")}
    shared = ("budget", "repeats")
    wanted = {
        ("both" if each.name in shared else kind.__name__, each.name): str(each.default)
        for kind in (lightning.Bootstrap, lightning.GEPA)
        for each in fields(kind)
    }
    wanted |= {("GEPA", "tokens"): "none", ("GEPA", "reflection"): "must be given"}
    assert told == wanted
