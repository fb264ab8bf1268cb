"""The inside of an actor of Ray: what `worker` is for a process of this machine.

It is in a module of its own, without Ray, because the cluster's workers import it by name.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from lightning_core.plugins import load_plugins
from lightning_core.runner import wire
from lightning_core.runner.executor import Noticed
from lightning_core.runner.in_process import InProcess
from lightning_core.runner.warden import adopt_orphans, descendants
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope

ROUNDS = 20
"""Of killing what the actor has started, which may start more meanwhile."""


class RolloutActor:
    """Runs one attempt at a time on the actor's loop, and is spoken to on another."""

    def __init__(
        self, solve: bytes, path: Sequence[str], folder: str, variables: Mapping[str, str] | None = None
    ) -> None:
        """`path` and `folder`: the driver's, as far as they are here as well. `variables`: for the
        environment, where it has none of that name."""
        for name, value in (variables or {}).items():
            os.environ.setdefault(name, value)
        sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
        with suppress(OSError):
            os.chdir(folder)
        adopt_orphans()
        self._crew = InProcess().crew(pickle.loads(solve), 1)
        self._tagging = instrument(load_plugins().who)
        self._scope: Scope | None = None

    async def run(self, message: wire.Run) -> wire.Done:
        """One attempt, to its end."""
        scope = self._scope = message.scope()
        outcome = await self._crew.run(scope, message.task, lambda: None)
        self._scope = None
        return wire.Done(outcome, Noticed.of(scope))

    async def node(self) -> str:
        """The node it runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    async def leave(self) -> Noticed:
        """Kill what the attempt has started, before the actor itself is killed; what was noticed of it."""
        noticed = Noticed.of(self._scope) if self._scope is not None else Noticed()
        for _ in range(ROUNDS):
            found = descendants(os.getpid())
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            _bury(found)
            if not found:
                break
        return noticed


def _bury(pids: Sequence[int]) -> None:
    """Wait for those of them that are this process's own children."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
