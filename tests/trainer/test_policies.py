"""Several policies in one run: each agent is answered, trained, kept and served by its own."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import load_file

import lightning_core as lightning
from lightning_core.backends.settings import LoraOptions, PolicyOptions
from lightning_core.cli.evaluating import _check, run_policy
from lightning_core.cli.models import export_model, list_versions, roll_back
from lightning_core.cli.space import _prune
from lightning_core.errors import ConfigError, ModelError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.policies import PolicyRouter
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Metrics, ResourceVersion, Rollout, Sampling, Task, find_policy
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from lightning_core.stores.versions import find_current
from lightning_core.trainer.learners import joined_numbers
from lightning_core.trainer.plan import make_tasks
from lightning_core.trainer.roles.gateway import make_upstream, serving_run
from tests.backends.models import save_model
from tests.backends.scripted import ScriptedBackend

POLICIES = {"writer": "a", "critic": "b"}
TASKS = [{"question": f"How many rows are in table {name}?"} for name in "abcdefgh"]
CALLS = 10_000
SHOWN = ({"messages": [{"role": "user", "content": "1 + 1?"}], "reply": "2"},)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, whose replies differ widely."""
    return save_model(tmp_path_factory.mktemp("model") / "qwen", "qwen3")


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(model, tmp_path_factory.mktemp("runs") / "done", steps=2)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, which may be changed."""
    return Path(shutil.copytree(finished, tmp_path / "done"))


def local(model: Path) -> lightning.LocalBackend:
    return lightning.LocalBackend(model, learning_rate=1e-3, lora=LoraOptions(rank=4))


# calls ------------------------------------------------------------------------------------------
def scatter(backend: lightning.LocalBackend, seed: int) -> None:
    """Make a policy of its own of the adapters, which all begin alike."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in backend._started.policy.parameters:
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw))


async def test_thousands_of_calls_at_once_are_each_answered_by_the_agents_own_policy(model: Path) -> None:
    own = local(model)
    backends = {
        "planner": own,
        "writer": own.another(PolicyOptions("a")),
        "critic": own.another(PolicyOptions("b")),
    }
    store, tokens = MemoryStore(), Tokens(b"0123456789abcdef")
    try:
        for seed, backend in enumerate(backends.values()):
            await backend.start()
            scatter(backend, seed)
            for _ in range(seed):  # versions 0, 1 and 2
                await backend.publish()
        await own._publish(0)
        up = {
            name: make_upstream(store, "run", backend, name="tiny", embedded=True)
            for name, backend in backends.items()
        }
        router = PolicyRouter(up["planner"], {"a": up["writer"], "b": up["critic"]})
        gateway = Gateway(router, store, tokens, agents=None, policies=POLICIES)
        greedy = Sampling(temperature=0.0)
        rollout = Rollout(id="r", run_id="run", task=Task(input={}), group_id="g", step=0, sampling=greedy)
        await store.enqueue([rollout])
        await store.lease("w", 1, 3600.0)
        async with GatewayServer(gateway) as server:
            said = await ask_all(server.url, tokens.issue(rollout, 1), list(backends))
        calls = (await store.get_calls(["r"]))["r"]
    finally:
        for backend in reversed(backends.values()):
            await backend.close()
    assert len(calls) == CALLS
    assert Counter((call.agent, call.policy, call.policy_version) for call in calls) == {
        ("planner", None, 0): 3334,
        ("writer", "a", 1): 3333,
        ("critic", "b", 2): 3333,
    }
    # greedy: each policy gives each prompt one reply, and no two policies the same ones
    by_agent = {
        name: {text: found for (who, text), found in said.items() if who == name} for name in backends
    }
    assert all(len(found) == 1 for of_one in by_agent.values() for found in of_one.values())
    assert by_agent["planner"] != by_agent["writer"] != by_agent["critic"] != by_agent["planner"]


async def ask_all(url: str, token: str, agents: list[str]) -> dict[tuple[str, str], set[str]]:
    """The replies to each prompt of each agent, all asked at once in turn."""
    said: dict[tuple[str, str], set[str]] = {}
    turns = iter(range(CALLS))

    async def ask(client: httpx.AsyncClient) -> None:
        for turn in turns:
            agent, text = agents[turn % 3], f"Table {turn // 3 % 8}?"
            reply = await client.post(
                "/v1/chat/completions",
                headers={"authorization": f"Bearer {token}", "x-lightning-agent": agent},
                json={
                    "model": "any",
                    "messages": [{"role": "user", "content": text}],
                    "max_completion_tokens": 2,
                },
            )
            assert reply.status_code == 200, reply.text
            said.setdefault((agent, text), set()).add(reply.json()["choices"][0]["message"]["content"])

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await asyncio.gather(*(ask(client) for _ in range(48)))
    return said


def test_an_agent_plays_the_policy_of_its_name_then_of_the_first_glob_that_matches() -> None:
    policies = {"w*": "a", "writer": "b", "*": "c"}
    assert [find_policy(name, policies) for name in ("writer", "waiter", "critic")] == ["b", "a", "c"]
    assert find_policy("critic", {"w*": "a"}) is None


# updates ----------------------------------------------------------------------------------------
def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


async def test_an_update_of_one_changes_no_byte_of_the_other(model: Path, tmp_path: Path) -> None:
    apart = lightning.GRPO(group_size=8, tasks_per_step=2, credit="per_agent")
    trained = fit(model, tmp_path / "run", steps=2, solve=solve_deaf, algorithm=apart)
    kept = {name: trained / "policies" / name / "checkpoints" for name in "ab"}
    for name, still in (("a", False), ("b", True)):
        first, second = (content(kept[name] / f"step-00000{step}") for step in (1, 2))
        assert (first == second) is still, name
    versions, metrics, _ = await read(trained)
    assert [len(versions[name]) for name in ("policy", "policy:a", "policy:b")] == [1, 3, 1]
    assert all(each.values["policy/b/skipped_updates"] == 1 for each in metrics)
    assert [each.values["policy/a/policy_version"] for each in metrics] == [1, 2]


async def test_each_policy_is_updated_from_its_own_calls(finished: Path) -> None:
    versions, metrics, calls = await read(finished)
    assert [len(versions[name]) for name in ("policy", "policy:a", "policy:b")] == [1, 3, 3]
    assert {(call.agent, call.policy) for call in calls} == {("writer", "a"), ("critic", "b")}
    assert {call.policy_version for call in calls} == {0, 1}
    for each in metrics:
        tokens = [each.values[f"policy/{name}/tokens"] for name in "ab"]
        assert min(tokens) > 0
        assert each.values["tokens"] == sum(tokens)
        assert "policy/policy/tokens" not in each.values
        # the first pass computes what was sampled: the gap of a batch of the other policy would be nats
        assert all(each.values[f"policy/{name}/logprob_gap_max"] < 1e-3 for name in "ab")


async def test_a_frozen_agent_is_answered_by_the_runs_own_policy_and_never_trained_on(
    model: Path, tmp_path: Path
) -> None:
    folder = fit(model, tmp_path / "run", steps=1, agents=["writer"])
    versions, metrics, calls = await read(folder)
    assert {(call.agent, call.policy, call.trained) for call in calls} == {
        ("writer", "a", True),
        ("critic", None, False),
    }
    assert [len(versions[name]) for name in ("policy", "policy:a", "policy:b")] == [1, 2, 1]
    assert "policy/b/tokens" not in metrics[0].values


OWN: dict[str, Any] = {
    "writer": PolicyOptions("a", learning_rate=3e-3),
    "critic": PolicyOptions("b", lora=LoraOptions(rank=2)),
}
"""Options of each: the backend has a rate of 1e-3, and adapters of rank 4."""


async def test_each_policy_has_the_learning_rate_and_the_adapters_that_it_was_given(
    model: Path, tmp_path: Path
) -> None:
    folder = fit(model, tmp_path / "run", steps=2, policies=OWN)
    _, metrics, _ = await read(folder)
    for step, each in enumerate(metrics, 1):  # the rate rises over three steps
        rates = [each.values[f"policy/{name}/learning_rate"] for name in "ab"]
        assert rates == pytest.approx([3e-3 * step / 3, 1e-3 * step / 3])
    kept = {name: folder / "policies" / name / "checkpoints/step-000002/model" for name in "ab"}
    ranks = {name: json.loads((of / "adapter_config.json").read_text())["r"] for name, of in kept.items()}
    assert ranks == {"a": 4, "b": 2}
    other = {**OWN, "critic": PolicyOptions("b", lora=LoraOptions(rank=3))}
    with pytest.raises(ModelError, match=r"b/checkpoints.*its lora option r is 2, that of this run is 3"):
        fit(model, folder, steps=3, resume=True, policies=other)
    fit(
        model,
        folder,
        steps=3,
        resume=True,
        policies={**OWN, "writer": PolicyOptions("a", learning_rate=1e-5)},
    )
    _, metrics, _ = await read(folder)
    assert metrics[2].values["policy/a/learning_rate"] == pytest.approx(1e-5)
    assert metrics[2].values["policy/b/learning_rate"] == pytest.approx(1e-3)
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
    assert run.config["policies"] == POLICIES
    begun: Any = run.provenance["settings"]
    resumed: Any = run.provenance["resumed"]
    assert "learning_rate=0.003" in begun["policies"]
    assert "learning_rate=1e-05" in resumed[-1]["changed"]["settings.policies"]


async def test_adapters_beside_whole_weights_have_a_base_of_their_own(model: Path, tmp_path: Path) -> None:
    """The run's own policy changes its weights, which are no base to share."""
    whole = lightning.LocalBackend(model, learning_rate=1e-3)
    beside = {"critic": PolicyOptions("b", lora=LoraOptions(rank=2))}
    folder = fit(model, tmp_path / "run", steps=2, backend=whole, policies=beside)
    start, last = tmp_path / "start", tmp_path / "last"
    await export_model(str(folder), None, "policy:b", 0, start)
    await export_model(str(folder), None, "policy:b", 2, last)
    before, after = (load_file(each / "model.safetensors") for each in (start, last))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.endswith("proj.weight") for name in moved)
    own = load_file(folder / "checkpoints/step-000002/model/model.safetensors")
    assert not torch.equal(own["model.embed_tokens.weight"], before["model.embed_tokens.weight"])


def test_the_numbers_of_a_step_are_those_of_each_policy_and_of_all_that_were_updated() -> None:
    joined = joined_numbers(
        {
            "a": {"loss": 1.0, "tokens": 10.0, "logprob_gap_max": 0.1, "policy_version": 3.0},
            "b": {"loss": 3.0, "tokens": 5.0, "logprob_gap_max": 0.3, "policy_version": 1.0},
            "c": {"skipped_updates": 1.0, "failed_updates": 1.0, "policy_version": 0.0},
        }
    )
    assert {name: value for name, value in joined.items() if "/" not in name} == {
        "loss": 2.0,
        "tokens": 15.0,
        "logprob_gap_max": 0.3,
        "failed_updates": 1.0,
    }
    assert (joined["policy/a/loss"], joined["policy/c/policy_version"]) == (1.0, 0.0)
    assert joined_numbers({"a": {"skipped_updates": 1.0}})["skipped_updates"] == 1.0


# a run that ends and goes on --------------------------------------------------------------------
def weights(folder: Path) -> dict[str, dict[str, bytes]]:
    """The weights of all policies in the newest checkpoints."""
    newest = {place: max(place.glob("checkpoints/*")) for place in (folder, *folder.glob("policies/*"))}
    return {place.name if place != folder else "": content(path / "model") for place, path in newest.items()}


def test_a_resumed_run_equals_one_in_peace(model: Path, finished: Path, tmp_path: Path) -> None:
    folder = fit(model, tmp_path / "resumed", steps=1)
    fit(model, folder, steps=2, resume=True)
    mine, other = (asyncio.run(read(each)) for each in (folder, finished))
    assert [len(of) for of in mine[0].values()] == [len(of) for of in other[0].values()]
    assert replies(mine[2]) == replies(other[2])


def test_a_run_that_was_killed_while_it_saved_goes_on_as_if_it_had_not(
    model: Path, finished: Path, run: Path
) -> None:
    """The checkpoints of the named policies are there, that of the run is not."""
    shutil.rmtree(run / "checkpoints" / "step-000002")
    assert (run / "policies" / "a" / "checkpoints" / "step-000002").is_dir()
    fit(model, run, steps=2, resume=True)
    assert weights(run) == weights(finished)
    assert len(weights(run)) == 3


def test_a_run_goes_on_with_the_policies_that_it_began_with(model: Path, run: Path) -> None:
    with pytest.raises(ConfigError, match="can't be resumed, as these differ from before: policies"):
        fit(model, run, steps=3, resume=True, policies={"writer": "a"})


def replies(calls: list[Call]) -> Counter[tuple[str, str, tuple[int, ...]]]:
    return Counter(
        (str(call.agent), json.dumps(call.request), tuple(call.choices[0].completion_ids or ()))
        for call in calls
    )


# versions ---------------------------------------------------------------------------------------
def test_versions_of_each_policy_are_listed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(list_versions(str(run), None, "policy:a"))
    assert "versions of policy:a" in capsys.readouterr().out
    asyncio.run(list_versions(str(run), None, "policy"))
    assert "--name policy:a or policy:b" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="it has policy, policy:a, policy:b"):
        asyncio.run(list_versions(str(run), None, "policy:c"))


def test_one_policy_is_rolled_back_and_served_so(run: Path) -> None:
    asyncio.run(roll_back(str(run), None, "policy:b", 1))
    versions, _, _ = asyncio.run(read(run))
    assert [current(versions[name]) for name in ("policy", "policy:a", "policy:b")] == [0, 2, 1]
    assert asyncio.run(serve(run)) == {"own": "0", "a": "2", "b": "1", "a@1": "1", "agent": "1"}


async def serve(run: Path) -> dict[str, str]:
    """The versions that answer by each model's name, and a trained agent by its own name."""
    found = {}
    async with SqliteStore(f"sqlite:///{run / 'store.db'}") as store:
        (record,) = await store.list_runs()
        tokens = Tokens(b"0123456789abcdef")
        rollout = Rollout(id="r", run_id=record.id, task=Task(input={}), group_id="g", step=9)
        await store.enqueue([rollout])
        await store.lease("w", 1, 600.0)
        async with serving_run(store, record, load_plugins()) as upstream:
            gateway = Gateway(upstream, store, tokens, agents=None, anonymous=True, policies=POLICIES)
            async with GatewayServer(gateway) as server, httpx.AsyncClient(base_url=server.url) as client:
                listed = (await client.get("/v1/models")).json()["data"]
                assert {"a", "a@1", "b", "b@2"} <= {each["id"] for each in listed}
                asked: dict[str, tuple[str, dict[str, str]]] = {
                    "own": ("qwen", {}),
                    "a": ("a", {}),
                    "b": ("b", {}),
                    "a@1": ("a@1", {}),
                }
                named = {"authorization": f"Bearer {tokens.issue(rollout, 1)}", "x-lightning-agent": "critic"}
                asked["agent"] = ("any", named)
                for what, (name, headers) in asked.items():
                    body: dict[str, Any] = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
                    reply = await client.post(
                        "/v1/chat/completions",
                        headers=headers,
                        json={**body, "max_completion_tokens": 2},
                        timeout=600,
                    )
                    assert reply.status_code == 200, reply.text
                    found[what] = reply.headers["x-lightning-policy-version"]
    return found


def test_one_policy_is_exported(run: Path, tmp_path: Path) -> None:
    out = {name: tmp_path / "out" / name for name in ("policy", "a", "b")}
    for name, folder in out.items():
        asyncio.run(export_model(str(run), None, f"policy:{name}" if name != "policy" else name, 0, folder))
    start = {content(folder)["model.safetensors"] for folder in out.values()}
    assert len(start) == 1  # all begin as the same model
    for name in "ab":
        last = tmp_path / "out" / f"{name}2"
        asyncio.run(export_model(str(run), None, f"policy:{name}", 2, last))
        assert content(last)["model.safetensors"] not in start
        assert (
            content(last)["model.safetensors"]
            == content(run / "policies" / name / "policy")["model.safetensors"]
        )


def test_one_policy_is_evaluated_once_it_is_exported(model: Path, run: Path, tmp_path: Path) -> None:
    """A trainer with policies takes it too: the exported one then plays every agent."""
    with pytest.raises(ConfigError, match=r"export the one you mean .*--name policy:a export"):
        asyncio.run(_check(str(run)))
    checker = tmp_path / "checker"
    asyncio.run(export_model(str(run), None, "policy:b", 2, checker))
    trainer = lightning.Trainer(backend=local(model), policies=POLICIES, agents=["writer", "critic"])
    tasks = make_tasks(TASKS[:3], "validation")
    score = run_policy(trainer, solve, tasks, str(checker), tmp_path / "evaluated")
    assert (len(score.greedy), score.failures) == (3, 0)

    async def recorded() -> list[Call]:
        async with SqliteStore(f"sqlite:///{score.run / 'store.db'}") as store:
            (record,) = await store.list_runs()
            assert (record.config["model"], record.config["policies"]) == (str(checker), {})
            rollouts = await store.find_rollouts(record.id)
            calls = await store.get_calls([rollout.id for rollout in rollouts])
        return [call for of in calls.values() for call in of]

    calls = asyncio.run(recorded())
    assert Counter((call.agent, call.policy) for call in calls) == {("writer", None): 6, ("critic", None): 6}


def test_pruning_leaves_each_policy_its_newest_checkpoint(run: Path) -> None:
    asyncio.run(_prune(run))
    for place in (run, run / "policies" / "a", run / "policies" / "b"):
        assert [path.name for path in (place / "checkpoints").iterdir()] == ["step-000002"]
        assert not (place / "checkpoints" / "step-000002" / "moments.safetensors").exists()


def current(versions: list[ResourceVersion]) -> int:
    found = find_current(versions)
    assert found is not None
    return found.version


# what can't be done -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("backend 'scripted' trains one policy", {"backend": ScriptedBackend()}),
        ("has a critic: use GRPO()", {"algorithm": lightning.PPO()}),
        ("replay=1: give replay=0", {"algorithm": lightning.GRPO(replay=1)}),
        (
            "learns from demonstrations",
            {"algorithm": lightning.SFT(demonstrations=SHOWN)},
        ),
        ("with a remote gateway", {"remote": "gateway"}),
        ('give engine="torch"', {"backend": "vllm"}),
        ("the run's own policy", {"policies": {"writer": "policy"}}),
        ("the run's own policy", {"policies": {"writer": PolicyOptions("policy")}}),
        (
            "policy 'a' two sets of options",
            {"policies": {n: PolicyOptions("a", learning_rate=r) for n, r in (("w*", 1e-3), ("c*", 1e-4))}},
        ),
        ("a policy's name of up to 64 letters", {"policies": {"writer": "../../a"}}),
        ("a policy's name of up to 64 letters", {"policies": {"writer": ""}}),
    ],
)
def test_what_does_not_go_with_several_policies_is_refused_by_name(
    model: Path, tmp_path: Path, said: str, settings: dict[str, Any]
) -> None:
    if settings.get("backend") == "vllm":
        settings = {"backend": lightning.LocalBackend(model, engine="vllm")}
    with pytest.raises(ConfigError) as refused:
        fit(model, tmp_path / "run", steps=1, **settings)
    assert said in str(refused.value)


# a run ------------------------------------------------------------------------------------------
async def solve(task: lightning.Task) -> float:
    """A call of each agent; the reward follows from the tokens."""
    text = str(task.input["question"])
    async with openai.AsyncOpenAI(api_key="none") as client:
        for name in ("writer", "critic"):
            with lightning.agent(name):
                reply = await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": text}], max_completion_tokens=6
                )
            text = reply.choices[0].message.content or ""
    return len(text) % 3 / 2


async def solve_deaf(task: lightning.Task) -> float:
    """The same, with an equal reward for the critic in every rollout."""
    reward = await solve(task)
    lightning.reward(0.5, agent="critic")
    return reward


def fit(model: Path, folder: Path, *, solve: Any = solve, **more: Any) -> Path:
    settings: dict[str, Any] = {
        "backend": local(model),
        "algorithm": lightning.GRPO(group_size=8, tasks_per_step=2, credit="uniform"),
        "policies": POLICIES,
        "keep_checkpoints": 3,
        "progress": False,
        "seed": 12,
        **more,
    }
    lightning.Trainer(folder=folder, **settings).fit(solve, train=TASKS)
    return folder


async def read(folder: Path) -> tuple[dict[str, list[ResourceVersion]], list[Metrics], list[Call]]:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        names = ("policy", "policy:a", "policy:b")
        versions = {name: await store.list_resources(run.id, name) for name in names}
        rollouts = await store.find_rollouts(run.id)
        calls = await store.get_calls([rollout.id for rollout in rollouts])
        return versions, await store.list_metrics(run.id), [c for of_one in calls.values() for c in of_one]
