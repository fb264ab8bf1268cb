"""What a gateway needs to answer for a run: an upstream over the run's versions."""

from __future__ import annotations

from lightning_core.backends.base import Backend, check_versions
from lightning_core.gateway.catalogue import Catalogue
from lightning_core.gateway.shelf import VersionEngine
from lightning_core.gateway.versions import ENGINES, Embedded, VersionedUpstream
from lightning_core.stores.base import Store


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
