"""`executor="ray"`: attempts run on actors of Ray, on any machine of a cluster.

Each actor runs one attempt at a time and stays warm, like a worker process of `Processes`. Cancelling kills
the actor, and another takes its place. An actor or a node that dies is an error of the rollout that ran
there; the failure policy says whether it is tried again.

Ray is imported when the first crew is made.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from lightning_core import telemetry
from lightning_core.errors import ConfigError, ExecutorError
from lightning_core.runner import wire
from lightning_core.runner.executor import Outcome, Solve
from lightning_core.runner.failure import describe
from lightning_core.runner.packing import pack
from lightning_core.runner.pool import Pool
from lightning_core.runner.ray_actor import RolloutActor
from lightning_core.tracing.scope import Scope
from lightning_core.types import Task

log = logging.getLogger(__name__)

CONTROL = "control"
"""The concurrency group of what is said to an actor beside its attempt."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
END_SECONDS = 5.0
"""How long an actor that is to be killed may take to end what it has started and say what it has noticed."""
PATIENCE_SECONDS = 30.0
"""After which an actor that has not started is worth a warning."""
DEATH_SECONDS = 30.0
"""How long the cluster may take to say that a killed actor is dead."""
LOOK_SECONDS = 0.1
"""Between two questions whether it is."""


@dataclass(frozen=True, slots=True)
class RayActors:
    """Run on actors of a Ray cluster."""

    workers: int | None = None
    """Actors, and so rollouts at once; None: as many as the runner's `concurrency`."""
    address: str | None = None
    """Of the cluster. None: the one that this process is connected to, or that RAY_ADDRESS names; without
    either, Ray is started on this machine for as long as the crew works."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of each actor, as `ray.remote` takes them, such as `num_cpus`, `resources` and `runtime_env`."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"RayActors(workers={self.workers!r}): must be 1 or more, or None")

    def crew(self, solve: Solve, concurrency: int) -> RayCrew:
        """Raises ConfigError if Ray is not installed, refuses an option, or can't be sent the function."""
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                f'executor="ray" needs Ray ({error}): pip install "agent-lightning-core[ray]"'
            ) from error
        reserved = {"max_concurrency", "concurrency_groups", "max_restarts"} & self.options.keys()
        if reserved:
            raise ConfigError(
                f"RayActors(options=...): {sorted(reserved)} are not yours to set; leave them out"
            )
        settings = {**self.options, "concurrency_groups": {CONTROL: 1}}
        try:
            actor = ray.remote(**settings)(RolloutActor)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"RayActors(options={dict(self.options)!r}): {error}") from error
        return RayCrew(actor, pack(solve, "ray"), self.workers or concurrency, self.address)


class RayCrew:
    """A pool of actors, and the connection to their cluster."""

    def __init__(self, actor: Any, solve: bytes, slots: int, address: str | None) -> None:
        self.slots: int | None = slots
        self._pool = Pool(partial(RayPlace.start, actor, solve), slots)
        self._address = address
        self._connected_here = False

    async def __aenter__(self) -> RayCrew:
        await self._connect()
        try:
            await self._pool.__aenter__()
        except BaseException:
            await self._disconnect()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._pool.__aexit__(*exc)
        finally:
            await self._disconnect()

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> Outcome:
        """See `Crew.run`."""
        return await self._pool.run(scope, task, begun)

    async def _connect(self) -> None:
        import ray

        if ray.is_initialized():
            return
        connect = partial(ray.init, address=self._address, include_dashboard=False)
        try:
            await asyncio.to_thread(connect)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ExecutorError(f"no Ray cluster at {self._address or 'this machine'!r}: {error}") from error
        self._connected_here = True

    async def _disconnect(self) -> None:
        import ray

        if self._connected_here:
            await asyncio.to_thread(ray.shutdown)
            self._connected_here = False


class RayPlace:
    """One actor, from the runner's side."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.alive = True
        self.near = True
        """Whether it is on this machine."""

    @classmethod
    async def start(cls, actor: Any, solve: bytes) -> RayPlace:
        """An actor that is ready. Raises ExecutorError if it can't be made so."""
        import ray

        place = cls(actor.remote(solve, sys.path, os.getcwd(), _quiet()))
        try:
            ready = place._ask("node")
            ready.add_done_callback(_unheard)
            await asyncio.wait({ready}, timeout=PATIENCE_SECONDS)
            if not ready.done():
                log.warning("an actor waits for the cluster to have room for it: see `ray status`")
            place.near = await ready == ray.get_runtime_context().get_node_id()
        except ray.exceptions.RayError as error:
            raise ExecutorError(
                f"an actor of Ray can't load the function: {_told(error)}\nEvery module that it needs must "
                "be importable on every node: install it there, or give a `runtime_env` as one of the options"
            ) from error
        except BaseException:
            await place.end()
            raise
        return place

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> Outcome:
        """See `Crew.run`. Raises ConfigError if the attempt could not reach its gateway from there."""
        import ray

        if not self.near and urlsplit(scope.gateway_url).hostname in LOOPBACK:
            raise _unreachable(scope)
        begun()
        working = asyncio.wrap_future(self._actor.run.remote(wire.Run.of(scope, task)).future())
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError:
            working.add_done_callback(_unheard)
            await self._hear_out(scope)
            if await self.end():
                raise
            return Outcome(left_behind=True)
        try:
            done: wire.Done = working.result()
        except ray.exceptions.RayError as error:
            await self.end()
            told = ExecutorError(f"the actor of task {task.id!r} died: {_told(error)}")
            return Outcome(error=describe(told))
        done.noticed.put_into(scope)
        return done.outcome

    def _ask(self, method: str) -> asyncio.Future[Any]:
        """Call a method beside the attempt, on a loop that the attempt can't block."""
        reference = getattr(self._actor, method).options(concurrency_group=CONTROL).remote()
        return asyncio.wrap_future(reference.future())

    async def _hear_out(self, scope: Scope) -> None:
        """What was noticed until now, if the actor is still able to say it."""
        import ray

        leaving = self._ask("leave")
        leaving.add_done_callback(_unheard)
        await asyncio.wait({leaving}, timeout=END_SECONDS)
        if leaving.done() and not isinstance(leaving.exception(), ray.exceptions.RayError):
            leaving.result().put_into(scope)

    async def end(self) -> bool:
        """Kill the actor; False if the cluster does not say that it is dead."""
        import ray

        self.alive = False
        if not ray.is_initialized():
            return True
        ray.kill(self._actor)
        try:
            async with asyncio.timeout(DEATH_SECONDS):
                # the question may come before the kill
                while not await self._is_dead():  # noqa: ASYNC110 - Ray sends no event
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return False
        return True

    async def _is_dead(self) -> bool:
        """A dead actor's answer is an error, which comes when the cluster has noted its death."""
        import ray

        answer = self._ask("node")
        answer.add_done_callback(_unheard)
        try:
            await answer
        except ray.exceptions.RayError:
            return True
        return False


def _quiet() -> dict[str, str]:
    """The variables by which this process's libraries send no telemetry, for an actor's."""
    names = (telemetry.SWITCH, *telemetry.VARIABLES) if telemetry.SWITCH in os.environ else ()
    return {name: os.environ[name] for name in names if name in os.environ}


def _unheard(future: asyncio.Future[Any]) -> None:
    """What becomes of a call to an actor that is given up is no one's matter."""
    if not future.cancelled():
        future.exception()


def _told(error: Exception) -> str:
    """What Ray says, without ids and advice: why the actor is dead, or what its own code raised."""
    said = str(getattr(error, "cause", None) or error)
    _, found, why = said.partition("The actor is dead because ")
    return f"{found}{why}"[:400] if found else said.strip()[-800:]


def _unreachable(scope: Scope) -> ConfigError:
    return ConfigError(
        f"the gateway is at {scope.gateway_url!r}, and the actor on another machine, which can't reach it: "
        "give the gateway an address that the cluster's nodes can reach"
    )
