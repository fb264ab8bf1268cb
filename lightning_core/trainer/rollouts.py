"""Makes the rollouts of a plan: plays the roles of gateway and runner, or waits for those who do.

The roles share nothing but the store and the gateway's URL: here, or each on a machine of its own. What
other processes play is waited for here (`RemoteWaiter`).
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import urlsplit

from lightning_core.errors import GatewayError, TrainingError
from lightning_core.experience.transitions import is_planned
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.policies import PolicyRouter
from lightning_core.gateway.server import GatewayServer
from lightning_core.prompts import read_declared
from lightning_core.records.types import Role, Rollout, Run, Status
from lightning_core.runner.tagging import tagging
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import Heartbeat, living, make_member
from lightning_core.texts.masking import without_password
from lightning_core.trainer.plan import RolloutPlan, admitted
from lightning_core.trainer.roles.gateway import EVERY_ADDRESS, make_gateway, make_upstream, public_address
from lightning_core.trainer.roles.runner import rollout_config, running
from lightning_core.trainer.session import Session

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Between two looks at who is there; the end of the last rollout is heard of at once."""
NAMES: Final[dict[Role, str]] = {"runner": "worker", "gateway": "gateway"}
COMMANDS: Final[dict[Role, str]] = {
    "runner": "agentlightning worker {script} --store {store}",
    "gateway": "agentlightning gateway --store {store}",
}


class RolloutMaker:
    """`async with RolloutMaker(session) as maker`, then `begin`: from there on `run` makes rollouts."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.settings = session.settings
        self.folder = session.folder
        self.store = session.store
        self._stack = AsyncExitStack()
        self._serving: asyncio.Task[None] | None = None
        """The runner, if it is here."""
        self._waiter: RemoteWaiter | None = None
        """If other processes play a role."""

    async def __aenter__(self) -> RolloutMaker:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def begin(self, run: Run) -> None:
        """Play this process's roles in the run, which is in the store by now: from here on, enqueued rollouts
        are run and recorded."""
        store, here = self.store, {"gateway", "runner"} - self.settings.remote_roles
        await self.session.pin_prompts(read_declared(run))
        embedded = f"{run.id}/embedded"
        await store.reclaim(embedded)
        await self._withdraw(run)
        await store.remove_member(run.id, "gateway", "trainer")  # of a trainer that was killed
        await store.remove_member(run.id, "runner", embedded)
        await self.session.join(run.id)
        url = await self._serve_policy(run) if "gateway" in here else None
        if "runner" in here:
            await self._run_rollouts(run, embedded, url)
        if self.settings.remote_roles:
            await self._wait_for_others(run)

    async def _withdraw(self, run: Run) -> None:
        """Take back rollouts that a run with so many updates as the newest checkpoint has may not ask for."""
        checkpoint, total = self.folder.latest_checkpoint(), self.settings.total_steps
        made = checkpoint[0] if checkpoint else 0
        if made in self.settings.searches:  # its trials are asked for again, under the same ids
            await withdraw(self.store, run.id, made, made)
            return
        first = admitted(made, self.session.phase(made), total).stop if made < total else made
        await withdraw(self.store, run.id, first, made)

    async def _serve_policy(self, run: Run) -> str:
        """Serve the backend's policy, and list the gateway among the run's members; gives its URL for this
        machine."""
        stack, folder = self._stack, self.folder
        upstreams = [
            make_upstream(
                *(self.store, run.id, each.backend),
                name=each.backend.upstream.model_name,
                embedded=True,
                policy=each.policy,
            )
            for each in self.session.learners
        ]
        for each in upstreams:
            stack.push_async_callback(each.close)
        own, *further = upstreams
        named = dict(zip((each.name for each in self.settings.named_policies), further, strict=True))
        gateway = make_gateway(self.store, run, PolicyRouter(own, named) if named else own)
        server = await self._listen(gateway)
        place = urlsplit(server.url)
        folder.write_address((folder.read_address() or {}).get("store"), place.port)
        url = public_address(server.url, self.settings.address)
        member = make_member(run.id, "gateway", "trainer", url=url, instance=gateway.instance)
        await stack.enter_async_context(Heartbeat(self.store, member))
        return f"http://127.0.0.1:{place.port}" if place.hostname in EVERY_ADDRESS else server.url

    async def _listen(self, gateway: Gateway) -> GatewayServer:
        """At the port that is asked for. Otherwise a resumed run listens where it did before, if that is
        free."""
        host, port = self.settings.host, self.settings.port
        kept = (self.folder.read_address() or {}).get("port")
        if port is None and kept is not None:
            try:
                return await self._stack.enter_async_context(GatewayServer(gateway, host, kept))
            except GatewayError as error:
                log.warning("%s: it is given a new port", error)
        return await self._stack.enter_async_context(GatewayServer(gateway, host, port or 0))

    async def _run_rollouts(self, run: Run, worker: str, gateway_url: str | None) -> None:
        """Run rollouts in this process, under this worker's name."""
        settings = self.settings
        self._stack.enter_context(tagging(self.session.plugins))
        self._serving = await self._stack.enter_async_context(
            running(
                self.session.solve,
                self.store,
                run,
                rollout_config(settings, self.session.solve),
                worker=worker,
                concurrency=settings.concurrency,
                workers=settings.workers,
                gateway_url=gateway_url,
                on_finished=self.session.observers.rollout_ended,
            )
        )

    async def _wait_for_others(self, run: Run) -> None:
        """Tell who is missing, now and while rollouts are waited for."""
        self._waiter = RemoteWaiter(
            self.store,
            run.id,
            self.settings.remote_roles,
            self.session.store_url,
            on_rollout=self.session.observers.rollout_ended
            if self._serving is None
            else lambda rollout: None,
            on_note=self.session.observers.note,
        )
        await self._waiter.look()

    def pin(self, staleness: int = 0) -> int | None:
        """The version of the weights that must answer the rollouts asked for now.

        None where that is the current one in any case (the gateway in this process follows each update) or
        where older weights may answer. A remote gateway hears of new weights a moment late.
        """
        remote = "gateway" in self.settings.remote_roles
        return self.session.backend.policy_version if remote and not staleness else None

    def plan(self, step: int, retry: int = 0, staleness: int = 0) -> RolloutPlan:
        """Returns the common fields of the rollouts that a step asks for now."""
        return RolloutPlan(
            self.folder.run_id,
            step,
            self.settings.on_failure.max_attempts,
            version=self.pin(staleness),
            prompts=self.session.prompt_versions,
            retry=retry,
            seed=self.settings.seed,
            constrain=self.settings.constrain,
        )

    async def run(self, rollouts: Sequence[Rollout]) -> tuple[list[Rollout], bool]:
        """Enqueue the rollouts and wait until all are finished; says too whether any of them was new.

        Those already known are left as they are.
        """
        new = await self.store.enqueue(rollouts)
        if new < len(rollouts):
            await self._check_known(rollouts)
        waiting = asyncio.create_task(self._wait([rollout.id for rollout in rollouts]))
        serving = {self._serving} if self._serving is not None else set()
        try:
            await asyncio.wait({waiting, *serving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and self._serving is not None:
                await self._serving
                raise TrainingError("the runner stopped before the rollouts were finished")
            return await waiting, new > 0
        finally:
            waiting.cancel()

    async def _check_known(self, asked: Sequence[Rollout]) -> None:
        """Raise TrainingError if one of the ids stands for something else, which somebody else enqueued."""
        known = await self.store.get_rollouts([rollout.id for rollout in asked])
        for mine, stored in zip(asked, known, strict=True):
            if (stored.run_id, stored.step, stored.task) != (mine.run_id, mine.step, mine.task):
                raise TrainingError(
                    f"rollout {mine.id!r} of run {mine.run_id!r} is in the store already, for another task "
                    f"or run ({stored.run_id!r}, step {stored.step_number}); give this one another folder "
                    "name"
                )

    async def _wait(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        if self._waiter is not None:
            return await self._waiter.wait(rollout_ids)
        return await self.store.wait_finished(rollout_ids)


async def withdraw(store: Store, run_id: str, first: int, made: int) -> int:
    """Cancel the unfinished training rollouts of steps `first` and later, and the unfinished evaluations of
    what is not among the `made` updates; returns how many. Rollouts that others enqueued are left.

    A run that goes on from a checkpoint before those rollouts were admitted would sample them with weights
    older than the bound allows, or evaluate weights that are not made again yet. They are planned again when
    their step is collected, or evaluated.
    """
    unfinished = [
        rollout
        for status in (Status.QUEUED, Status.RUNNING)
        for rollout in await store.find_rollouts(run_id, status=status)
        if is_planned(rollout)
        and (rollout.step >= first if rollout.split == "train" else rollout.step > made)
    ]
    return await store.cancel([rollout.id for rollout in unfinished])


# roles that other processes play ------------------------------------------------------------
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
    """Returns the shell command that starts a process for the role, without the store's password."""
    script, shown = sys.argv[0] or "SCRIPT", without_password(store)
    return COMMANDS[role].format(script=shlex.quote(script), store=shlex.quote(shown))
