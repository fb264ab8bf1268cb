"""Which run a worker joins, what it takes from the run's record, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.errors import ConfigError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Rollout, Run, Status, Task
from lightning_core.runner.config import RECORDED, RolloutConfig
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import Heartbeat, make_member
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.roles.joining import Joining
from lightning_core.trainer.roles.runner import tokens_of, work
from tests.build import agentlightning
from tests.gateway.scripted import ScriptedEngine


@dataclass
class Elsewhere:
    """The trainer's side, as a worker sees it."""

    url: str
    store: Store
    said: list[str] = field(default_factory=list)
    begun: asyncio.Queue[Task] = field(default_factory=asyncio.Queue)

    async def solve(self, task: Task) -> float:
        """The app."""
        await self.begun.put(task)
        if task.input.get("slow"):
            await asyncio.Event().wait()
        if task.input.get("broken"):
            raise RuntimeError("no luck")
        return 1.0

    async def open(
        self, run_id: str, *, function: str = "Elsewhere.solve", status: str = "running", **rules: Any
    ) -> Run:
        """Put a run whose rollouts run `function`."""
        given = {"timeout": 60.0, "on_failure": lightning.FailurePolicy(retries=0), "judged": False, **rules}
        config: dict[str, Any] = {"agents": ["writer"], RECORDED: RolloutConfig(function, **given).written()}
        run = Run(id=run_id, config=config, status=status, secret="ab" * 32)  # type: ignore[arg-type]
        await self.store.put_run(run)
        return run

    async def set(self, run: Run, status: str) -> None:
        await self.store.put_run(run.model_copy(update={"status": status}))

    async def ask(self, run: Run, **task: Any) -> str:
        """One more rollout of the run; its id."""
        number = len(await self.store.find_rollouts(run.id))
        rollout = Rollout(id=f"{run.id}-{number}", run_id=run.id, task=Task(input=task), group_id="g", step=0)
        await self.store.enqueue([rollout])
        return rollout.id

    @asynccontextmanager
    async def playing(self, run: Run) -> AsyncIterator[None]:
        """The run has a living trainer, and a gateway."""
        gateway = Gateway(ScriptedEngine(), self.store, tokens_of(run), agents=None)
        async with (
            GatewayServer(gateway) as server,
            Heartbeat(self.store, make_member(run.id, "trainer", "trainer")),
            Heartbeat(
                self.store,
                make_member(run.id, "gateway", "trainer", url=server.url, instance=gateway.instance),
            ),
        ):
            yield

    def work(self, **joining: Any) -> asyncio.Task[None]:
        """A worker of this process."""
        given: dict[str, Any] = {"store": self.url, "look_seconds": 0.05, "say": self.said.append, **joining}
        return asyncio.create_task(work(lightning.Trainer(timeout=0.001), Joining(**given), self.solve))


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[Elsewhere]:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with open_store(url, load_plugins()) as store:
        yield Elsewhere(url, store)


async def test_it_waits_for_a_run_of_its_function_whose_trainer_lives(elsewhere: Elsewhere) -> None:
    working = elsewhere.work()
    other = await elsewhere.open("other", function="another_function")
    dead = await elsewhere.open("dead")
    for run in (other, dead):
        await elsewhere.ask(run)
    async with elsewhere.playing(other):
        mine = await elsewhere.open("mine")
        asked = await elsewhere.ask(mine)
        async with elsewhere.playing(mine):
            (done,) = await elsewhere.store.wait_finished([asked])
            await elsewhere.set(mine, "finished")
            await working
    assert done.status is Status.SUCCEEDED
    for run in (other, dead):
        (rollout,) = await elsewhere.store.find_rollouts(run.id)
        assert rollout.status is Status.QUEUED


async def test_the_run_s_record_says_how_its_rollouts_are_run(elsewhere: Elsewhere) -> None:
    penalised = lightning.FailurePolicy(retries=0, then=-2.0)
    run = await elsewhere.open("run", on_failure=penalised)  # the worker's own trainer allows 1 ms
    asked = await elsewhere.ask(run, broken=True)
    async with elsewhere.playing(run):
        working = elsewhere.work()
        (done,) = await elsewhere.store.wait_finished([asked])
        await elsewhere.set(run, "finished")
        await working
    assert (done.status, done.reward) == (Status.FAILED, -2.0)
    assert "no luck" in (done.error or "")


async def test_while_the_run_is_stopped_it_gives_back_what_it_holds_and_waits(elsewhere: Elsewhere) -> None:
    run = await elsewhere.open("run")
    held = await elsewhere.ask(run, slow=True)
    async with elsewhere.playing(run):
        working = elsewhere.work(name="one")
        await elsewhere.begun.get()
        await elsewhere.set(run, "stopped")
        assert await elsewhere.store.wait_queued(60, run_id=run.id)
        await elsewhere.store.cancel([held])
        asked = await elsewhere.ask(run)
        await elsewhere.set(run, "running")
        (done,) = await elsewhere.store.wait_finished([asked])
        assert done.status is Status.SUCCEEDED
        await elsewhere.set(run, "finished")
        await working
    assert elsewhere.said[-1] == "worker one ends: run run is finished"
    assert await elsewhere.store.list_members(run.id) == []


async def test_it_takes_the_rules_of_a_run_that_is_resumed_with_others(elsewhere: Elsewhere) -> None:
    run = await elsewhere.open("run")
    asked = await elsewhere.ask(run)
    async with elsewhere.playing(run):
        said: asyncio.Queue[str] = asyncio.Queue()
        working = elsewhere.work(say=said.put_nowait)
        await elsewhere.store.wait_finished([asked])
        penalised = lightning.FailurePolicy(retries=0, then=-2.0)
        run = await elsewhere.open("run", on_failure=penalised)
        for _ in range(2):
            while "works for" not in await said.get():
                pass
        (done,) = await elsewhere.store.wait_finished([await elsewhere.ask(run, broken=True)])
        await elsewhere.set(run, "finished")
        await working
    assert (done.status, done.reward) == (Status.FAILED, -2.0)


async def test_a_run_whose_rules_can_not_be_read_is_passed_over(elsewhere: Elsewhere) -> None:
    mine = await elsewhere.open("mine")
    newer = Run(id="newer", config={RECORDED: {"hurry": True}}, secret="ab" * 32)
    await elsewhere.store.put_run(newer)
    asked = await elsewhere.ask(mine)
    async with elsewhere.playing(newer), elsewhere.playing(mine):
        working = elsewhere.work()
        waited = asyncio.create_task(elsewhere.store.wait_finished([asked]))
        await asyncio.wait({working, waited}, return_when=asyncio.FIRST_COMPLETED)
        assert waited.done(), working
        await elsewhere.set(mine, "finished")
        await working
    with pytest.raises(ConfigError, match="does not say in a readable way"):
        await elsewhere.work(run="newer")


async def test_it_gives_back_what_it_held_when_it_died(elsewhere: Elsewhere) -> None:
    run = await elsewhere.open("run")
    asked = await elsewhere.ask(run)
    await elsewhere.store.lease("one", 1, 600.0)
    async with elsewhere.playing(run):
        working = elsewhere.work(name="one")
        (done,) = await elsewhere.store.wait_finished([asked])
        await elsewhere.set(run, "finished")
        await working
    assert (done.status, done.attempts) == (Status.SUCCEEDED, 2)


async def test_a_run_of_another_function_is_refused_by_name(elsewhere: Elsewhere) -> None:
    await elsewhere.open("run", function="main.<locals>.other")
    with pytest.raises(ConfigError, match=r"main\.<locals>\.other.*'Elsewhere\.solve'"):
        await elsewhere.work(run="run")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"remote": "runner", "store": "memory://"}, "memory://"),
        ({"remote": ["runner", "judge"]}, "judge"),
        ({"address": "trainer.local:80"}, "trainer.local:80"),
        ({"remote": "gateway", "listen": "127.0.0.1:8000"}, "listen"),
        ({"remote": "gateway", "checkpoint_every": 2}, "checkpoint_every"),
    ],
)
def test_what_can_not_be_elsewhere_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        lightning.Trainer(**settings)


def test_a_script_that_never_fits_is_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "idle.py"
    script.write_text("")
    assert agentlightning("worker", script, "--store", "sqlite:///x.db") == 1
    said = "".join(capsys.readouterr().err.split())  # wrapped where the terminal ends
    assert "idle.py'endedandnevercalled" in said
