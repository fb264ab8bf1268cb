"""The one way in which the runner has an attempt run: an `Executor`, and the `Crew` it makes for a function.

The runner leases, counts the seconds and records. *Where* the user's function runs, on this loop, in another
process or on another machine, and how it is really ended there, is the executor's matter alone. The two meet
in the attempt's `Scope`: what was noticed of the attempt, wherever that was, is in the runner's scope when
`Crew.run` ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from lightning_core.errors import ConfigError
from lightning_core.plugins import Plugins
from lightning_core.tracing.scope import Scope
from lightning_core.types import Call, Event, Reward, Task

Solve = Callable[[Task], Any]
"""Runs the app once on a task and returns (or is awaited for) the reward."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    reward: float | None = None
    """What the function returned; None if it returned None, or failed."""
    error: str | None = None
    """Why it failed, as it is stored; None if it did not."""
    left_behind: bool = False
    """Whether it still runs somewhere, where nobody listens any more."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """What a scope holds, on its way from where it was noticed to the runner."""

    calls: tuple[Call, ...] = ()
    events: tuple[Event, ...] = ()
    rewards: tuple[Reward, ...] = ()

    @classmethod
    def of(cls, scope: Scope) -> Noticed:
        """All that was noticed until now; may be asked from any thread."""
        calls, events = scope.noticed()
        return cls(tuple(calls), tuple(events), tuple(scope.rewards))

    def put_into(self, scope: Scope) -> None:
        """Hand it to the runner's own scope."""
        scope.seen.extend([*self.calls, *self.events])
        scope.rewards.extend(self.rewards)


class Crew(Protocol):
    """An executor at work on one function. Entered, it is ready to run attempts; left, it runs none."""

    @property
    def slots(self) -> int | None:
        """How many attempts it runs at once; None for any number."""

    async def __aenter__(self) -> Crew: ...
    async def __aexit__(self, *exc: object) -> None: ...

    async def run(self, scope: Scope, task: Task, begun: Callable[[], None]) -> Outcome:
        """Run one attempt, in `scope`.

        `begun` is called once, when the function is about to run: until then the attempt may have waited for
        a process. Whatever becomes of the function, or of the process that it runs in, is an outcome; what is
        raised says that no attempt can be run.
        Cancelling ends the attempt, and raises CancelledError when nothing of it runs any more; where it
        can't be ended, an outcome that says `left_behind` is returned instead. In each case `scope` then
        holds what was noticed.
        """


@runtime_checkable
class Executor(Protocol):
    """Where rollouts run, with its options; one object may serve several functions."""

    def crew(self, solve: Solve, concurrency: int) -> Crew:
        """What runs `solve`, up to `concurrency` times at once. Raises ConfigError if that can't be done."""


def make_executor(executor: str | Executor, plugins: Plugins) -> Executor:
    """The executor given, or the one registered under a name, with its defaults."""
    if isinstance(executor, str):
        made: Executor = plugins.part("executor", executor)()
        return made
    if isinstance(executor, type) or not isinstance(executor, Executor):
        raise ConfigError(
            f"executor={executor!r} is no executor: give a name ({', '.join(plugins.names('executor'))}) "
            "or an object such as Processes(workers=4)"
        )
    return executor
