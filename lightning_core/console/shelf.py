"""The runs that a console shows: of a run's folder, of a folder of runs, or of a store, opened for reading.

A folder's runs are found at every look, so that one that has just begun is there. A store is opened when a
run in it is first asked for; of many folders only the last few stay open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from lightning_core.errors import ConfigError, NotFoundError, StoreError
from lightning_core.insight.why import RewardFunction
from lightning_core.plugins import Plugins
from lightning_core.records.types import TRIED
from lightning_core.stores.base import Store
from lightning_core.trainer.folder import RunFolder, check_there
from lightning_core.trainer.forking import FORK
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.versions import in_folder

READS: Final = frozenset(
    name for name in vars(Store) if name.startswith(("find_", "list_", "get_", "count_"))
)
"""The methods of a store that change nothing."""
_OPEN: Final = 8
"""Stores that stay open."""
TRIAL: Final = "-try-"
"""In the id of a trial of versions, between its run's id and its number."""


class ReadOnly:
    """A store of which only what reads can be used. Raises StoreError for the rest."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name not in READS:
            raise StoreError(f"the console only reads, and {name!r} writes to the store")
        return getattr(self._store, name)


def for_reading(store: Store) -> Store:
    """The store, as one that refuses to be written to."""
    return cast(Store, ReadOnly(store))


@dataclass(frozen=True, slots=True)
class Found:
    """A run, and where it is kept."""

    name: str
    """The console's name for it: its folder's name, or its id in a store."""
    run_id: str
    store: str
    """URL."""
    folder: Path | None = None
    problem: str | None = None
    """Why it can't be read, if its folder does not say which run it is."""


class Shelf:
    """The runs under `target`: a run's folder, a folder of runs, or a store's URL. Enter it to use it."""

    def __init__(
        self,
        target: str,
        plugins: Plugins,
        rewards: Mapping[str, RewardFunction] = MappingProxyType({}),
        script: Sequence[str] = (),
    ) -> None:
        """`rewards`: the user's own, for what-if. `script`: the path of the user's script and its arguments,
        which forks run. Raises ConfigError if there is no run."""
        self._target = target
        self.plugins, self.rewards, self.script = plugins, rewards, tuple(script)
        self._opened: dict[str, tuple[Store, AsyncExitStack]] = {}
        self._opening = asyncio.Lock()
        self.evaluated: dict[tuple[str, float, int, int], dict[str, Any] | None] = {}
        """Results of evaluations that have ended, by run, step and number of rollouts."""
        self.verdicts: dict[tuple[str, float], tuple[tuple[int, int], dict[str, Any]]] = {}
        """Verdicts by run, with the number of ended rollouts and the newest step they were made from."""
        self.trials: dict[str, asyncio.Task[None]] = {}
        """Trials that this console plays, by id."""
        if "://" not in target and not find_folders(Path(target)):
            problem = "is no run's folder and holds none" if Path(target).exists() else "is not there"
            raise ConfigError(
                f"{target!r} {problem}; `agentlightning runs` lists the runs, and "
                "`agentlightning train SCRIPT` begins one, which is there once its model is loaded"
            )
        check_there(target)

    async def __aenter__(self) -> Shelf:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for playing in self.trials.values():
            playing.cancel()
        await asyncio.gather(*self.trials.values(), return_exceptions=True)
        for _, closing in self._opened.values():
            await closing.aclose()
        self._opened.clear()

    async def list(self) -> list[Found]:
        """All runs, the newest first."""
        if "://" not in self._target:
            return find_folders(Path(self._target))
        store = await self._open(self._target)
        return [
            Found(run.id, run.id, self._target) for run in await store.list_runs() if TRIED not in run.config
        ]

    async def get(self, name: str) -> Found:
        """The run of that name, or the trial of a run. Raises NotFoundError."""
        found = await self.list()
        for one in found:
            if one.name == name:
                return one
        for one in found:
            if name.startswith((f"{one.name}{TRIAL}", f"{one.name}{FORK}")):
                return replace(one, name=name, run_id=f"{one.run_id}{name.removeprefix(one.name)}")
        there = ", ".join(repr(one.name) for one in found[:5]) or "none"
        there += f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise NotFoundError(f"there is no run {name!r}; there are: {there}")

    async def read(self, found: Found) -> Store:
        """Its store, for reading. Raises ConfigError for a run that can't be read."""
        return for_reading(await self.write(found))

    async def write(self, found: Found) -> Store:
        """Its store, for the verbs that write."""
        if found.problem is not None:
            raise ConfigError(found.problem)
        store = await self._open(found.store)
        return store if found.folder is None else in_folder(store, found.folder)

    async def _open(self, url: str) -> Store:
        async with self._opening:
            if url in self._opened:
                self._opened[url] = self._opened.pop(url)
                return self._opened[url][0]
            check_there(url)
            closing = AsyncExitStack()
            store = await closing.enter_async_context(open_store(url, self.plugins))
            self._opened[url] = store, closing
            while len(self._opened) > _OPEN:
                _, oldest = self._opened.pop(next(iter(self._opened)))
                await oldest.aclose()
            return store


def find_folders(path: Path) -> list[Found]:
    """The run of a folder, or the runs in its folders, the newest first. Raises ConfigError for a folder that
    does not say which run it is; among others it is in the list, with that as its problem."""
    alone = _find(path)
    if alone is not None:
        return [alone]
    files = sorted(path.glob("*/run.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return [found for file in files if (found := _find_among(file.parent)) is not None]


def _find_among(path: Path) -> Found | None:
    try:
        return _find(path)
    except ConfigError as error:
        return Found(path.resolve().name, path.resolve().name, "", path, str(error))


def _find(path: Path) -> Found | None:
    found = RunFolder(path, resume=True).find_run()
    return None if found is None else Found(path.resolve().name, found[1], found[0], path)
