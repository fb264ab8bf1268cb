"""Versions of what an algorithm improves, weights and prompts alike: put, found, chosen.

A version is never changed into another: whoever improves one puts the next, with the one it was made from
as its parent. Which of them is served is a separate choice. The version chosen last is the current one,
so going back means choosing an old one again. What else a run keeps in the table of versions has names of
its own, all in `Document`, and no prompt may have one of these.

One writer at a time for each name of a run: the store replaces what is put under a number that is taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from lightning_core.errors import NotFoundError, StoreError
from lightning_core.records.types import ResourceVersion, Run
from lightning_core.stores.base import Store

POLICY: Final = "policy"
"""The name of the weights under training."""
TRAINER: Final = "trainer"
"""The author of what training made."""
POLICIES: Final = "policies"
"""The key of a run's configuration with the policies of its agents: a name or glob, and the policy's name."""
POLICY_MODELS: Final = "models of policies"
"""The key of a run's configuration with the base model of each named policy."""


class Document(StrEnum):
    """Lists that lie in the table of versions and hold none: how the name of each is made."""

    CHOICES = "{}/choices"
    """Choices of persons among the versions of a name: who, when, and what was current before."""
    SEARCH = "searches/{}"
    """The summary of the search that was a step, as JSON."""
    REFLECTIONS = "reflections/{}"
    """Questions to the reflecting model in that step, and its answers, as JSON."""

    def of(self, what: str | int) -> str:
        """The name of the one of a prompt or a step."""
        return self.value.format(what)

    def has(self, name: str) -> bool:
        """Whether the name is of this kind."""
        before, after = self.value.split("{}")
        return name.startswith(before) and name.endswith(after)


def weights_of(policy: str | None) -> str:
    """The name of a policy's weights; None: the run's own."""
    return POLICY if policy is None else f"{POLICY}:{policy}"


def policy_of(weights: str) -> str | None:
    """The policy whose weights have this name; None: the run's own."""
    return weights.removeprefix(POLICY).removeprefix(":") or None


def model_of(run: Run, policy: str | None) -> str | None:
    """The base model of a policy of the run; None if the run does not say."""
    own = run.config.get("model")
    return models_of(run).get(policy or "", None if own is None else str(own))


def models_of(run: Run) -> dict[str, str]:
    """The base model of each named policy, as far as the run says."""
    models: Any = run.config.get(POLICY_MODELS) or {}
    return dict(models)


def policies_of(run: Run) -> dict[str, str]:
    """Names or globs of a run's agents, and the named policy that each plays."""
    policies: Any = run.config.get(POLICIES) or {}
    return dict(policies)


def is_weights(name: str) -> bool:
    """Whether the versions of that name are weights."""
    return name == POLICY or name.startswith(f"{POLICY}:")


def is_taken(name: str) -> bool:
    """Whether a prompt can't have this name."""
    return not name or is_weights(name) or any(each.has(name) for each in Document)


def read_number(text: str) -> int | None:
    """The number of a version; None for anything but up to nine digits of ASCII."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def find_current(versions: Iterable[ResourceVersion]) -> ResourceVersion | None:
    """The one that was chosen last; where none was ever chosen, the newest."""
    return max(versions, key=lambda v: (v.chosen_at or 0.0, v.version), default=None)


def get_version(versions: Sequence[ResourceVersion], version: int) -> ResourceVersion:
    """The version of that number, with its content. Raises NotFoundError, saying which there are."""
    there = ", ".join(str(v.version) for v in versions if v.uri is not None) or "none"
    found = next((v for v in versions if v.version == version), None)
    if found is None:
        raise NotFoundError(f"there is no version {version}; there are: {there}")
    if found.uri is None:
        raise NotFoundError(
            f"the content of version {version} was deleted to save space; there are: {there} "
            "(what is kept in future runs, `Trainer(keep_checkpoints=...)` says)"
        )
    return found


async def put_prompt(
    store: Store,
    run_id: str,
    name: str,
    text: str,
    *,
    author: str,
    parent: int | None = None,
    metrics: Mapping[str, float] | None = None,
    chosen: bool = True,
) -> ResourceVersion:
    """Add the next version of a prompt template; with `chosen` it is the current one from now on."""
    if is_weights(name):
        raise StoreError(f"{name!r} is the name of the weights; give the prompt another")
    if is_taken(name):
        raise StoreError(f"no prompt can be called {name!r}, where the run keeps other things; rename it")
    versions = await store.list_resources(run_id, name)
    now = time.time()
    made = ResourceVersion(
        run_id=run_id,
        name=name,
        version=versions[-1].version + 1 if versions else 0,
        kind="prompt",
        uri=text,
        parent=parent,
        author=author,
        metrics=dict(metrics or {}),
        created_at=now,
        chosen_at=_after(versions, now) if chosen else None,
    )
    await store.put_resource(made)
    return made


async def get_prompt(store: Store, run_id: str, name: str, version: int | None = None) -> ResourceVersion:
    """A version of a prompt, by default the current one; its text is `uri`. Raises NotFoundError."""
    versions = await store.list_resources(run_id, name)
    if version is None:
        current = find_current(versions)
        if current is None:
            raise NotFoundError(f"run {run_id!r} has no prompt {name!r}; put one with put_prompt")
        version = current.version
    return get_version(versions, version)


async def choose(
    store: Store, run_id: str, version: int, *, author: str, name: str = POLICY
) -> ResourceVersion:
    """A person makes a version the current one. Raises NotFoundError if it is not there, or not any more."""
    versions = await store.list_resources(run_id, name)
    chosen, before = get_version(versions, version), find_current(versions)
    known = await store.list_resources(run_id, Document.CHOICES.of(name))
    await store.put_resource(  # first: a choice that took effect has a name to it
        ResourceVersion(
            run_id=run_id,
            name=Document.CHOICES.of(name),
            version=len(known),
            kind="prompt",
            uri=str(version),
            parent=None if before is None else before.version,
            author=author,
        )
    )
    return await make_current(store, chosen, versions)


async def make_current(
    store: Store, chosen: ResourceVersion, versions: Sequence[ResourceVersion]
) -> ResourceVersion:
    """Put `chosen` as the current one of its name, of which `versions` are known."""
    made = chosen.model_copy(update={"chosen_at": _after(versions, time.time())})
    await store.put_resource(made)
    return made


async def list_choices(store: Store, run_id: str, name: str = POLICY) -> list[ResourceVersion]:
    """Returns the choices of persons, oldest first: `uri` is the version's number, `parent` the one it took
    the place of, `author` the person and `created_at` the time."""
    return await store.list_resources(run_id, Document.CHOICES.of(name))


def _after(versions: Iterable[ResourceVersion], now: float) -> float:
    """A time of choice later than every other, also where the clocks of two machines differ."""
    latest = max((v.chosen_at for v in versions if v.chosen_at is not None), default=now)
    return max(now, latest + 1e-3)
