"""Worker processes on the nodes of a Ray cluster.

Ray places an actor for each slot, on any node. The actor starts a worker process beside it, the same one that
runs rollouts on this machine, and passes attempts on to it. So the app never runs in the actor, which can
always end the process. If the actor or its node dies, the process ends too (see `supervisor`); that is an
error of its rollout, and the failure policy says whether it is tried again.

Ray is imported when the first pool is made.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from lightning_core import telemetry
from lightning_core.errors import ConfigError, WorkerError
from lightning_core.records.types import Task
from lightning_core.runner.outcome import AttemptOutcome, Solve, describe
from lightning_core.runner.packing import pack
from lightning_core.runner.pool import WorkerPool
from lightning_core.runner.process import GRACE_SECONDS, REPORT_SECONDS, WorkerProcess
from lightning_core.runner.program import CLOSE_SECONDS, END_SECONDS
from lightning_core.runner.worker import Assignment, Report
from lightning_core.tracing.scope import Scope

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SLOW_START_SECONDS = 30.0
"""After which an actor that has not started is worth a warning."""
ACTOR_END_SECONDS = REPORT_SECONDS + GRACE_SECONDS + END_SECONDS + CLOSE_SECONDS
"""How long an actor may take to end its process."""
RESERVED = {"max_concurrency", "max_restarts"}
"""Options of an actor that must stay as Ray has them."""


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """Run rollouts in worker processes on a Ray cluster: the one that this process is connected to, or that
    RAY_ADDRESS names. Without either, Ray is started on this machine while rollouts are run."""

    count: int
    """Worker processes, and so rollouts at once."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of each worker's actor, as `ray.remote` takes them: `num_cpus`, `resources`, `runtime_env`,
    ..."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"RayWorkers(count={self.count!r}): must be 1 or more")
        if reserved := RESERVED & self.options.keys():
            raise ConfigError(
                f"RayWorkers(options=...): leave out {sorted(reserved)}, which can't be changed"
            )

    def pool(self, solve: Solve) -> WorkerPool:
        """Raises ConfigError if Ray is not installed, refuses an option, or can't be sent the function."""
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                f'RayWorkers need Ray ({error}): pip install "agent-lightning-core[ray]"'
            ) from error
        make = ray.remote(**self.options) if self.options else ray.remote
        try:
            actor = make(_Actor)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"RayWorkers(options={dict(self.options)!r}): {error}") from error
        return WorkerPool(partial(RaySlot.start, actor, pack(solve)), self.count, _connection())


Workers = int | str | RayWorkers | None
"""How many worker processes run rollouts, and where: `8` on this machine, `"ray:8"` or `RayWorkers(8)` on a
Ray cluster; None: rollouts run in this process."""


def parse_workers(text: str) -> int | RayWorkers:
    """From the text of an option. Raises ConfigError for one that means nothing."""
    scheme, _, count = text.rpartition(":")
    if not count.isdecimal() or scheme not in ("", "ray"):
        raise ConfigError(f"workers={text!r}: must be a number, such as 8, or ray:8 for a Ray cluster")
    return RayWorkers(int(count)) if scheme else int(count)


@asynccontextmanager
async def _connection() -> AsyncIterator[None]:
    """To the cluster, if this process has none yet."""
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        await asyncio.to_thread(partial(ray.init, include_dashboard=False))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise WorkerError(
            f"no Ray cluster at {os.environ.get('RAY_ADDRESS', 'this machine')!r}: {error}"
        ) from error
    try:
        yield
    finally:
        await asyncio.to_thread(ray.shutdown)


class _Actor:
    """On a node: starts one worker process there, and passes attempts on to it."""

    def __init__(self, path: Sequence[str], folder: str, variables: Mapping[str, str]) -> None:
        """`path` and `folder`: the runner's, as far as they are here as well. `variables`: for the
        environment, where it has none of that name."""
        for name, value in variables.items():
            os.environ.setdefault(name, value)
        sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
        with suppress(OSError):
            os.chdir(folder)
        self._running: asyncio.Task[AttemptOutcome] | None = None

    async def start(self, solve: bytes) -> str:
        """Start the process; the id of the node."""
        import ray

        self._process = await WorkerProcess.start(solve)
        return str(ray.get_runtime_context().get_node_id())

    async def run(self, assignment: Assignment) -> tuple[Report, bool]:
        """One attempt, to its end; and whether the process can be given another."""
        scope = assignment.scope()
        self._running = asyncio.create_task(self._process.run(scope, assignment.task, lambda: None))
        await asyncio.wait({self._running})
        outcome = None if self._running.cancelled() else self._running.result()
        return Report.of(scope, outcome), self._process.alive

    async def end(self) -> bool:
        """End the process, after what runs in it has reported; False if that is impossible."""
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait({self._running})
        return await self._process.end()


class RaySlot:
    """One worker on a node, from the runner's side."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.alive = True
        self.near = True
        """Whether it is on this machine."""

    @classmethod
    async def start(cls, actor: Any, solve: bytes) -> RaySlot:
        """A worker that is ready. Raises WorkerError if it can't be made so."""
        import ray

        slot = cls(actor.remote(sys.path, os.getcwd(), _quiet()))
        try:
            ready = slot._call("start", solve)
            await asyncio.wait({ready}, timeout=SLOW_START_SECONDS)
            if not ready.done():
                log.warning("a worker waits for the Ray cluster to have room for it: see `ray status`")
            slot.near = await ready == ray.get_runtime_context().get_node_id()
        except ray.exceptions.RayError as error:
            ray.kill(slot._actor)
            raise WorkerError(
                f"a worker on Ray could not be started: {_cause(error)}\nInstall the modules that it needs "
                "on every node, or give a `runtime_env` as one of the options"
            ) from error
        except BaseException:
            ray.kill(slot._actor)  # its supervisor ends the process, if there is one by now
            raise
        return slot

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> AttemptOutcome:
        """See `WorkerPool.run`. Raises ConfigError if the attempt could not reach its gateway from there."""
        import ray

        if not self.near and urlsplit(scope.gateway_url).hostname in LOOPBACK:
            raise ConfigError(
                f"the gateway is at {scope.gateway_url!r}, and a worker on another machine, which can't "
                "reach it: give the gateway an address that the cluster's nodes can reach"
            )
        begun()
        working = self._call("run", Assignment.of(scope, task))
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError:
            ended = await self.end()
            if working.done() and working.exception() is None:
                working.result()[0].put_into(scope)
            if ended:
                raise
            return AttemptOutcome(left_behind=True)
        try:
            result: tuple[Report, bool] = working.result()
        except ray.exceptions.RayError as error:
            await self.end()
            died = WorkerError(f"the worker of task {task.id!r} died: {_cause(error)}")
            return AttemptOutcome(error=describe(died), world=True)
        report, self.alive = result
        report.put_into(scope)
        assert report.outcome is not None
        return report.outcome

    async def end(self) -> bool:
        """End the process, then its actor; False if the process can't be ended."""
        import ray

        self.alive = False
        if not ray.is_initialized():
            return True
        ending = self._call("end")
        await asyncio.wait({ending}, timeout=ACTOR_END_SECONDS)
        ray.kill(self._actor)
        if not ending.done():
            return False
        # an actor that is dead already has left its process to the supervisor
        return isinstance(ending.exception(), ray.exceptions.RayError) or bool(ending.result())

    def _call(self, method: str, *arguments: object) -> asyncio.Future[Any]:
        """A method of the actor; its error need not be read."""
        calling = asyncio.wrap_future(getattr(self._actor, method).remote(*arguments).future())
        calling.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return calling


def _quiet() -> dict[str, str]:
    """The variables by which this process's libraries send no telemetry, for an actor's."""
    names = (telemetry.SWITCH, *telemetry.VARIABLES) if telemetry.SWITCH in os.environ else ()
    return {name: os.environ[name] for name in names if name in os.environ}


def _cause(error: Exception) -> str:
    """Returns Ray's message without ids and advice: why the actor is dead, or the error of its own code."""
    said = str(getattr(error, "cause", None) or error)
    _, found, why = said.partition("The actor is dead because ")
    return f"{found}{why}"[:400] if found else said.strip()[-800:]
