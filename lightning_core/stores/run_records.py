"""What is kept of a run beside its rollouts, by the same statements in every relational store.

A store says how a row is put, added, removed and read; in the queries here `?` stands for an argument.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from lightning_core.stores import rows, rules
from lightning_core.stores.rows import Row
from lightning_core.types import Alert, Member, Metrics, ResourceVersion, Role, Run

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose rows are known by a key."""

    name: str
    columns: str
    key: str


RUNS = Table("runs", rows.RUN, "id")
RESOURCES = Table("resources", rows.RESOURCE, "run_id, name, version")
METRICS = Table("metrics", rows.METRICS, "run_id, step")
MEMBERS = Table("members", rows.MEMBER, "run_id, role, name")
ALERTS = Table("alerts", rows.ALERT, "run_id, id")


class RunRecords(ABC):
    """Runs, and what is learnt, who plays and what is wrong in them (part of `stores.base.Store`)."""

    arrival: ClassVar[str]
    """The column that tells the order in which rows were added."""

    @abstractmethod
    async def _put(self, table: Table, row: Row) -> None:
        """Insert the row, or replace the one with its key."""

    @abstractmethod
    async def _add(self, table: Table, new: Sequence[Row]) -> int:
        """Insert the rows whose key is new, all or none; how many these were."""

    @abstractmethod
    async def _remove(self, table: Table, key: Row) -> None:
        """Delete the row with that key, if there is one."""

    @abstractmethod
    async def _select(self, to_value: Callable[[Row], T], query: str, *arguments: object) -> list[T]:
        """The rows that the query finds, as values."""

    async def put_run(self, run: Run) -> None:
        rules.check_ids(run)
        await self._put(RUNS, rows.run_row(run))

    async def find_run(self, run_id: str) -> Run | None:
        runs = await self._select(rows.to_run, f"SELECT {rows.RUN} FROM runs WHERE id = ?", run_id)
        return runs[0] if runs else None

    async def list_runs(self) -> list[Run]:
        query = f"SELECT {rows.RUN} FROM runs ORDER BY created_at DESC, {self.arrival}"
        return await self._select(rows.to_run, query)

    async def put_resource(self, version: ResourceVersion) -> None:
        rules.check_ids(version)
        await self._put(RESOURCES, rows.resource_row(version))

    async def list_resources(self, run_id: str, name: str = "policy") -> list[ResourceVersion]:
        query = f"SELECT {rows.RESOURCE} FROM resources WHERE run_id = ? AND name = ? ORDER BY version"
        return await self._select(rows.to_resource, query, run_id, name)

    async def put_metrics(self, metrics: Metrics) -> None:
        rules.check_ids(metrics)
        await self._put(METRICS, rows.metrics_row(metrics))

    async def list_metrics(self, run_id: str) -> list[Metrics]:
        query = f"SELECT {rows.METRICS} FROM metrics WHERE run_id = ? ORDER BY step"
        return await self._select(rows.to_metrics, query, run_id)

    async def put_member(self, member: Member) -> None:
        rules.check_ids(member)
        await self._put(MEMBERS, rows.member_row(member))

    async def remove_member(self, run_id: str, role: Role, name: str) -> None:
        await self._remove(MEMBERS, (run_id, role, name))

    async def list_members(self, run_id: str) -> list[Member]:
        query = f"SELECT {rows.MEMBER} FROM members WHERE run_id = ? ORDER BY role, name"
        return await self._select(rows.to_member, query, run_id)

    async def add_alerts(self, alerts: Sequence[Alert]) -> int:
        rules.check_ids(*alerts)
        return await self._add(ALERTS, [rows.alert_row(alert) for alert in alerts])

    async def list_alerts(self, run_id: str) -> list[Alert]:
        query = f"SELECT {rows.ALERT} FROM alerts WHERE run_id = ? ORDER BY {self.arrival}"
        return await self._select(rows.to_alert, query, run_id)
