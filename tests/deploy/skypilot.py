"""SkyPilot's own parser reads the golden tasks, and refuses typos; in an environment of its own.

make test-sky
"""

from __future__ import annotations

import copy
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sky
import yaml

GOLDEN = Path(__file__).parent / "golden"
TYPOS: dict[str, tuple[str, ...]] = {
    "use_spott": ("resources",),
    "acelerators": ("resources",),
    "workdirr": (),
    "set_up": (),
    "modee": ("file_mounts", "/runs"),
}


def parse(document: dict[str, Any]) -> sky.Task:
    """The task of a document, with a value for each secret, as `--secret-file` gives it."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(document, file)
        file.flush()
        secrets = dict.fromkeys(document.get("secrets", {}), "value")
        return sky.Task.from_yaml_config(
            yaml.safe_load(Path(file.name).read_text()), secrets_overrides=list(secrets.items())
        )


def with_typo(document: dict[str, Any], typo: str) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    place = changed
    for step in TYPOS[typo]:
        place = place[step]
    place[typo] = "x"
    return changed


def check() -> Iterator[str]:
    """Yields the faults, a line each."""
    documents = {path.parent.name: yaml.safe_load(path.read_text()) for path in GOLDEN.glob("*/sky-sky.yaml")}
    if len(documents) != 6:
        yield f"{len(documents)} tasks, where there are six scripts"
    for case, document in documents.items():
        task = parse(document)
        words = shlex.split(str(task.run).splitlines()[-1])
        if words[:2] != ["agentlightning", "train"]:
            yield f"{case}: runs {words[:2]}"
    spot = documents["own-store"]
    if not all(each.use_spot for each in parse(spot).resources):
        yield "own-store: not on spot machines"
    if len(parse(documents["gpu"]).resources) != 2:
        yield "gpu: not on two clouds"
    for typo in TYPOS:
        try:
            parse(with_typo(spot, typo))
        except ValueError:
            continue
        yield f"{typo!r} was taken"


if __name__ == "__main__":
    os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
    wrong = list(check())
    sys.exit("\n".join(wrong) or None)
