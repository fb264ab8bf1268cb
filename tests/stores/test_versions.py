"""Versions of weights and prompts have one life: put, chosen, gone back to."""

from __future__ import annotations

import pytest

from lightning_core.errors import NotFoundError, StoreError
from lightning_core.records.types import ResourceVersion
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.stores.versions import (
    Document,
    choose,
    find_current,
    get_prompt,
    list_choices,
    put_prompt,
)


async def test_the_prompt_put_last_is_current_and_one_can_go_back() -> None:
    store = MemoryStore()
    await put_prompt(store, "run", "system", "Be brief.", author="ann")
    second = await put_prompt(store, "run", "system", "Be kind.", author="bob", parent=0, metrics={"ok": 0.5})
    assert (second.version, second.parent, second.author, second.metrics) == (1, 0, "bob", {"ok": 0.5})
    assert (await get_prompt(store, "run", "system")).uri == "Be kind."

    await choose(store, "run", 0, author="cy", name="system")
    assert (await get_prompt(store, "run", "system")).uri == "Be brief."
    assert (await get_prompt(store, "run", "system", 1)).uri == "Be kind."
    (choice,) = await list_choices(store, "run", "system")
    assert (choice.uri, choice.parent, choice.author) == ("0", 1, "cy")
    assert (await get_prompt(store, "run", "system")).author == "ann"  # who made it, not who chose it

    await choose(store, "run", 1, author="cy", name="system")
    assert (await get_prompt(store, "run", "system")).version == 1
    assert [choice.uri for choice in await list_choices(store, "run", "system")] == ["0", "1"]


async def test_a_prompt_that_is_only_proposed_is_not_current() -> None:
    store = MemoryStore()
    await put_prompt(store, "run", "system", "a", author="ann")
    await put_prompt(store, "run", "system", "b", author="ann", chosen=False)
    assert (await get_prompt(store, "run", "system")).uri == "a"


async def test_a_choice_wins_also_from_a_machine_whose_clock_is_behind() -> None:
    store = MemoryStore()
    for version, chosen_at in ((0, 1.0), (1, 9e9)):
        await store.put_resource(
            ResourceVersion(run_id="run", version=version, uri=f"/{version}", chosen_at=chosen_at)
        )
    await choose(store, "run", 0, author="ann")
    current = find_current(await store.list_resources("run"))
    assert current is not None
    assert current.version == 0


async def test_what_is_not_there_is_refused_with_what_is() -> None:
    store = MemoryStore()
    for version, uri in ((0, "/0"), (1, None), (2, "/2")):
        await store.put_resource(ResourceVersion(run_id="run", version=version, uri=uri))
    with pytest.raises(NotFoundError, match=r"version 1 was deleted .* there are: 0, 2"):
        await choose(store, "run", 1, author="ann")
    with pytest.raises(NotFoundError, match=r"no version 3; there are: 0, 2"):
        await choose(store, "run", 3, author="ann")
    assert await list_choices(store, "run") == []
    with pytest.raises(NotFoundError, match="no prompt 'system'"):
        await get_prompt(store, "run", "system")
    with pytest.raises(StoreError, match="name of the weights"):
        await put_prompt(store, "run", "policy", "text", author="ann")
    for kind in Document:
        with pytest.raises(StoreError, match="keeps other things"):
            await put_prompt(store, "run", kind.of(3), "text", author="ann")
