"""Waiting for rollouts that other processes run, and telling a person what to start when none is there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lightning_core.heartbeat import living
from lightning_core.masking import without_password
from lightning_core.stores.base import Store
from lightning_core.types import Role, Rollout

LOOK_SECONDS = 5.0
"""Between two looks at who is there; the end of the last rollout is heard of at once."""
NAMES: Final[dict[Role, str]] = {"runner": "worker", "gateway": "gateway"}
COMMANDS: Final[dict[Role, str]] = {
    "runner": "agentlightning worker {script} --store {store}",
    "gateway": "agentlightning gateway --store {store}",
}


class RemoteWaiter:
    """Waits for what other processes do in a run."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        roles: Iterable[Role],
        store_url: str,
        *,
        on_rollout: Callable[[Rollout], None],
        on_note: Callable[[str], None],
    ) -> None:
        """`store_url` is how others find the store; `on_note` is given what a person should know."""
        self._store = store
        self._run_id = run_id
        self._there: dict[Role, int] = dict.fromkeys(sorted(roles), -1)
        self._store_url = store_url
        self._on_rollout = on_rollout
        self._on_note = on_note

    async def wait(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """Return the rollouts once all are finished; `on_rollout` is given each soon after it ended."""
        told: set[str] = set()
        while True:
            finished = await self._store.wait_finished(rollout_ids, timeout=LOOK_SECONDS)
            for rollout in finished:
                if rollout.id not in told:
                    told.add(rollout.id)
                    self._on_rollout(rollout)
            if len(told) == len(set(rollout_ids)):
                return finished
            await self.look()

    async def look(self) -> None:
        """Note which roles no process plays, and how many have come or gone."""
        members = living(await self._store.list_members(self._run_id))
        for role, before in self._there.items():
            count = sum(member.role == role for member in members)
            if count != before:
                self._there[role] = count
                self._on_note(self._note(role, count, before))

    def _note(self, role: Role, count: int, before: int) -> str:
        if count:
            return f"{count} {NAMES[role]}{'s' if count > 1 else ''} at work"
        gone = f"no {NAMES[role]} is left" if before > 0 else f"waiting for a {NAMES[role]}"
        return f"{gone}; start one with: {command_for(role, self._store_url)}"


def command_for(role: Role, store: str) -> str:
    """What starts a process for the role, as a line for a shell; without the store's password."""
    script, shown = sys.argv[0] or "SCRIPT", without_password(store)
    return COMMANDS[role].format(script=shlex.quote(script), store=shlex.quote(shown))
