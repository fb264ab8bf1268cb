"""Laws of the store over HTTP alone: its token, its address, and answers that are lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightning_core.api.app import LIMITS, Api
from lightning_core.errors import AccessError, ConfigError, NotFoundError, ScopeError, StoreError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Reward, Rollout, Run, Status, Task
from lightning_core.stores.base import Store
from lightning_core.stores.heartbeat import Heartbeat, make_member
from lightning_core.stores.http_link import TOKEN_NAME
from lightning_core.stores.http_store import HttpStore
from lightning_core.stores.sqlite import MemoryStore
from tests.gateway.scripted import ScriptedEngine
from tests.stores.conftest import SECRET, with_token
from tests.stores.cutting import relayed
from tests.stores.test_laws import LONG, call, names, rollout

ROOT = Path(__file__).parents[2]
RUN = Run(id="run", secret="ab" * 32)
OTHER = Run(id="other", secret="cd" * 32)


@pytest.fixture
async def behind() -> MemoryStore:
    """The store behind the API, with two runs."""
    store = MemoryStore()
    for run in (RUN, OTHER):
        await store.put_run(run)
    return store


@pytest.fixture
async def address(behind: MemoryStore) -> AsyncIterator[str]:
    """The URL of the API."""
    async with GatewayServer(Api(behind, secret=SECRET), limits=LIMITS) as server:
        yield server.url


def of_run(address: str) -> str:
    """The store's URL with an admin's token of RUN alone."""
    return with_token(address, "run", bytes.fromhex(RUN.secret))


async def test_a_token_of_one_run_opens_that_run_alone(behind: Store, address: str) -> None:
    await behind.enqueue([rollout("mine"), rollout("theirs", run_id="other")])
    async with HttpStore(of_run(address)) as store:
        assert await store.list_runs() == [RUN]
        assert await store.find_run("run") == RUN
        for refused in (
            store.find_run("other"),
            store.put_run(OTHER),
            store.find_rollouts("other"),
            store.enqueue([rollout("new", run_id="other")]),
            store.lease("w", 1, LONG, run_id="other"),
            store.get_rollouts(["mine", "theirs"]),
            store.get_calls(["mine", "unknown", "theirs"]),
            store.cancel(["theirs"]),
            store.reclaim("w", run_id="other"),
        ):
            with pytest.raises(ScopeError, match="'other'"):
                await refused
        assert names(await store.lease("w", 5, LONG)) == ["mine"]
    assert [one.status for one in await behind.get_rollouts(["theirs"])] == [Status.QUEUED]


async def test_a_worker_takes_back_what_it_held_of_its_own_run_alone(store: Store) -> None:
    """Checks every store: a law that the API needs."""
    await store.enqueue([rollout("mine"), rollout("theirs", run_id="other")])
    assert len(await store.lease("w", 2, LONG)) == 2
    assert await store.reclaim("w", run_id="run") == 1
    mine, theirs = await store.get_rollouts(["mine", "theirs"])
    assert (mine.status, theirs.status) == (Status.QUEUED, Status.RUNNING)


async def test_an_attempt_of_another_run_is_not_ended_by_its_name(behind: Store, address: str) -> None:
    await behind.enqueue([rollout("theirs", run_id="other")])
    (attempt,) = await behind.lease("w", 1, LONG)
    async with HttpStore(of_run(address)) as store:
        for refused in (
            store.finish(attempt, reward=1.0),
            store.release([attempt]),
            store.heartbeat([attempt], LONG),
            store.add_call(call("c", attempt)),
            store.add_rewards([Reward(rollout_id="theirs", attempt=1, value=1.0)]),
        ):
            with pytest.raises(ScopeError, match="'other'"):
                await refused
    (kept,) = await behind.get_rollouts(["theirs"])
    assert kept.status is Status.RUNNING


async def test_a_token_that_opens_nothing_is_an_access_error(address: str) -> None:
    for url in (with_token(address, "run", b"another run's secret"), address.replace("://", "://no-token@")):
        async with HttpStore(url) as store:
            with pytest.raises(AccessError, match="agentlightning token"):
                await store.list_runs()


async def test_the_token_comes_from_the_environment_or_the_address(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_NAME, raising=False)
    with pytest.raises(ConfigError, match=f"needs a token .* {TOKEN_NAME}"):
        HttpStore(address)
    with pytest.raises(ConfigError, match="is no address of an API"):
        HttpStore(of_run(address) + "?schema=x")
    monkeypatch.setenv(TOKEN_NAME, "la-forged.x")
    token = of_run(address)[8:].partition("@")[0]
    for url in (of_run(address), address.replace("://", f"://{token}@"), of_run(address) + "/api/v1/"):
        async with HttpStore(url) as store:
            assert await store.list_runs() == [RUN]
    monkeypatch.setenv(TOKEN_NAME, token)
    async with HttpStore(address) as store:
        assert await store.list_runs() == [RUN]


async def test_a_store_that_is_not_open_says_so(address: str) -> None:
    store = HttpStore(of_run(address))
    with pytest.raises(StoreError, match="is not open"):
        await store.list_runs()
    async with store:
        assert await store.list_runs() == [RUN]
    with pytest.raises(StoreError, match="is not open"):
        await store.list_runs()


async def test_what_may_be_done_twice_is_sent_again_when_its_answer_was_lost(
    behind: Store, address: str
) -> None:
    await behind.enqueue([rollout("a"), rollout("b")])
    with relayed(int(address.rpartition(":")[2])) as relay:
        async with HttpStore(of_run(f"http://127.0.0.1:{relay.port}")) as store:
            a, b = await store.lease("w", 2, LONG)
            done = Reward(rollout_id="a", attempt=1, value=0.5, id="own")
            for operation in (
                lambda: store.add_call(call("c", a)),
                lambda: store.add_rewards([done]),
                lambda: store.finish(a, reward=1.0),
                lambda: store.release([b]),
                lambda: store.enqueue([rollout("c")]),
                lambda: store.put_run(RUN),
            ):
                cuts = relay.cuts
                relay.cut_at_reply(1)
                await operation()
                assert relay.cuts == cuts + 1
    rewards = (await behind.get_rewards(["a"]))["a"]
    assert [one.value for one in rewards] == [0.5, 1.0]
    assert len((await behind.get_calls(["a"]))["a"]) == 1
    assert [one.status for one in await behind.find_rollouts("run")] == ["succeeded", "queued", "queued"]


async def test_what_may_not_be_done_twice_is_an_error_when_its_answer_was_lost(
    behind: Store, address: str
) -> None:
    await behind.enqueue([rollout("a"), rollout("b")])
    with relayed(int(address.rpartition(":")[2])) as relay:
        async with HttpStore(of_run(f"http://127.0.0.1:{relay.port}")) as store:
            await store.lease("w", 1, LONG)
            relay.cut_at_reply(1)
            with pytest.raises(StoreError, match="did not answer POST /api/v1/rewards"):
                await store.add_rewards([Reward(rollout_id="a", attempt=1, value=0.5)])
            relay.cut_at_reply(1)
            with pytest.raises(StoreError, match="did not answer POST /api/v1/leases"):
                await store.lease("w", 1, LONG)
    assert len((await behind.get_rewards(["a"]))["a"]) == 1


async def test_what_is_no_api_is_named() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 418 Teapot\r\ncontent-length: 3\r\nconnection: close\r\n\r\ntea")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, HttpStore(with_token(f"http://127.0.0.1:{port}")) as store:
        with pytest.raises(StoreError, match="status 418 by what is no API"):
            await store.list_runs()


async def test_lists_that_are_longer_than_a_page_come_whole(behind: Store, address: str) -> None:
    many = [rollout(f"{number:06} ünd a long name that fills the address") for number in range(10_500)]
    ids = [one.id for one in many]
    async with HttpStore(with_token(address)) as store:
        assert await store.enqueue(many) == len(many)
        assert names(await store.find_rollouts("run")) == ids
        assert names(await store.find_rollouts("run", limit=10_100)) == ids[:10_100]
        assert names(await store.find_rollouts("run", limit=10_100, newest=True)) == ids[-10_100:]
        assert names(await store.get_rollouts(ids)) == ids
        assert await store.get_calls([*ids[:2500], "nobody"]) == {
            name: [] for name in [*ids[:2500], "nobody"]
        }
        assert await store.cancel(ids) == len(ids)
        assert len(await store.wait_finished(ids)) == len(ids)
        with pytest.raises(NotFoundError, match="'nobody'"):
            await store.get_rollouts([*ids, "nobody"])


SCRIPT = """
import httpx, os
import lightning_core as lightning

def solve(task):
    given = lightning.environment("writer")
    chat = {"model": "any", "messages": [{"role": "user", "content": task.input["q"]}]}
    headers = {"authorization": "Bearer " + given["OPENAI_API_KEY"]}
    httpx.post(given["OPENAI_BASE_URL"] + "/chat/completions", json=chat, headers=headers).raise_for_status()
    return 0.5

lightning.Trainer(model="tiny").fit(solve, train=[{"q": "ping"}])
"""


async def test_a_worker_needs_a_url_and_a_token_of_its_run_and_nothing_else(
    behind: Store, address: str, tmp_path: Path
) -> None:
    rules: dict[str, Any] = {"solve": "solve", "timeout": 60.0, "on_failure": {}, "judged": False}
    run = RUN.model_copy(update={"config": {"rollouts": rules}})
    await behind.put_run(run)
    gateway = Gateway(ScriptedEngine(), behind, Tokens(bytes.fromhex(run.secret)), agents=None)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    task = Rollout(id="a", run_id="run", task=Task(input={"q": "ping"}), group_id="g", step=0)
    await behind.enqueue([task])
    async with GatewayServer(gateway) as server:
        member = make_member("run", "gateway", "g", url=server.url, instance=gateway.instance)
        async with Heartbeat(behind, member), Heartbeat(behind, make_member("run", "trainer", "t")):
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lightning_core.cli", "worker", str(script), "--store", address),
                env={"PYTHONPATH": str(ROOT), TOKEN_NAME: of_run(address)[8:].partition("@")[0]},
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            saying = asyncio.create_task(worker.communicate())
            finishing = asyncio.create_task(behind.wait_finished(["a"]))
            await asyncio.wait({saying, finishing}, timeout=100, return_when=asyncio.FIRST_COMPLETED)
            assert finishing.done(), saying.done() and saying.result()[0].decode()
            await behind.put_run(run.model_copy(update={"status": "finished"}))
            said = (await saying)[0].decode()
    (done,) = await behind.get_rollouts(["a"])
    assert (done.status, done.reward, worker.returncode) == (Status.SUCCEEDED, 0.5, 0), said
    assert len((await behind.get_calls(["a"]))["a"]) == 1
    assert [member.role for member in await behind.list_members("run")] == []
