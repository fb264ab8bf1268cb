"""The versions of a run's weights, from the trainer's side: recorded, measured, deleted once not needed.

A version's numbers are its own: the reward is that of the rollouts which it sampled, not of those it was made
from, and an evaluation belongs to the version that was evaluated.

Kept are the newest checkpoints, from which a run is resumed; the best version by greedy success in an
evaluation; and what something points at: the current version, what a person has chosen, and versions that
unfinished rollouts are pinned to. References of phases lie elsewhere and belong to no version. A record
outlives its content: it then says that there is none, and says so before the folder goes, so that no record
ever points at nothing.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from lightning_core.backends.base import Backend
from lightning_core.backends.weights.folders import replacing
from lightning_core.records.types import ResourceVersion, Status, Trajectory
from lightning_core.stores.base import Store
from lightning_core.stores.versions import (
    POLICY,
    TRAINER,
    find_current,
    is_weights,
    list_choices,
    make_current,
    policy_of,
    read_number,
    weights_of,
)
from lightning_core.trainer.folder import RunFolder, absolute, policy_folder
from lightning_core.trainer.summary import Evaluation

TOGETHER = "together"
"""A version's best greedy reward of all policies together."""
KEPT = 2
"""Checkpoints that are kept to resume from while a run goes on, where its settings say nothing."""


class Versions:
    """Written by one trainer at a time, the one that holds the run's folder."""

    def __init__(
        self,
        store: Store,
        folder: RunFolder,
        backend: Backend,
        newest: int,
        *,
        policy: str | None = None,
        several: bool = False,
    ) -> None:
        """`policy`: the name of the policy whose versions they are; `several`: whether others are trained
        beside it, so that an evaluation is of all of them together."""
        self._name = weights_of(policy)
        self._several = several
        self._store = store
        self._folder = folder
        self._backend = backend
        self._newest = newest
        """Checkpoints that are kept to resume from."""
        self._known: dict[int, ResourceVersion] = {}

    async def begin(self, step: int, total: int) -> str | None:
        """Know what there is, the start included, before update `step` is made; what to tell the user, if
        there is anything to tell. A run that goes on does so from its newest checkpoint, which is the
        current version again, whatever was chosen since: that is kept, and can be chosen again.
        """
        listed = await self._store.list_resources(self._folder.run_id, self._name)
        self._known = {version.version: version for version in listed}
        for version in listed:
            await self._find_again(version)
        if 0 not in self._known:
            await self._put(self._made(0, _start(str(self._backend.model)), 0), current=not listed)
        if step == 0 or step >= total:
            return None
        newest = self._backend.policy_version
        current = find_current(self._known.values())
        if newest not in self._known:  # killed between the checkpoint and its record
            await self._add(step, self._folder.checkpoint(step))
        elif current is not None and current.version != newest:
            await self._put(self._known[newest], current=True)
            return f"continues from version {newest}; version {current.version}, which was current, is kept"
        return None

    async def saved(self, step: int) -> None:
        """Record the state that was saved after `step` updates as the current version, and delete what is too
        old."""
        await self._add(step, self._folder.checkpoint(step))
        versions = [self._known[number] for number in sorted(self._known)]
        kept = await prune(self._store, self._folder, versions, self._newest)
        self._known = {version.version: version for version in kept}

    async def sampled(self, trajectories: Iterable[Trajectory]) -> None:
        """Record each version's mean training reward, over the rollouts that it sampled alone."""
        for version, rewards in _rewards(trajectories).items():
            known = self._known.get(version)
            if known is not None and known.metrics.get("rollouts", 0) <= len(rewards):
                await self._measure(version, {"reward": fmean(rewards), "rollouts": float(len(rewards))})

    async def evaluated(self, result: Evaluation) -> None:
        """Record an evaluation as numbers of the version that is served. With several policies, `together` is
        the best greedy reward since training began in which it took part."""
        version = self._backend.policy_version
        numbers = {"sampled": result.sampled, "greedy": result.greedy}
        known = self._known.get(version) if self._several and result.step else None
        if known is not None and result.greedy >= known.metrics.get(TOGETHER, -math.inf):
            numbers |= {TOGETHER: result.greedy, "together_step": float(result.step)}
        await self._measure(version, numbers)

    async def export(self, *, best: bool) -> int | None:
        """Export the best trained version, or the last; returns how many updates it had, if that is known.

        The best becomes the current one, unless somebody chose another.
        """
        newest, chosen = self._known.get(self._backend.policy_version), best_trained(self._known.values())
        reader = getattr(self._backend, "export_version", None)
        if not best or reader is None or newest is None or chosen is None or chosen.version == newest.version:
            await self._backend.export(self._folder.policy)
            return None if newest is None else _updates(newest, best=best)
        await reader(str(chosen.uri), self._folder.policy)
        current = find_current(await self._store.list_resources(self._folder.run_id, self._name))
        if current is not None and current.version == newest.version:
            await self._put(chosen, current=True)
        return _updates(chosen, best=True)

    async def _find_again(self, version: ResourceVersion) -> None:
        """The run's folder may have been moved, or be reached by a link: its content is then where the folder
        is now, in the spelling that the retention compares."""
        found = _found_again(version, self._folder.path)
        if found != version:
            await self._put(found, current=False)

    async def _measure(self, version: int, numbers: Mapping[str, float]) -> None:
        known = self._known.get(version)
        if known is not None:
            metrics = {**known.metrics, **numbers}
            await self._put(known.model_copy(update={"metrics": metrics}), current=False)

    async def _add(self, step: int, path: Path) -> None:
        number, uri = self._backend.policy_version, absolute(path)
        known = self._known.get(number)
        if known is None:
            known = self._made(number, uri, step)
        elif number:  # updates were skipped since; version 0 stays where it came from
            known = known.model_copy(update={"uri": uri})
        await self._put(known, current=True)

    def _made(self, number: int, uri: str, step: int) -> ResourceVersion:
        return ResourceVersion(
            run_id=self._folder.run_id,
            name=self._name,
            version=number,
            uri=uri,
            parent=number - 1 if number else None,
            metrics={"step": float(step)},
        )

    async def _put(self, version: ResourceVersion, *, current: bool) -> None:
        if current:
            version = await make_current(self._store, version, list(self._known.values()))
        else:
            await self._store.put_resource(version)
        self._known[version.version] = version


class FolderStore:
    """The store of a run whose folder may have been moved: versions of its weights lie where the folder is
    now. The rest is as it is stored."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list_resources(self, run_id: str, name: str = POLICY) -> list[ResourceVersion]:
        found = await self._store.list_resources(run_id, name)
        if not is_weights(name):
            return found
        folder = policy_folder(self._folder, policy_of(name))
        return [_found_again(each, folder) for each in found]


def in_folder(store: Store, folder: Path) -> Store:
    """The store, as that of the run in this folder."""
    return cast(Store, FolderStore(store, folder))


def _found_again(version: ResourceVersion, folder: Path) -> ResourceVersion:
    moved = _moved(version.uri, folder)
    return version if moved is None else version.model_copy(update={"uri": moved})


def _moved(uri: str | None, folder: Path) -> str | None:
    """Where content now lies that is not where it was, or lies there by another spelling of the folder."""
    if uri is None or not Path(uri).is_absolute():
        return None
    now = folder.joinpath(*Path(uri).parts[-2:])
    same = now.is_dir() and (not Path(uri).exists() or os.path.samefile(uri, now))
    return absolute(now) if same and absolute(now) != uri else None


def _updates(version: ResourceVersion, *, best: bool) -> int:
    """How many updates the run had made then; of the `best` of several policies, at its best evaluation."""
    together = version.metrics.get("together_step") if best else None
    return int(version.metrics["step"] if together is None else together)


def _start(model: str) -> str:
    """The content of version 0: the model itself, where it lies."""
    return absolute(Path(model)) if Path(model).exists() else model


def _rewards(trajectories: Iterable[Trajectory]) -> dict[int, list[float]]:
    rewards: dict[int, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        versions = {t.policy_version for t in trajectory.transitions if t.trained}
        if len(versions) == 1 and (version := versions.pop()) is not None:
            rewards[version].append(trajectory.reward)
    return rewards


# what is kept -----------------------------------------------------------------------------
def best_trained(versions: Iterable[ResourceVersion]) -> ResourceVersion | None:
    """The version with the highest greedy held-out reward, the newest of equals, or None. Not the start.

    With several policies: the version that took part in the best evaluation of all together, which of one
    policy may be the start.
    """
    versions = list(versions)
    played = [v for v in versions if v.uri is not None and TOGETHER in v.metrics]
    if played:
        return max(played, key=lambda v: (v.metrics[TOGETHER], v.version))
    measured = [v for v in versions if v.version and v.uri is not None and "greedy" in v.metrics]
    return max(measured, key=lambda v: (v.metrics["greedy"], v.version), default=None)


async def kept_versions(store: Store, run_id: str, versions: Sequence[ResourceVersion]) -> set[int]:
    """The versions that something in the store points at, and the best one, the newest of equals."""
    current = find_current(versions)
    name = versions[0].name if versions else POLICY
    named = [read_number(choice.uri or "") for choice in await list_choices(store, run_id, name)]
    chosen = {number for number in named if number is not None}
    by_persons = {version.version for version in versions if version.author != TRAINER}
    pinned = {
        rollout.policy_version
        for status in (Status.QUEUED, Status.RUNNING)
        for rollout in await store.find_rollouts(run_id, status=status)
        if rollout.policy_version is not None and name == POLICY
    }
    best = best_trained(versions)
    return chosen | by_persons | pinned | {each.version for each in (current, best) if each is not None}


async def prune(
    store: Store, folder: RunFolder, versions: Sequence[ResourceVersion], newest: int
) -> list[ResourceVersion]:
    """Delete what is not kept; returns the versions as they are then.

    Versions beyond the `newest` that are kept lose the optimizer's state.
    May be killed at any moment: what is left over goes the next time. Only what lies in the run's folder is
    ever deleted.
    """
    kept = await kept_versions(store, folder.run_id, versions)
    resumable = {absolute(path) for path in folder.checkpoint_folders()[-newest:]}
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


async def settle(
    store: Store, folder: RunFolder, backend: Backend | type[Backend] | None, policy: str | None = None
) -> None:
    """Delete of a policy's weights all checkpoints but the newest and, if a backend is given that can go on
    without it, the optimizer's state in that one."""
    made = folder.latest_checkpoint()
    if made is None:
        return
    await prune(store, folder, await store.list_resources(folder.run_id, weights_of(policy)), 1)
    forget: Any = getattr(backend, "forget_optimizer", None)
    if callable(forget):
        await asyncio.to_thread(forget, made[1])


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
    places: Iterable[Path] = (folder.path / "versions").glob("[0-9]" * 6)
    for path in (*folder.checkpoint_folders(), *places):
        if absolute(path) not in kept:
            shutil.rmtree(path)
