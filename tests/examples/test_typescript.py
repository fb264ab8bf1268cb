"""The worker in TypeScript: compiled by the real compiler, run by the real node, against real servers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lightning_core.experience.transitions import to_trajectory
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Member, Rollout, Status, Task
from lightning_core.stores.sqlite import SqliteStore
from tests.api import conftest as api
from tests.api.conftest import RUN, open_desk, serving
from tests.gateway.scripted import ScriptedEngine, until

free_port = api.free_port
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "examples/typescript"
TOOLS = ROOT / ".data/typescript"
MISSING = [name for name in ("node", "npm") if shutil.which(name) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} is not installed here")


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled worker. The compiler is installed once, into a folder that git ignores."""
    compiler = TOOLS / "node_modules/typescript/bin/tsc"
    pinned = (SOURCE / "package.json").read_text()
    if not compiler.exists() or (TOOLS / "package.json").read_text() != pinned:
        TOOLS.mkdir(parents=True, exist_ok=True)
        (TOOLS / "package.json").write_text(pinned)
        run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", cwd=TOOLS)
    built = tmp_path_factory.mktemp("typescript")
    shutil.copy(SOURCE / "package.json", built)
    run("node", str(compiler), "--project", str(SOURCE), "--outDir", str(built), cwd=ROOT)
    return built / "worker.js"


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_short_and_needs_nothing_but_the_compiler() -> None:
    lines = [line for line in (SOURCE / "worker.ts").read_text().splitlines() if line.strip()]
    assert len(lines) <= 64
    assert not [line for line in lines if line.startswith("import")]


async def test_it_leases_runs_rewards_and_finishes(worker: Path, tmp_path: Path) -> None:
    async with SqliteStore(f"sqlite:///{tmp_path}/runs.db") as store, open_desk(store) as desk:
        gateway = Gateway(ScriptedEngine(), store, Tokens(bytes.fromhex(RUN.secret)), agents=None)
        async with GatewayServer(gateway) as server:
            member = Member(
                run_id="run", role="gateway", name="g", url=server.url, data={"instance": gateway.instance}
            )
            await store.put_member(member)
            ids = [f"r{place}" for place in range(9)]
            await store.enqueue([rollout(name, right=place % 3 > 0) for place, name in enumerate(ids)])
            environment = {
                **os.environ,
                "LIGHTNING_API_URL": f"{desk.url}/api/v1",
                "LIGHTNING_API_TOKEN": desk.tokens["worker"],
            }
            child = await asyncio.create_subprocess_exec(
                "node",
                str(worker),
                env=environment,
                stdout=asyncio.subprocess.PIPE,
                stderr=sys.stderr.fileno(),
            )
            try:
                finished = await store.wait_finished(ids, timeout=60)
            finally:
                child.send_signal(signal.SIGTERM)
                said, _ = await child.communicate()
        calls, rewards = await store.get_calls(ids), await store.get_rewards(ids)
    assert child.returncode == 0
    assert sorted(said.decode().split()) == sorted([*(f"{name}:" for name in ids), *["done"] * 9])
    assert [(one.status, one.reward) for one in finished] == [
        (Status.SUCCEEDED, float(place % 3 > 0)) for place in range(9)
    ]
    for one in finished:
        [call] = calls[one.id]
        [transition] = to_trajectory(one, calls[one.id], rewards[one.id]).transitions
        assert (call.agent, call.trained, list(transition.completion_ids)) == (
            "answerer",
            True,
            call.choices[0].completion_ids,
        )


async def test_it_tells_its_result_though_the_api_was_restarted(
    worker: Path, tmp_path: Path, free_port: int
) -> None:
    engine = ScriptedEngine(held=threading.Event())
    assert engine.held is not None
    async with SqliteStore(f"sqlite:///{tmp_path}/runs.db") as store, serving(store, engine=engine):
        await store.enqueue([rollout("r", right=True)])
        async with open_desk(store, port=free_port) as desk:
            environment = {
                **os.environ,
                "LIGHTNING_API_URL": f"{desk.url}/api/v1",
                "LIGHTNING_API_TOKEN": desk.tokens["worker"],
            }
            child = await asyncio.create_subprocess_exec("node", str(worker), env=environment)
            await until(lambda: bool(engine.requests), 30)
        engine.held.set()
        try:
            for _ in range(600):
                if (await store.get_rewards(["r"]))["r"]:
                    break
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)  # it is told that nobody listens; when it is not yet, the test is easier
            async with open_desk(store, port=free_port):
                [finished] = await store.wait_finished(["r"], timeout=30)
        finally:
            child.send_signal(signal.SIGTERM)
            await child.wait()
    assert (child.returncode, finished.reward, finished.attempts) == (0, 1.0, 1)


async def test_it_ends_with_the_reason_when_its_token_is_not_taken(worker: Path, tmp_path: Path) -> None:
    async with SqliteStore(f"sqlite:///{tmp_path}/runs.db") as store, open_desk(store) as desk:
        environment = {
            **os.environ,
            "LIGHTNING_API_URL": f"{desk.url}/api/v1",
            "LIGHTNING_API_TOKEN": desk.tokens["client"],
        }
        child = await asyncio.create_subprocess_exec(
            "node", str(worker), env=environment, stderr=asyncio.subprocess.PIPE
        )
        _, said = await child.communicate()
    assert child.returncode == 1
    assert "the token's scope is 'client'" in said.decode()


def rollout(name: str, *, right: bool) -> Rollout:
    """One whose answer the engine, which repeats what it is asked, gives; or does not."""
    task = Task(input={"question": f"say {name}", "answer": name if right else "something else"})
    return Rollout(id=name, run_id="run", task=task, group_id="g", step=0)
