"""The store of one process: SQLite's tables in memory, which are gone with the object.

It may be used from any thread and event loop, before it is opened and after it was closed. An operation runs
where it is called, as it waits for no disk.
"""

from __future__ import annotations

import math
import weakref

from lightning_core.errors import ConfigError
from lightning_core.stores.notifications import Notifications
from lightning_core.stores.sqlite import SqliteDriver, connect_memory
from lightning_core.stores.table_store import TableStore
from lightning_core.stores.workers import Direct


class MemoryStore(TableStore):
    """`memory://`: a store of its own for each object."""

    def __init__(self, url: str = "memory://") -> None:
        if url != "memory://":
            raise ConfigError(
                f"store {url!r} is not a memory store: write 'memory://', without anything after it"
            )
        self.name = url
        notifications = Notifications()
        worker = Direct(SqliteDriver(url, connect_memory, notifications))
        super().__init__(worker, worker, notifications, look_seconds=math.inf)
        weakref.finalize(self, worker.connection.raw.close)
