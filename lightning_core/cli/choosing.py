"""The rollouts of a run that a person's words mean: those that fit a `--where`, or one by an id or a word.

A long run has more of them than fit in memory with their calls. So the store answers what it can, and the
rest is looked for page by page.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Final

from pydantic import JsonValue

from lightning_core.errors import ConfigError, DataError, NotFoundError
from lightning_core.records.types import Rollout, Status, matches
from lightning_core.stores.base import Store
from lightning_core.trainer.report import task_text

ENDS = ("best", "worst")
"""Words for a rollout by its reward."""
PAGE: Final = 200
"""Rollouts that are read at a time, with their calls where these are asked about."""
_LOOKED: Final = 4_000
"""Rollouts among which the best and the worst with an advantage are looked for."""
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Filter:
    """The rollouts that a person wants to see; None: any."""

    task: str | None = None
    """Its id, or how its id or its text begins."""
    step: int | None = None
    """As it is shown: the first update is 1, an evaluation is after so many updates."""
    split: str | None = None
    agent: str | None = None
    """Name or glob of an agent that made a call in it."""
    status: Status | None = None
    inputs: tuple[tuple[str, str], ...] = ()
    """Names of fields of the task's own input, each with the value that it must have."""

    def __post_init__(self) -> None:
        if self.split not in (None, "train", "validation"):
            raise ConfigError(f"--where split={self.split}: give 'train' or 'validation'")

    @property
    def said(self) -> str:
        """The filter in words, for a title."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "inputs"}
        given |= dict(self.inputs)
        return " ".join(f"{name}={value}" for name, value in given.items() if value is not None)


def read_filter(where: Sequence[str]) -> Filter:
    """The filter of `--where NAME=VALUE` options; another name is a field of the tasks' input. Raises
    ConfigError for a value that is none."""
    given: dict[str, Any] = {}
    known = {field.name for field in fields(Filter)} - {"inputs"}
    for each in where:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise ConfigError(
                f"--where {each!r}: give task, step, split, agent, status or a field of the tasks' input, "
                "such as step=3"
            )
        if name not in known:
            given["inputs"] = (*given.get("inputs", ()), (name, value))
            continue
        try:
            given[name] = {"step": int, "status": Status}.get(name, str)(value)
        except ValueError:
            kind = "a whole number" if name == "step" else f"one of {', '.join(Status)}"
            raise ConfigError(f"--where {each!r}: give {kind}") from None
    return Filter(**given)


async def find_wanted(
    store: Store, run_id: str, wanted: Filter, most: int | None = None
) -> tuple[list[Rollout], bool]:
    """The newest `most` rollouts that fit, the newest last, and whether there are more.

    Raises ConfigError if there are none, if no task has a field that is named, or if no agent has the name.
    """
    search = _Search(store, run_id, wanted)
    found: list[Rollout] = []
    async for rollout in search.newest_first():
        if len(found) == most:
            return found[::-1], True
        found.append(rollout)
    if not found:
        raise ConfigError(await search.problem())
    return found[::-1], False


async def choose(store: Store, run_id: str, which: str, wanted: Filter | None = None) -> Rollout:
    """The rollout that is meant by its id, by how the id begins or ends, or by "best", "worst" or "failed".

    Best and worst have an advantage to explain, if any in training has; else they are of training, else of
    all. Of equal rewards the newest is the best, and the oldest the worst. Of those that failed, the newest
    counts. With `wanted` it is among those that fit. Raises ConfigError if it is none of them, or several.
    """
    among = None if wanted is None or not wanted.said else (await find_wanted(store, run_id, wanted))[0]
    if which == "failed":
        return await _failed(store, run_id, among)
    if which in ENDS:
        return await _extreme(store, run_id, among, best=which == "best")
    if among is None:
        with suppress(NotFoundError, DataError):
            (rollout,) = await store.get_rollouts([which])
            if rollout.run_id == run_id:
                return rollout
        among = (await find_wanted(store, run_id, Filter()))[0]
    by_id = {rollout.id: rollout for rollout in among}
    return by_id[_find(which, list(by_id), "rollout", "'best', 'worst', 'failed' or an id")]


async def _failed(store: Store, run_id: str, among: Sequence[Rollout] | None) -> Rollout:
    if among is None:
        found = await store.find_rollouts(run_id, status=Status.FAILED, limit=1, newest=True)
        count = sum(each.count for each in await store.count_rollouts(run_id))
    else:
        found = [rollout for rollout in among if rollout.status is Status.FAILED]
        count = len(among)
    if not found:
        raise ConfigError(f"none of these {count} rollouts has failed; give an id, 'best' or 'worst'")
    return found[-1]


async def _extreme(store: Store, run_id: str, among: Sequence[Rollout] | None, *, best: bool) -> Rollout:
    """The best or the worst, as `choose` says. An advantage is looked for in the first `_LOOKED`."""
    for split in ("train", None):
        first: Rollout | None = None
        looked = 0
        async for page in _by_reward(store, run_id, among, split, best=best):
            first = first or page[0]
            credited = await store.get_credited([rollout.id for rollout in page])
            for rollout in page:
                if split is not None and any(one.advantage for one in credited[rollout.id]):
                    return rollout
            looked += len(page)
            if split is None or looked >= _LOOKED:
                break
        if first is not None:
            return first
    end = "best" if best else "worst"
    raise ConfigError(f"no rollout has a reward yet, so none is the {end}; give an id")


async def _by_reward(
    store: Store, run_id: str, among: Sequence[Rollout] | None, split: str | None, *, best: bool
) -> AsyncIterator[Sequence[Rollout]]:
    """Pages of the rollouts that have a reward, the best or the worst first."""
    if among is not None:
        found = [one for one in among if one.reward is not None and split in (None, one.split)]
        ordered = sorted(found, key=lambda rollout: rollout.reward or 0.0)
        if ordered:
            yield ordered[::-1] if best else ordered
        return
    before: str | None = None
    after: str | None = None
    while page := await store.find_rollouts(
        run_id, split=split, order="reward", before=before, after=after, newest=best, limit=PAGE
    ):
        yield page[::-1] if best else page
        before, after = (page[0].id, None) if best else (None, page[-1].id)


@dataclass(slots=True)
class _Search:
    """Looks for the rollouts that fit, and remembers what there was instead."""

    store: Store
    run_id: str
    wanted: Filter
    _looked: int = 0
    """Rollouts that were read."""
    _names: set[str] = field(default_factory=set)
    """Fields of their tasks' input."""
    _agents: set[str] = field(default_factory=set)
    """Agents of the calls that were read."""

    async def newest_first(self) -> AsyncIterator[Rollout]:
        """The rollouts that fit. Raises ConfigError for a task that none has, or that several may be."""
        task = None if self.wanted.task is None else await self._task(self.wanted.task)
        async for page in self._pages():
            self._looked += len(page)
            self._names.update(*(rollout.task.input for rollout in page))
            fitting = [one for one in page if self._fits(one, task)]
            if self.wanted.agent is not None:
                fitting = await self._of_agent(fitting, self.wanted.agent)
            for rollout in reversed(fitting):
                yield rollout

    async def problem(self) -> str:
        """Says why nothing was found."""
        if not await self.store.count_rollouts(self.run_id):
            return "the run has no rollouts yet"
        for name, _ in self.wanted.inputs:
            if self._looked and name not in self._names:
                there = ", ".join(sorted(self._names))
                return (
                    f"--where {name}=...: it is none of task, step, split, agent and status, and no task has "
                    f"a field {name!r}; the tasks have {there or 'no fields'}"
                )
        if self._agents and not any(matches(name, (self.wanted.agent or "",)) for name in self._agents):
            seen = ", ".join(sorted(self._agents))
            return f"no call of {self.wanted.agent!r} in these rollouts; agents seen: {seen}"
        count = sum(each.count for each in await self.store.count_rollouts(self.run_id))
        return f"none of the {count} rollouts fits {self.wanted.said}; leave a --where out"

    async def _pages(self) -> AsyncIterator[list[Rollout]]:
        """Rollouts by what the store itself tells apart, the newest page first."""
        wanted = self.wanted
        splits = [wanted.split]
        if wanted.step is not None:  # an evaluation comes after so many updates, so after the step
            splits = [split for split in ("validation", "train") if wanted.split in (None, split)]
        for split in splits:
            step = None if wanted.step is None else wanted.step - (split == "train")
            before: str | None = None
            while page := await self.store.find_rollouts(
                *(self.run_id,),
                step=step,
                split=split,
                status=wanted.status,
                before=before,
                limit=PAGE,
                newest=True,
            ):
                yield page
                before = page[0].id

    def _fits(self, rollout: Rollout, task: str | None) -> bool:
        given = rollout.task.input
        return task in (None, rollout.task.id) and all(
            name in given and _written(given[name]) == value for name, value in self.wanted.inputs
        )

    async def _of_agent(self, rollouts: list[Rollout], agent: str) -> list[Rollout]:
        """The rollouts in which the agent made a call."""
        calls = await self.store.get_calls([rollout.id for rollout in rollouts])
        agents = {name: {call.agent for call in part} for name, part in calls.items()}
        self._agents.update(*agents.values())
        return [one for one in rollouts if any(matches(name, (agent,)) for name in agents[one.id])]

    async def _task(self, given: str) -> str:
        """The id of the task whose id, or the start of whose id or text, is given."""
        texts: dict[str, str] = {}
        whole = _Search(self.store, self.run_id, Filter())
        async for rollout in whole.newest_first():
            texts.setdefault(rollout.task.id, task_text(rollout.task))
        if not texts:
            raise ConfigError("the run has no rollouts yet")
        meant = [name for name, text in texts.items() if given and text.startswith(given)]
        return meant[0] if len(meant) == 1 else _find(given, sorted(texts), "task")


def _written(value: JsonValue) -> str:
    """A field of a task as a person writes it on a command line."""
    return value if isinstance(value, str) else json.dumps(value)


def _find(given: str, ids: Sequence[str], kind: str, wanted: str = "an id") -> str:
    """The id that is given, or that alone begins or ends so. Raises ConfigError, which says what is
    `wanted`."""
    if given in ids:
        return given
    found = [one for one in ids if given and (one.startswith(given) or one.endswith(given))]
    if len(found) == 1:
        return found[0]
    known = found or ids
    named = ", ".join(repr(one) for one in known[-_NAMED:])
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    if found:
        raise ConfigError(f"{given!r} fits several {kind}s: {named}{more}; give the whole id")
    raise ConfigError(
        f"no {kind} has the id {given!r}, or one that begins or ends so; give {wanted}: {named}{more}"
    )
