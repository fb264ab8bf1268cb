"""Work that an app starts inside a rollout belongs to it: programs, processes and pools of either kind."""

from __future__ import annotations

import asyncio
import atexit
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import httpx
import pytest
import uvloop
from openai import OpenAI

import lightning_core as lightning
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Status
from lightning_core.runner.tagging import tagging
from lightning_core.testing.server import GatewayDouble, serving
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import Scope, agent, rollout_scope
from tests.gateway.conftest import open_house
from tests.runner.served import rollouts, serve_runner

ASKING = """
import sys
from openai import OpenAI
with OpenAI(**eval(sys.argv[2])) as client:
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": sys.argv[1]}])
"""
PRINTING = "import json, os; print(json.dumps(dict(os.environ)))"
EARLY = ThreadPool(2)
"""As an app has it at import: its threads have the context of no rollout."""
atexit.register(EARLY.terminate)


@pytest.fixture(autouse=True)
def tagged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with tagging(load_plugins()):
        yield


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    with serving() as server:
        yield server


@pytest.fixture
def hosted() -> Iterator[GatewayDouble]:
    with serving() as server:
        yield server


def ask(rollout: str, url: str | None = None) -> str:
    """One call of whoever is calling, in whatever process; the id of its reply."""
    with OpenAI(api_key="sk-mine", base_url=url) as client:
        said = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": mark(rollout=rollout, agent="writer")}]
        )
    return said.id


def ask_and_reward(rollout: str, url: str) -> str:
    lightning.reward(0.5)
    return ask(rollout, url)


def reward_and_fail(rollout: str, url: str) -> None:
    ask_and_reward(rollout, url)
    raise ValueError("after the call")


def give(value: float) -> None:
    lightning.reward(value, agent="writer", reason="in a process")


def give_in_processes(method: str) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        pool.map(give, [0.25, 0.5])
    process = context.Process(target=give, args=(0.75,))  # type: ignore[attr-defined]
    process.start()
    process.join()


def scope_at(server: GatewayDouble, rollout: str = "r1", *agents: str) -> Scope:
    return Scope(rollout, 1, server.url, f"token-{rollout}", agents or None)


def arrived(server: GatewayDouble) -> list[tuple[str, str]]:
    """(rollout, agent) of what came: in headers or, from a program, in the address."""
    found = []
    for seen in server.seen:
        parts = seen.path.split("/")
        in_path = (parts[2], parts[4]) if parts[1] == "rollouts" else ("", "")
        headers = seen.headers
        found.append(
            (headers.get("x-lightning-rollout", in_path[0]), headers.get("x-lightning-agent", in_path[1]))
        )
    return sorted(found)


def start(rollout: str, given: dict[str, Any], **options: Any) -> None:
    said = mark(rollout=rollout, agent="writer")
    subprocess.run([sys.executable, "-c", ASKING, said, repr(given)], check=True, **options)


# programs -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "env", [None, {**os.environ, "OWN": "1", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}]
)
def test_a_program_of_a_trained_agent_calls_the_gateway(
    env: dict[str, str] | None, gateway: GatewayDouble
) -> None:
    with rollout_scope(scope_at(gateway)), agent("writer"):
        start("r1", {}, env=env)
    assert arrived(gateway) == [("r1", "writer")]


@pytest.mark.parametrize("run_in", [asyncio.run, uvloop.run])
def test_an_asynchronously_started_program_does_so_too(
    run_in: Callable[[Any], None], gateway: GatewayDouble
) -> None:
    async def run() -> None:
        with rollout_scope(scope_at(gateway)), agent("writer"):
            program = (sys.executable, "-c", ASKING, mark(rollout="r1", agent="writer"), "{}")
            assert await (await asyncio.create_subprocess_exec(*program)).wait() == 0

    run_in(run())
    assert arrived(gateway) == [("r1", "writer")]


async def test_a_call_that_no_store_keeps_fails_its_rollout_and_no_other(hosted: GatewayDouble) -> None:
    async def solve(task: lightning.Task) -> float:
        key = {"Idempotency-Key": "k" * (600 if task.input["i"] == 0 else 60)}
        body: Any = {"model": "m", "messages": [{"role": "user", "content": mark(agent="checker")}]}
        with agent("checker"):
            async with httpx.AsyncClient() as client:
                await client.post(f"{hosted.url}/v1/chat/completions", json=body, headers=key)
        return 0.75

    async with serve_runner(None, solve) as served:
        refused, done = sorted(
            await served.play(rollouts("any", 2)), key=lambda one: str(one.task.input["i"])
        )
    assert (refused.status, done.status) == (Status.FAILED, Status.SUCCEEDED)
    assert "has 600 characters" in str(refused.error)


def test_a_program_is_told_of_rewards_by_the_app_alone_and_a_bare_one_of_nothing(
    gateway: GatewayDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(env: dict[str, str] | None) -> dict[str, str]:
        printed = subprocess.check_output([sys.executable, "-c", PRINTING], env=env, text=True)
        return {name: value for name, value in json.loads(printed).items() if name in lightning.environment()}

    earlier = {**os.environ}
    monkeypatch.setenv("OWN", "1")
    with rollout_scope(scope_at(gateway)), agent("writer"):
        ours = lightning.environment()
        untold = {name: value for name, value in ours.items() if name != "LIGHTNING_REWARD_URL"}
        assert told(None) == told(earlier) == untold
        assert told({"OPENAI_API_KEY": "sk-mine"}) == untold
        assert told({**os.environ, **ours}) == ours
        assert told({}) == told({"HOME": "/", "PATH": os.environ["PATH"]}) == {}


def test_a_program_of_another_agent_keeps_its_endpoint_and_is_served_if_it_has_none(
    gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    scope = scope_at(gateway, "r1", "writer")
    with rollout_scope(scope), agent("checker"):
        start(
            "r1", {}, env={**os.environ, "OPENAI_BASE_URL": f"{hosted.url}/v1", "OPENAI_API_KEY": "sk-mine"}
        )
        assert arrived(gateway) == []
        assert len(hosted.seen) == 1
        start("r1", {})
    assert arrived(gateway) == [("r1", "checker")]


def test_the_environment_is_left_alone_where_that_is_asked_for_and_outside_a_rollout(
    gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    named = {"api_key": "sk-mine", "base_url": f"{hosted.url}/v1"}
    own = {**os.environ, "OPENAI_API_KEY": "sk-mine", "OPENAI_BASE_URL": f"{hosted.url}/v1"}
    with rollout_scope(scope_at(gateway)), agent("writer"):
        start("r1", named, env={**own, "LIGHTNING_ENVIRONMENT": "off"})
        start("r1", {}, env={**os.environ, **lightning.environment(agent="reader")})
    start("r1", {}, env=own)
    assert arrived(gateway) == [("r1", "reader")]
    assert len(hosted.seen) == 2


# functions in other processes ---------------------------------------------------------------
METHODS = ("spawn", "fork")


@pytest.mark.parametrize("method", METHODS)
def test_the_jobs_of_a_process_pool_belong_to_the_rollout_that_submits_them(
    method: str, gateway: GatewayDouble
) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        for rollout in ("r1", "r2"):
            with rollout_scope(scope_at(gateway, rollout)), agent("writer"):
                assert pool.submit(ask, rollout).result()
                assert list(pool.map(ask, [rollout, rollout]))
    assert arrived(gateway) == [*[("r1", "writer")] * 3, *[("r2", "writer")] * 3]
    assert {seen.tagged().rollout == seen.tagged().marks["rollout"] for seen in gateway.seen} == {True}


def test_what_is_noticed_in_a_process_pool_comes_back(gateway: GatewayDouble, hosted: GatewayDouble) -> None:
    scope = scope_at(gateway, "r1", "writer")
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawning) as pool, rollout_scope(scope), agent("checker"):
        said = pool.submit(ask_and_reward, "r1", f"{hosted.url}/v1").result()
    [call], _ = scope.noticed()
    assert (call.agent, call.response_id, call.endpoint) == ("checker", said, f"{hosted.url}/v1")
    assert [reward.value for reward in scope.rewards] == [0.5]


def test_what_was_noticed_before_an_error_in_a_process_pool_comes_back_too(
    gateway: GatewayDouble, hosted: GatewayDouble
) -> None:
    scope = scope_at(gateway, "r1", "writer")
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawning) as pool:
        with rollout_scope(scope), agent("checker"):
            failing = pool.submit(reward_and_fail, "r1", f"{hosted.url}/v1")
        error = failing.exception()
    assert isinstance(error, ValueError)
    assert "reward_and_fail" in str(error.__cause__)  # the traceback of that process
    assert [call.agent for call in scope.noticed()[0]] == ["checker"]
    assert [reward.value for reward in scope.rewards] == [0.5]


@pytest.mark.parametrize("method", METHODS)
async def test_rewards_given_in_processes_of_multiprocessing_are_stored(method: str) -> None:
    async with open_house() as house:
        scope = Scope("r1", 1, house.url, await house.rollout("r1"))
        with rollout_scope(scope):
            await asyncio.to_thread(give_in_processes, method)
        rewards = (await house.store.get_rewards(["r1"]))["r1"]
    assert [(one.value, one.agent, one.reason) for one in rewards] == [
        (value, "writer", "in a process") for value in (0.25, 0.5, 0.75)
    ]
    assert scope.rewards == []


def test_an_error_and_a_cancellation_in_a_process_pool_reach_the_app(gateway: GatewayDouble) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with rollout_scope(scope_at(gateway)):
            with pytest.raises(ZeroDivisionError):
                pool.submit(divmod, 1, 0).result()
            waiting = [pool.submit(ask, "r1") for _ in range(6)]
            assert waiting[-1].cancel()
            assert all(one.result() for one in waiting[:-1])
        assert waiting[-1].cancelled()
        assert pool.submit(divmod, 7, 2).result() == (3, 1)
    assert len(gateway.seen) == 5


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_and_a_process_of_multiprocessing_do_so_too(method: str, gateway: GatewayDouble) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        for rollout in ("r1", "r2"):
            with rollout_scope(scope_at(gateway, rollout)), agent("writer"):
                pool.map(ask, [rollout, rollout])
                pool.apply(ask, (rollout,))
                process = context.Process(target=ask, args=(rollout,))  # type: ignore[attr-defined]
                process.start()
                process.join()
                assert process.exitcode == 0
    assert arrived(gateway) == [*[("r1", "writer")] * 4, *[("r2", "writer")] * 4]


@pytest.mark.parametrize(
    "run",
    [
        lambda pool, work, name: pool.apply(work, (name,)),
        lambda pool, work, name: pool.map(work, [name]),
        lambda pool, work, name: pool.starmap(work, [(name,)]),
        lambda pool, work, name: list(pool.imap(work, [name])),
        lambda pool, work, name: list(pool.imap_unordered(work, [name])),
        lambda pool, work, name: pool.map_async(work, [name]).get(),
    ],
)
def test_a_thread_pool_from_import_time_works_for_the_rollout_that_asks(
    run: Callable[..., Any], gateway: GatewayDouble
) -> None:
    for rollout in ("r1", "r2"):
        with rollout_scope(scope_at(gateway, rollout)), agent("writer"):
            run(EARLY, ask, rollout)
    assert arrived(gateway) == [("r1", "writer"), ("r2", "writer")]


def test_everything_is_restored_when_tagging_ends() -> None:
    with tagging(load_plugins()):
        pass
    # the fixture's own is still there; a second one has left
    assert subprocess.Popen.__init__._lightning_users != []  # type: ignore[attr-defined]
    assert len(subprocess.Popen.__init__._lightning_users) == 1  # type: ignore[attr-defined]
