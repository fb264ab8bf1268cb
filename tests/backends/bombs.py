"""Small constraints that take a compiler's stack, time or memory."""

from __future__ import annotations

import string
from typing import Any, Final

from lightning_core.dialects.upstream import Constraint


def references(depth: int) -> dict[str, Any]:
    """Each definition is a property of the one before."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for index in range(1, depth):
        definitions[f"d{index}"] = {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/d{index - 1}"}},
            "required": ["a"],
            "additionalProperties": False,
        }
    return {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{depth - 1}"}}, "$defs": definitions}


def rules(depth: int) -> str:
    """Each rule is the next one."""
    lines = [f"r{index}: r{index + 1}" for index in range(depth)]
    return "\n".join(["start: r0", *lines, f'r{depth}: "z"'])


def patterns(count: int) -> dict[str, Any]:
    """A text that matches all of several patterns: the work doubles with each, and the memory."""
    letters = string.ascii_letters
    return {"type": "string", "allOf": [{"pattern": f"[^{c}]*x[{c}-z]*$"} for c in letters[:count]]}


PATTERNS_REFUSED: Final = "more than (1 s|256 MB)"
"""Which limit `patterns` reaches first is a matter of the machine's speed."""

BOMBS: Final[dict[str, tuple[Constraint, str]]] = {
    "references": (Constraint(schema=references(1_000)), "nested too deeply"),
    "rules": (Constraint(grammar=rules(3_000)), "nested too deeply"),
    "patterns": (Constraint(schema=patterns(24)), PATTERNS_REFUSED),
    "enum": (Constraint(schema={"enum": [f"value {i}" for i in range(300_000)]}), "bytes of JSON"),
    "choice": (Constraint(choice=tuple(f"value {i}" for i in range(300_000))), "bytes of JSON"),
    "optional": (Constraint(grammar="start: " + '"a"? ' * 30_000), "no reply can be held to this grammar"),
}
"""Constraints by name, each with the words of its refusal."""
