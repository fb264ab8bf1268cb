"""What a gateway needs to answer for a run: an upstream over the run's versions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lightning_core.backends.base import Backend, check_versions
from lightning_core.errors import ConfigError, ModelError
from lightning_core.gateway.catalogue import Catalogue
from lightning_core.gateway.shelf import VersionEngine
from lightning_core.gateway.versions import ENGINES, Embedded, VersionedUpstream
from lightning_core.plugins import Plugins
from lightning_core.stores.base import Store
from lightning_core.types import ResourceVersion, Run
from lightning_core.versions import POLICY, find_current


def make_upstream(
    store: Store, run_id: str, backend: Backend, *, name: str, embedded: bool, engines: int = ENGINES
) -> VersionedUpstream:
    """An upstream for the run's weights, called `name`; `embedded`: the backend is started and trains
    them."""

    async def open_engine(source: str, version: int) -> VersionEngine:
        check_versions(backend, "open_engine")
        return await backend.open_engine(source, version)

    own = Embedded(backend.upstream, lambda: backend.policy_version) if embedded else None
    return VersionedUpstream(name, Catalogue(store, run_id), open_engine, embedded=own, engines=engines)


@asynccontextmanager
async def serving_run(
    store: Store, run: Run, plugins: Plugins, *, backend: str = "local", engines: int = ENGINES
) -> AsyncIterator[VersionedUpstream]:
    """An upstream for a run that is not trained in this process. Raises ConfigError for a run without
    weights, ModelError if they can't be reached from here."""
    if engines < 1:
        raise ConfigError(f"engines={engines!r}: must be at least 1")
    versions = await store.list_resources(run.id, POLICY)
    current = find_current(versions)
    if current is None:
        raise ConfigError(f"run {run.id!r} has no weights yet; wait until its trainer has started")
    _check_reachable(run, current)
    reader = open_reader(run, versions, plugins, backend)
    upstream = make_upstream(
        store, run.id, reader, name=_name(base_model(run, versions)), embedded=False, engines=engines
    )
    try:
        yield upstream
    finally:
        await upstream.close()
        await reader.close()


def open_reader(run: Run, versions: list[ResourceVersion], plugins: Plugins, backend: str) -> Backend:
    """A backend that is not started, to read the run's versions with."""
    made: Backend = plugins.part("backend", backend)(model=base_model(run, versions), seed=0)
    return made


def base_model(run: Run, versions: list[ResourceVersion]) -> str:
    """The model that the run began with: its version 0, or what its record says."""
    start = next((version.uri for version in versions if version.version == 0), None)
    return start or str(run.config["model"])


def _name(model: str) -> str:
    return Path(model).name if Path(model).exists() else model


def _check_reachable(run: Run, version: ResourceVersion) -> None:
    uri = version.uri or ""
    if Path(uri).is_absolute() and not Path(uri).exists():
        raise ModelError(
            f"the weights of run {run.id!r} lie in {uri!r}, which is not there on this machine: start the "
            "gateway where the run is trained, or let both machines see the run's folder at the same path"
        )
