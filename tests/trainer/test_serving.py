"""A run is served without its trainer: what is current answers, what is recorded says so."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from lightning_core.backends.local import LocalBackend
from lightning_core.cli.models import export_model, roll_back
from lightning_core.errors import ConfigError, ModelError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, ResourceVersion, Rollout, Run, Sampling, Task
from lightning_core.runner.config import read_config
from lightning_core.stores.heartbeat import Heartbeat, make_member
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.trainer.roles.gateway import GatewayPart, serving_run
from lightning_core.trainer.roles.joining import Joined, Joining
from lightning_core.trainer.roles.runner import agents_of, running, tokens_of
from tests.backends.serving import plain_logprobs
from tests.trainer.versioned import TASKS, fit, solve

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two steps."""
    folder = tmp_path_factory.mktemp("served") / "run"
    fit(folder, steps=2, keep_checkpoints=2, backend=LocalBackend("tiny"))
    return folder


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


async def answered(folder: Path, name: str) -> list[Call]:
    """The calls of a real rollout, run by a real worker against a gateway that has no trainer."""
    plugins, rollout = load_plugins(), Rollout(
        id=name,
        run_id=folder.name,
        task=Task(input=TASKS[0]),
        group_id=name,
        step=99,
        sampling=Sampling(temperature=0.0),
    )  # fmt: skip
    async with SqliteStore(url_of(folder)) as store:
        run = await store.find_run(folder.name)
        assert run is not None
        rules = read_config(run)
        assert rules is not None
        async with serving_run(store, run, plugins) as upstream:
            gateway = Gateway(upstream, store, tokens_of(run), agents=agents_of(run))
            async with GatewayServer(gateway) as server:
                runner = running(solve, store, run, rules, worker="w", concurrency=1, gateway_url=server.url)
                with instrument(plugins.who):
                    async with runner:
                        await store.enqueue([rollout])
                        (done,) = await store.wait_finished([name])
                assert done.error is None
                return (await store.get_calls([name]))[name]


async def test_after_a_rollback_a_rollout_is_answered_by_the_old_version_and_recorded_so(
    finished: Path, tmp_path: Path
) -> None:
    (newest,) = await answered(finished, "before")
    assert newest.policy_version == 2
    for version in (1, 2, 0):
        await roll_back(str(finished), None, "policy", version)
        (call,) = await answered(finished, f"after-{version}")
        assert (call.policy_version, call.trained, call.status) == (version, True, "completed")
        await export_model(str(finished), None, "policy", version, tmp_path / str(version))
        network = AutoModelForCausalLM.from_pretrained(tmp_path / str(version), dtype=torch.float32)
        (choice,) = call.choices
        assert call.prompt_ids is not None
        assert choice.completion_ids is not None
        said = plain_logprobs(network, call.prompt_ids, choice.completion_ids)
        assert choice.logprobs == pytest.approx(said, abs=1e-4)


async def test_a_run_that_is_being_trained_is_not_rolled_back(finished: Path) -> None:
    async with (
        SqliteStore(url_of(finished)) as store,
        Heartbeat(store, make_member(finished.name, "trainer", "trainer")),
    ):
        with pytest.raises(ConfigError, match="is being trained"):
            await roll_back(str(finished), None, "policy", 1)


async def test_weights_that_this_machine_does_not_see_are_named_at_start(tmp_path: Path) -> None:
    async with SqliteStore(f"sqlite:///{tmp_path / 'store.db'}") as store:
        run = Run(id="run", config={"model": "tiny"}, secret="00" * 16)
        with pytest.raises(ConfigError, match="no weights yet"):
            async with serving_run(store, run, load_plugins()):
                pass
        await store.put_resource(ResourceVersion(run_id="run", version=1, uri="/far/away/step-000001"))
        with pytest.raises(
            ModelError, match=r"'/far/away/step-000001', which does not exist on this machine"
        ):
            async with serving_run(store, run, load_plugins()):
                pass


async def test_a_gateway_waits_for_its_run_says_where_it_is_and_ends_with_it(tmp_path: Path) -> None:
    said: list[str] = []
    async with SqliteStore(f"sqlite:///{tmp_path / 'store.db'}") as store:
        joining = Joining(store="", run="run", name="g", look_seconds=0.01, say=said.append)
        host = GatewayPart(joining, store, load_plugins())
        serving = asyncio.create_task(Joined(joining, store, host, asyncio.Event()).stay())
        await until(lambda: said)
        run = Run(id="run", config={"model": "tiny", "agents": ["writer"]}, secret="00" * 16)
        await store.put_run(run)
        await until(lambda: len(said) == 2)
        await store.put_resource(ResourceVersion(run_id="run", version=0, uri="tiny"))
        await until(lambda: len(said) == 3)
        (member,) = await store.list_members("run")
        assert (member.role, member.name) == ("gateway", "g")
        rollout = Rollout(id="r", run_id="run", task=Task(input={}), group_id="g", step=0)
        await store.enqueue([rollout])
        await store.lease("w", 1, 60.0)
        token = tokens_of(run).issue(rollout, 1)
        async with openai.AsyncOpenAI(
            base_url=f"{member.url}/v1", api_key=token, default_headers={"x-lightning-agent": "writer"}
        ) as client:
            await client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "hi"}], max_completion_tokens=2
            )
        await store.put_run(run.model_copy(update={"status": "finished"}))
        await serving
        assert await store.list_members("run") == []
    assert [line.split(" at ")[0] for line in said] == [
        "waiting for run 'run'; the store has none yet",
        "gateway g works for run run",
        "gateway g listens",
        "gateway g ends: run run is finished",
    ]


async def until(condition: object) -> None:
    assert callable(condition)
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


def test_trainer_here_and_two_gateways_elsewhere_train_on_the_weights_of_each_step(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    command = [sys.executable, "-m", "lightning_core.cli", "gateway", "--store", store, "--run", "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    gateways = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        backend = LocalBackend("tiny")
        fit(tmp_path / "run", steps=2, store=store, remote=["gateway"], backend=backend)
        ends = [gateway.communicate(timeout=300)[1] for gateway in gateways]
    finally:
        for gateway in gateways:
            if gateway.poll() is None:
                gateway.send_signal(signal.SIGKILL)
                gateway.communicate()
    assert [gateway.returncode for gateway in gateways] == [0, 0], ends
    asyncio.run(check_versions(store))


async def check_versions(url: str) -> None:
    async with SqliteStore(url) as store:
        rollouts = await store.find_rollouts("run", split="train")
        calls = await store.get_calls([rollout.id for rollout in rollouts])
        assert len(rollouts) == 12
        for rollout in rollouts:
            assert [call.policy_version for call in calls[rollout.id]] == [rollout.step]
