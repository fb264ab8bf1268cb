"""The runner: leases rollouts, has the user's function run on each, and tells the store how it ended.

Every rollout has its own slot. A slot is free again the moment its rollout ends and is filled at
once; no rollout waits for the others of a batch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lightning_core.errors import ConfigError, DataError, LeaseLostError, StoreError, UnseenCallsError
from lightning_core.experience.returns import FailurePolicy
from lightning_core.insight.failures import with_hint
from lightning_core.prompts import PinnedPrompts
from lightning_core.records.types import Attempt, Rollout
from lightning_core.runner.config import may_end_without_reward
from lightning_core.runner.gateways import GatewayHealth
from lightning_core.runner.in_process import InProcess
from lightning_core.runner.outcome import AttemptOutcome, Solve, describe, failed, no_reward, with_refused
from lightning_core.runner.pool import WorkerPool
from lightning_core.runner.process import local_pool
from lightning_core.runner.ray_workers import Workers, parse_workers
from lightning_core.stores.base import Store
from lightning_core.tracing.scope import Scope, read_unseen

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""Between two looks at a queue from which no news came."""
LEASE_SECONDS = 180.0
"""Longer than stores wait for a server that is away, so that an outage costs no live worker its rollouts."""
RENEW_SECONDS = 20.0
"""At the most, between two heartbeats."""
RETRY_SECONDS = 1.0
"""At the most, between a heartbeat that failed and the next."""


def prepare(solve: Solve, workers: Workers) -> InProcess | WorkerPool:
    """Where `solve` runs: in this process, in worker processes beside it, or on a Ray cluster.

    Raises ConfigError if it can't run there. Nothing is started before the result is entered.
    """
    if workers is None:
        return InProcess(solve)
    if isinstance(workers, str):
        workers = parse_workers(workers)
    return local_pool(solve, workers) if isinstance(workers, int) else workers.pool(solve)


@dataclass(eq=False, slots=True)
class _Slot:
    """An attempt that runs here."""

    attempt: Attempt
    dropped: asyncio.Future[None]
    """Done when its result is not wanted any more."""
    settled: bool = False
    """Whether the store knows its end, or has given it to somebody else."""

    def drop(self) -> None:
        if not self.dropped.done():
            self.dropped.set_result(None)


class Runner:
    """Has `solve` run once for each attempt, up to `concurrency` at once."""

    def __init__(
        self,
        solve: Solve,
        store: Store,
        *,
        run_id: str,
        scope_for: Callable[[Attempt], Scope],
        concurrency: int = 64,
        timeout: float | None = 300.0,
        on_failure: FailurePolicy | None = None,
        worker: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
        on_finished: Callable[[Rollout], None] | None = None,
        judged: bool = False,
        workers: Workers = None,
        gateways: GatewayHealth | None = None,
        prompts: PinnedPrompts | None = None,
    ) -> None:
        """`timeout`: seconds for one attempt. `workers`: processes that run the attempts, one at a time each;
        None: this process runs up to `concurrency` at once. `lease_seconds`: after which a rollout of a dead
        runner goes to another. `on_finished` gets every rollout that ended here for good; an error that it
        raises ends `serve`. `judged`: training rollouts may end without a final reward, as
        a judge gives them one later. `gateways`: the gateways, where these may come and go: nothing is
        leased while there is none, and an attempt that failed for want of one is given back. `prompts`: the
        run's."""
        if concurrency < 1:
            raise ConfigError(f"concurrency={concurrency!r} must be 1 or more")
        if timeout is not None and timeout <= 0:
            raise ConfigError(f"timeout={timeout!r} must be more than 0 seconds, or None for no limit")
        if lease_seconds <= 0:
            raise ConfigError(f"lease_seconds={lease_seconds!r} must be more than 0")
        self.solve = solve
        self.store = store
        self.run_id = run_id
        self.scope_for = scope_for
        self._runs_in = prepare(solve, workers)
        self.concurrency = self._runs_in.size if isinstance(self._runs_in, WorkerPool) else concurrency
        self.timeout = timeout
        self.on_failure = on_failure or FailurePolicy()
        self.worker = worker or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.lease_seconds = lease_seconds
        self.on_finished = on_finished
        self.judged = judged
        self.gateways = gateways
        self.prompts = prompts
        self._slots: dict[asyncio.Task[None], _Slot] = {}
        self._unfinished: list[Attempt] = []
        self._look: asyncio.Future[None] | None = None
        """For a gateway, while it goes on."""
        self._wake = asyncio.Event()
        self._told: set[tuple[str, ...]] = set()
        """Kinds of unseen calls that are in the log."""
        self._broken: BaseException | None = None

    async def serve(self, stop: asyncio.Event) -> None:
        """Run what the store offers until `stop` is set, then give unfinished attempts back.

        Raises StoreError if the store fails; then too everything unfinished is given back, or is
        taken over by another runner once the leases run out.
        """
        self._broken = None
        async with self._runs_in:
            beside = [asyncio.create_task(self._keep_leases()), asyncio.create_task(self._hear(stop))]
            for task in beside:
                task.add_done_callback(self._note_end)
            try:
                await self._fill_slots(stop)
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)
                await self._end_look()
                await self._give_back()
        if self._broken is not None:
            raise self._broken

    # filling the slots --------------------------------------------------------------------
    async def _fill_slots(self, stop: asyncio.Event) -> None:
        while not stop.is_set() and self._broken is None:
            self._wake.clear()
            if await self._ready():
                for attempt in await self._lease():
                    self._begin(attempt)
            await self._rest()

    async def _ready(self) -> bool:
        """Wait until there is a gateway; False if something else is to be seen to first. The look goes on
        then: started again for each slot that comes free, it might never end."""
        if self.gateways is None:
            return True
        look = self._look = self._look or asyncio.ensure_future(self.gateways.ready())
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            ends: set[asyncio.Future[Any]] = {look, woken}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            await asyncio.gather(woken, return_exceptions=True)
        if not look.done():
            return False
        self._look = None
        look.result()
        return True

    async def _end_look(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            look.cancel()
            await asyncio.gather(look, return_exceptions=True)

    async def _rest(self) -> None:
        """Until a slot is free, the runner is to stop or, with a slot free already, there is work."""
        news: list[asyncio.Future[bool]] = [asyncio.ensure_future(self._wake.wait())]
        if len(self._slots) < self.concurrency:
            news.append(asyncio.ensure_future(self.store.wait_queued(LOOK_SECONDS, run_id=self.run_id)))
        try:
            done, _ = await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in news:
                one.cancel()
            await asyncio.gather(*news, return_exceptions=True)

    async def _hear(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _lease(self) -> list[Attempt]:
        """Fill the free slots. A lease that a cancellation overtakes is given back, not forgotten."""
        free = self.concurrency - len(self._slots)
        if free <= 0:
            return []
        leasing = asyncio.ensure_future(
            self.store.lease(self.worker, free, self.lease_seconds, run_id=self.run_id)
        )
        try:
            return await asyncio.shield(leasing)
        except asyncio.CancelledError:
            await self.store.release(await leasing)
            raise

    def _begin(self, attempt: Attempt) -> None:
        slot = _Slot(attempt, asyncio.get_running_loop().create_future())
        task = asyncio.create_task(self._occupy(slot), name=f"rollout {attempt.rollout.id}")
        self._slots[task] = slot
        task.add_done_callback(self._free)

    def _free(self, task: asyncio.Task[None]) -> None:
        slot = self._slots.pop(task)
        if not slot.settled:
            self._unfinished.append(slot.attempt)
        self._note_end(task)
        self._wake.set()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A task that raised ends `serve` with its error."""
        if not task.cancelled() and task.exception() is not None:
            self._broken = task.exception()
            self._wake.set()

    # one rollout --------------------------------------------------------------------------
    async def _occupy(self, slot: _Slot) -> None:
        scope = self.scope_for(slot.attempt)
        if self.prompts is not None and slot.attempt.rollout.prompt_versions:
            scope = replace(scope, prompts=await self.prompts.find(slot.attempt.rollout.prompt_versions))
        outcome = await self._run(slot, scope)
        if outcome is None:
            return
        if outcome.error is not None and self.gateways is not None and await self.gateways.lost(scope):
            log.warning("rollout %s is given back: its gateway was away", scope.rollout_id)
            await self.store.release([slot.attempt])
            slot.settled = True
            return
        try:
            await self._keep(scope)
        except DataError as error:  # what the app named so that no store can keep it
            outcome = failed(error)
        await self._record(slot, self._strictly(outcome, scope))

    def _strictly(self, outcome: AttemptOutcome, scope: Scope) -> AttemptOutcome:
        """Tell the log what could not be recorded, once; the outcome is then a failure if that was asked
        for."""
        found = list(filter(None, map(read_unseen, scope.noticed()[1])))
        for unseen, _ in found:
            key = unseen.host, unseen.library, unseen.agent, unseen.line
            if key not in self._told:
                self._told.add(key)
                log.warning("rollout %s: %s", scope.rollout_id, unseen.said())
        if not found or outcome.error is not None or not self.on_failure.strict:
            return outcome
        return failed(UnseenCallsError("; ".join(unseen.said() for unseen, _ in found)))

    async def _run(self, slot: _Slot, scope: Scope) -> AttemptOutcome | None:
        """How the attempt ended, its time-out included; None if it was dropped before."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = slot.attempt.rollout.task
        work = asyncio.create_task(self._runs_in.run(scope, task, lambda: begun.set_result(None)))
        ends: set[asyncio.Future[Any]] = {work, slot.dropped}
        await asyncio.wait({*ends, begun}, return_when=asyncio.FIRST_COMPLETED)
        if begun.done():  # what it waited for a worker is not its own time
            await asyncio.wait(ends, timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        work.cancel()
        await asyncio.wait({work})
        if slot.dropped.done():
            return None
        obeyed = work.cancelled() or not work.result().left_behind
        return AttemptOutcome(error=describe(self._timed_out(slot.attempt, obeyed=obeyed)))

    def _timed_out(self, attempt: Attempt, *, obeyed: bool) -> TimeoutError:
        took = f"task {attempt.rollout.task.id!r} took longer than {self.timeout:g} s"
        if obeyed:
            return TimeoutError(f"{took} and was cancelled")
        log.warning("%s and could not be stopped: it goes on beside the others", took)
        return TimeoutError(
            f"{took} and could not be stopped, so it was left running on its own: give the app's clients a "
            "time-out of their own, make the function async and let cancellation through, or run it in a "
            "worker process, where it can be stopped: workers=8"
        )

    async def _keep(self, scope: Scope) -> None:
        """Store what was seen of the attempt where it ran."""
        calls, events = scope.noticed()
        await asyncio.gather(*(self.store.add_call(call) for call in calls))
        await self.store.add_events(events)
        await self.store.add_rewards(list(scope.rewards))

    async def _record(self, slot: _Slot, outcome: AttemptOutcome) -> None:
        attempt = slot.attempt
        reward, error = await self._read(attempt, outcome)
        if error is not None:
            log.info("attempt %d of rollout %s failed: %s", attempt.number, attempt.rollout.id, error)
        try:
            rollout = await self.store.finish(attempt, reward=reward, error=error)
        except LeaseLostError as lost:
            log.warning("%s", lost)
            slot.settled = True
            return
        slot.settled = True
        if self.on_finished is not None and rollout.status.finished:
            self.on_finished(rollout)

    async def _read(self, attempt: Attempt, outcome: AttemptOutcome) -> tuple[float | None, str | None]:
        """The outcome as (reward, error) for the store."""
        error = outcome.error
        given = outcome.reward is not None or error is not None
        if not given and not await may_end_without_reward(self.store, attempt, judged=self.judged):
            error = describe(no_reward(attempt.rollout.task, self.solve))
        if error is None:
            return outcome.reward, None
        calls = (await self.store.get_calls([attempt.rollout.id]))[attempt.rollout.id]
        own = [call for call in calls if call.attempt == attempt.number]
        error = with_hint(with_refused(error, own), own)
        return self.on_failure.reward_of_failure(attempt, calls, world=outcome.world), error

    # keeping and giving back --------------------------------------------------------------
    async def _keep_leases(self) -> None:
        """Extend the leases three times as often as they need it, or more often, and when one was cancelled;
        drop what was taken away. After a failure nothing is waited for: the leases may end soon."""
        every = min(self.lease_seconds / 3, RENEW_SECONDS)
        failed = False
        while True:
            try:
                if not failed:
                    await self.store.wait_cancelled(self.worker, every)
                slots = list(self._slots.values())
                held = await self.store.heartbeat([slot.attempt for slot in slots], self.lease_seconds)
                failed = False
            except StoreError as error:
                log.warning("heartbeat failed, the next one may do: %s", error)
                failed = True
                await asyncio.sleep(min(every, RETRY_SECONDS))
                continue
            kept = {(attempt.rollout.id, attempt.number) for attempt in held}
            for slot in slots:
                if (slot.attempt.rollout.id, slot.attempt.number) not in kept:
                    slot.settled = True
                    slot.drop()

    async def _give_back(self) -> None:
        """Stop what still runs and release everything without an end in the store."""
        for slot in self._slots.values():
            slot.drop()
        if self._slots:
            await asyncio.wait(list(self._slots))
        unfinished, self._unfinished = self._unfinished, []
        try:
            await self.store.release(unfinished)
        except StoreError as error:
            log.warning("%d rollouts wait until their leases run out: %s", len(unfinished), error)
