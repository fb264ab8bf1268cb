"""Which versions of the weights keep their content, and how the others lose it.
 Never deleted is what something points at: the current version, what a person has chosen, versions that
unfinished rollouts are pinned to, the newest checkpoints, which a resumed run goes on from, and the
references of phases, which lie elsewhere and belong to no version. A record outlives its content: it then
says that there is none, and says so before the folder goes, so that no record ever points at nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_core.backends.folders import replacing
from lightning_core.ranges import check_range
from lightning_core.stores.base import Store
from lightning_core.trainer.folder import RunFolder, absolute
from lightning_core.types import ResourceVersion, Status
from lightning_core.versions import TRAINER, find_current, list_choices, read_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept beside what something points at."""

    newest: int = 2
    """So many of the newest checkpoints, with the optimizer's state, to resume from."""
    best: int = 1
    """So many of the best versions by `metric`, to go back to; without the optimizer's state, as all
    below."""
    metric: str = "greedy"
    """A number of the versions' records, larger is better: "greedy" or "sampled", the success in an
    evaluation, or "reward", that of the rollouts a version sampled for training."""
    every: int | None = None
    """Each version whose number is a multiple of this; None: none for that reason."""

    def __post_init__(self) -> None:
        for name, least in (("newest", 1), ("best", 0), ("every", 1)):
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, of="Retention", least=least, whole=True)

    def wanted(self, versions: Sequence[ResourceVersion]) -> set[int]:
        """The versions that `best` and `every` keep."""
        measured = [v for v in versions if v.uri is not None and self.metric in v.metrics]
        measured.sort(key=lambda v: (v.metrics[self.metric], v.version))
        best = {v.version for v in measured[len(measured) - self.best :]} if self.best else set()
        return best | {v.version for v in versions if self.every and v.version % self.every == 0}


async def pointed_at(store: Store, run_id: str, versions: Sequence[ResourceVersion]) -> set[int]:
    """The versions that something in the store points at."""
    current = find_current(versions)
    named = [read_number(choice.uri or "") for choice in await list_choices(store, run_id)]
    chosen = {number for number in named if number is not None}
    by_persons = {version.version for version in versions if version.author != TRAINER}
    pinned = {
        rollout.policy_version
        for status in (Status.QUEUED, Status.RUNNING)
        for rollout in await store.find_rollouts(run_id, status=status)
        if rollout.policy_version is not None
    }
    return chosen | by_persons | pinned | ({current.version} if current is not None else set())


async def prune(
    store: Store, folder: RunFolder, versions: Sequence[ResourceVersion], retention: Retention
) -> list[ResourceVersion]:
    """Delete what neither the retention nor anything else keeps; returns the versions as they are then.

    May be killed at any moment: what is left over goes the next time. Only what lies in the run's folder is
    ever deleted.
    """
    kept = retention.wanted(versions) | await pointed_at(store, folder.run_id, versions)
    resumable = {absolute(path) for path in folder.checkpoint_folders()[-retention.newest :]}
    after = []
    for version in versions:
        uri = version.uri
        if uri is not None and uri not in resumable and _within(uri, folder.path):
            place = absolute(folder.served(version.version))
            if version.version not in kept:
                uri = None
            elif uri != place:
                await asyncio.to_thread(_keep_for_serving, Path(uri), Path(place))
                uri = place
        if uri != version.uri:
            version = version.model_copy(update={"uri": uri})
            await store.put_resource(version)
        after.append(version)
    left = resumable | {version.uri for version in after if version.uri is not None}
    await asyncio.to_thread(_delete_all_but, folder, left)
    return after


def _within(uri: str, folder: Path) -> bool:
    return Path(absolute(Path(uri))).is_relative_to(absolute(folder))


def _keep_for_serving(checkpoint: Path, place: Path) -> None:
    """Make a folder of what can be served of a checkpoint. Its files are the checkpoint's own, not copies,
    where the file system can do that."""
    with replacing(place) as partial:
        for file in (*checkpoint.glob("*.json"), *(checkpoint / "model").rglob("*")):
            target = partial / file.relative_to(checkpoint)
            if file.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(file, target)


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(file, target)


def _delete_all_but(folder: RunFolder, kept: set[str]) -> None:
    places: Iterable[Path] = (folder.path / "versions").glob("*")
    for path in (*folder.checkpoint_folders(), *places):
        if absolute(path) not in kept:
            shutil.rmtree(path)
