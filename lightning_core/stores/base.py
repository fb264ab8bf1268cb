"""The store's contract: the only thing that runner, gateway and trainer share.

Every method is one atomic operation and survives the death of its caller: what a method has
returned from is durable (for stores that outlive the process). Implementations are equal under
the laws in `tests/stores/test_laws.py`. All refuse by DataError an id that is not 1 to 512 characters of
whole Unicode text without NUL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from lightning_core.errors import NotFoundError
from lightning_core.records.types import (
    Alert,
    Attempt,
    Call,
    Credited,
    Event,
    Member,
    Metrics,
    Order,
    ResourceVersion,
    Reward,
    Role,
    Rollout,
    RolloutCount,
    Run,
    Status,
)


class Store(Protocol):
    """Tasks, rollouts, calls, rewards, resources and metrics of any number of runs."""

    async def __aenter__(self) -> Store: ...
    async def __aexit__(self, *exc: object) -> None: ...

    # runs ---------------------------------------------------------------------------------
    async def put_run(self, run: Run) -> None:
        """Insert the run, or replace the one with the same id."""

    async def find_run(self, run_id: str) -> Run | None: ...
    async def list_runs(self) -> list[Run]:
        """Newest first."""

    # the queue of rollouts ----------------------------------------------------------------
    async def enqueue(self, rollouts: Sequence[Rollout]) -> int:
        """Add the rollouts whose id is new; known ids are left as they are. Returns how many were new."""

    async def lease(
        self, worker: str, limit: int, seconds: float, *, run_id: str | None = None
    ) -> list[Attempt]:
        """Hand up to `limit` rollouts to `worker` for `seconds`.

        Taken are queued rollouts and running ones whose lease ran out, by falling priority, then in
        the order they were enqueued. Each gets a new attempt number. A rollout whose lease ran out
        on its last allowed attempt becomes FAILED instead ("lease expired"). Rollouts are never
        handed to two workers at once. A clock that is set in the meantime makes a lease neither longer nor
        shorter: those of a store in a server run by that server's clock, others by one that can't be set.
        """

    async def wait_queued(self, timeout: float, *, run_id: str | None = None) -> bool:
        """Wait until there may be something to lease: True soon after, False after `timeout` seconds.

        A hint, for idle workers: another worker may be faster, so lease and see.
        """

    async def heartbeat(self, attempts: Sequence[Attempt], seconds: float) -> list[Attempt]:
        """Extend the leases; returns those still held, the others are lost or were cancelled."""

    async def finish(
        self, attempt: Attempt, *, reward: float | None = None, error: str | None = None
    ) -> Rollout:
        """End an attempt: with `reward` the rollout SUCCEEDED; with `error` it is QUEUED again while
        `attempts < max_attempts`, else FAILED. The final reward is stored as a Reward as well.

        Both together (a penalised failure) end it as FAILED with that reward, without another attempt. With
        neither it SUCCEEDED with the last final reward that was added in this attempt; if there is none,
        somebody gives it later, by `add_rewards`.
        Raises LeaseLostError if the attempt is not the rollout's running one; then nothing changes,
        except that repeating the very same finish is accepted and changes nothing.
        """

    async def cancel(self, rollout_ids: Sequence[str]) -> int:
        """Cancel the unfinished ones among them; returns how many. Their workers are told."""

    async def wait_cancelled(self, worker: str, timeout: float) -> bool:
        """Wait until something that `worker` held was cancelled: True soon after, False after
        `timeout` seconds.

        A hint, to stop a running rollout at once: `heartbeat` then says which. One that is missed (the
        connection was down, or none was waiting) is seen at the next heartbeat all the same.
        """

    async def release(self, attempts: Sequence[Attempt]) -> None:
        """Give back unfinished attempts (a clean stop): the rollouts are queued again and may be tried
        once more than before. The attempt numbers are not used again, so what those attempts
        recorded stays apart from what the next one records."""

    async def reclaim(self, worker: str, *, run_id: str | None = None) -> int:
        """Release everything that `worker` holds, or what it holds of one run: for a worker that starts again
        under the name it had when it died. Returns how many rollouts were queued again."""

    async def find_rollouts(
        self,
        run_id: str,
        *,
        step: int | None = None,
        split: str | None = None,
        status: Status | None = None,
        after: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        newest: bool = False,
        order: Order = "enqueued",
    ) -> list[Rollout]:
        """In the `order` asked for: those after the rollout `after` and before `before`, and of these the
        first `limit`, or with `newest` the last.

        A page costs as much as it holds, however many rollouts there are; of several among step, status and
        split, the later ones are looked for among what the first one finds. By reward, a page of a step costs
        as much as the step, and status and split are looked for among all. Raises NotFoundError for an
        `after` or `before` that is no rollout of the run, or that has no place in the order.
        """

    async def count_rollouts(self, run_id: str) -> list[RolloutCount]:
        """How many there are of each step, split and status, by rising step."""

    async def get_rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """The rollouts as they stand, in the order of the ids. Raises NotFoundError for an id that was
        never enqueued."""

    async def wait_finished(self, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Returns the finished ones of the rollouts, once all are or `timeout` seconds have passed.

        Raises NotFoundError for an id that was never enqueued.
        """

    # what happened in them ----------------------------------------------------------------
    async def add_call(self, call: Call, *, running: bool = False) -> None:
        """Record a try of a call under its (rollout, attempt, id). A later try replaces one that did not
        complete, and never one that completed.

        What completes under the id of a completed call is a call of its own, recorded under an id made of
        both; what does not complete is left out beside it. The very same call again changes nothing. With
        `running` its attempt must be running: NotFoundError for an unknown rollout, LeaseLostError if the
        attempt has ended.
        """

    async def add_rewards(self, rewards: Sequence[Reward], *, running: bool = False) -> None:
        """Record rewards, all or none; RewardError if one is no number from -1e9 to 1e9 (as `finish` does).

        One under a known (rollout, attempt, id) is left out. With `running` those that are left must be of
        running attempts: NotFoundError for an unknown rollout, LeaseLostError if the attempt has ended.
        Without it, the last final reward of a rollout that has succeeded becomes the rollout's own.
        """

    async def add_events(self, events: Sequence[Event]) -> None:
        """Record tool runs and spans, all or none; one under a known (rollout, attempt, kind, id)
        replaces the earlier. A span's id is that in its trace: (trace id, id)."""

    async def get_calls(self, rollout_ids: Iterable[str]) -> dict[str, list[Call]]:
        """Calls of the *last* attempt of each rollout, by the time they started. Every id is a key. A call
        whose record is damaged is there as one that failed, and its error says so."""

    async def get_rewards(self, rollout_ids: Iterable[str]) -> dict[str, list[Reward]]:
        """Rewards of the last attempt of each rollout, in the order given. Every id is a key."""

    async def get_events(self, rollout_ids: Iterable[str]) -> dict[str, list[Event]]:
        """Events of the last attempt of each rollout, by the time they started. Every id is a key."""

    async def add_credited(self, credited: Sequence[Credited]) -> None:
        """Record what transitions were given, all or none; one under a known (rollout, attempt, call, choice)
        replaces the earlier."""

    async def get_credited(self, rollout_ids: Iterable[str]) -> dict[str, list[Credited]]:
        """Returns the credit of each transition of each rollout's last attempt, by call and choice. Every id
        is a key."""

    # what is learnt -----------------------------------------------------------------------
    async def put_resource(self, version: ResourceVersion) -> None:
        """Insert or replace (run_id, name, version)."""

    async def list_resources(self, run_id: str, name: str = "policy") -> list[ResourceVersion]:
        """Returns the versions of a resource, by rising version."""

    async def put_metrics(self, metrics: Metrics) -> None:
        """Insert or replace the numbers of (run_id, step)."""

    async def list_metrics(
        self, run_id: str, *, since: int | None = None, limit: int | None = None
    ) -> list[Metrics]:
        """Returns the metrics by rising step, from the step `since` on; the first `limit`."""

    # who plays in a run, and what is wrong with it ----------------------------------------
    async def put_member(self, member: Member) -> None:
        """Insert or replace the member (run_id, role, name): what a process says of itself now."""

    async def remove_member(self, run_id: str, role: Role, name: str) -> None:
        """Forget a member that has ended; an unknown one is no error."""

    async def list_members(self, run_id: str) -> list[Member]:
        """Returns the members by role and name; a dead one is still among them, with an old `seen_at`."""

    async def add_alerts(self, alerts: Sequence[Alert]) -> int:
        """Record alerts, all or none; one under a known (run_id, id) is left out. Returns how many
        were new."""

    async def list_alerts(self, run_id: str) -> list[Alert]:
        """In the order they were added."""


async def get_run(store: Store, run_id: str) -> Run:
    """The run. Raises NotFoundError if it is not in the store."""
    run = await store.find_run(run_id)
    if run is None:
        raise NotFoundError(f"run {run_id!r} is not in this store")
    return run
