"""Where the content of a run may lie, as far as a token of that run alone may say.

A gateway, and the commands that compare and export versions, read a version wherever its record says. Whoever
writes one run could so have any folder of the machine read, or any model fetched from the hub. A token of one
run therefore names places in that run's own folder alone, and does not say which folder that is. A token of
all runs is its operator's, who has the machine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_core.api.bounds import FieldError
from lightning_core.errors import ScopeError
from lightning_core.stores.base import Store
from lightning_core.types import ResourceVersion, Run
from lightning_core.versions import CHOICES, POLICY, read_number


def check_content(version: ResourceVersion) -> None:
    """Raise FieldError for a version whose content is not what its name says."""
    if version.name == POLICY and version.kind != "weights":
        raise FieldError("kind", f"is {version.kind!r}; versions of {POLICY!r} are weights")
    if version.name.endswith(CHOICES) and read_number(version.uri or "") is None:
        raise FieldError("uri", f"is {version.uri!r}; a choice names a version by its number, such as '12'")


async def check_place(store: Store, version: ResourceVersion) -> None:
    """Raise ScopeError for weights that lie outside the folder of their run. What the store has of a version
    may stay where it is."""
    if version.kind != "weights" or version.uri is None:
        return
    known = await store.list_resources(version.run_id, version.name)
    if any((v.version, v.kind, v.uri) == (version.version, "weights", version.uri) for v in known):
        return
    run = await store.find_run(version.run_id)
    if run is None or run.folder is None:
        raise ScopeError(
            f"uri: run {version.run_id!r} has no folder, so a token of that run alone names no place of "
            "weights; use a token of all runs"
        )
    if not await asyncio.to_thread(_lies_in, version.uri, run.folder):
        raise ScopeError(
            f"uri: {version.uri!r} is not in {run.folder!r}, the folder of run {version.run_id!r}, where a "
            "token of that run alone may point; use a token of all runs"
        )


def check_unmoved(run: Run, sent: Mapping[str, Any]) -> None:
    """Raise ScopeError for fields of a run that only a token of all runs may change."""
    model = run.config.get("model")
    for name, moved in (
        ("folder", "folder" in sent and sent["folder"] != run.folder),
        ("config.model", "config" in sent and sent["config"].get("model") != model),
    ):
        if moved:
            raise ScopeError(
                f"{name}: a token of run {run.id!r} alone does not change it; leave it as it is, or use a "
                "token of all runs"
            )


def _lies_in(uri: str, folder: str) -> bool:
    if not os.path.isabs(uri) or "\0" in uri:
        return False
    place, root = (Path(os.path.realpath(path)) for path in (uri, folder))
    return place != root and place.is_relative_to(root)
