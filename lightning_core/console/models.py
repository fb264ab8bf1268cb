"""The versions of a run's weights and prompts, and the choice of the one that is served."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from lightning_core.console.asking import PageRequest
from lightning_core.errors import ConfigError
from lightning_core.insight.status import is_served
from lightning_core.stores.base import get_run
from lightning_core.stores.heartbeat import check_not_trained
from lightning_core.stores.versions import (
    POLICY,
    choose,
    find_current,
    is_weights,
    list_choices,
    policies_of,
    weights_of,
)

AUTHOR: Final = "console"
"""Who chose, in the list of choices."""


async def list_versions(question: PageRequest) -> dict[str, Any]:
    """The versions of a name, by rising number, and what persons have chosen."""
    store, found = await question.run()
    name = question.find("name") or POLICY
    versions = await store.list_resources(found.run_id, name)
    current = find_current(versions)
    run = await get_run(store, found.run_id)
    named = dict.fromkeys(policies_of(run).values())
    return {
        "weights": [POLICY, *map(weights_of, named)],
        "served": is_served(await store.list_members(found.run_id)),
        "versions": [{**each.model_dump(mode="json"), "current": each is current} for each in versions],
        "choices": [each.model_dump(mode="json") for each in await list_choices(store, found.run_id, name)],
    }


async def choose_version(question: PageRequest) -> dict[str, Any]:
    """Make a version the current one. Raises ConfigError while the run is trained."""
    found = await question.shelf.get(question.word("run"))
    version = question.number("version")
    if version is None:
        raise ConfigError("choose which version: add version=...")
    name = question.find("name") or POLICY
    store = await question.shelf.write(found)
    if is_weights(name):
        await check_not_trained(store, found.run_id)
    chosen = await choose(store, found.run_id, version, author=AUTHOR, name=name)
    return {"name": name, "version": chosen.version}


ANSWERS: Final = MappingProxyType({"models": list_versions})
VERBS: Final = MappingProxyType({"choose": choose_version})
