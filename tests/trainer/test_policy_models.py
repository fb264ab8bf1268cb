"""Policies with base models of their own: other tokenizers, templates and sizes in one run."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import lightning_core as lightning
from lightning_core.backends.settings import LoraOptions, PolicyOptions
from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.cli.choosing import Filter
from lightning_core.cli.models import export_model, roll_back
from lightning_core.cli.rollouts import show_rollouts
from lightning_core.console.asking import PageRequest
from lightning_core.console.rollouts import show_rollout
from lightning_core.console.shelf import Shelf
from lightning_core.dialects import transcript
from lightning_core.errors import ConfigError, ModelError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.policies import PolicyRouter
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Metrics, ResourceVersion, Rollout, Run, Task
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from lightning_core.trainer.roles.gateway import make_gateway, make_upstream, serving_run
from tests.backends.models import save_model
from tests.backends.serving import plain_logprobs
from tests.trainer import test_policies

POLICIES = {"critic": PolicyOptions("b", model="tiny")}
"""The agent `writer` plays the run's own policy, which has another model."""
AGENTS = {"writer": None, "critic": "b"}
TEXT = "List the boats with speed above 7."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a tokenizer and a template that are not the tiny model's."""
    return save_model(tmp_path_factory.mktemp("model") / "qwen", "qwen3")


@pytest.fixture(scope="module")
def tokenizers(model: Path) -> dict[str | None, PreTrainedTokenizerBase]:
    """The tokenizer of each policy, as transformers reads it."""
    return {name: AutoTokenizer.from_pretrained(of) for name, of in ((None, model), ("b", tiny_folder()))}


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(model, tmp_path_factory.mktemp("runs") / "done")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, which may be changed."""
    return Path(shutil.copytree(finished, tmp_path / "done"))


def local(model: Path | str, **more: Any) -> lightning.LocalBackend:
    return lightning.LocalBackend(model, learning_rate=1e-3, lora=LoraOptions(rank=4), **more)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: list[Any]) -> list[int]:
    """The ids of these messages in the model's own template and tokenizer."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(str(text), add_special_tokens=False)["input_ids"]
    return ids


# calls ------------------------------------------------------------------------------------------
async def test_each_call_is_read_and_written_by_the_model_of_its_policy(
    finished: Path, tokenizers: dict[str | None, PreTrainedTokenizerBase]
) -> None:
    _, metrics, calls = await read(finished)
    assert {(call.agent, call.policy) for call in calls} == set(AGENTS.items())
    for call in calls:
        wanted = {name: prompt_ids(of, call.request["messages"]) for name, of in tokenizers.items()}
        assert wanted[None] != wanted["b"]
        assert list(call.prompt_ids or ()) == wanted[call.policy]
        (choice,) = call.choices
        said = tokenizers[call.policy].decode(choice.completion_ids, skip_special_tokens=True)
        assert choice.message["content"] == said
    for each in metrics:
        for name in ("policy", "b"):
            assert each.values[f"policy/{name}/tokens"] > 0
            # what is trained has the probability with which it was sampled: a ratio of 1
            assert each.values[f"policy/{name}/logprob_gap_max"] < 1e-4


@asynccontextmanager
async def asking(model: Path) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, str]]]:
    """A client of a gateway with both policies, and the headers of a rollout."""
    own = local(model)
    backends = {None: own, "b": own.another(POLICIES["critic"])}
    store, tokens = MemoryStore(), Tokens(b"0123456789abcdef")
    try:
        for backend in backends.values():
            await backend.start()
        up = {
            name: make_upstream(store, "run", each, name=each.upstream.model_name, embedded=True)
            for name, each in backends.items()
        }
        router = PolicyRouter(up[None], {"b": up["b"]})
        gateway = Gateway(router, store, tokens, agents=None, anonymous=True, policies={"critic": "b"})
        rollout = Rollout(id="r", run_id="run", task=Task(input={}), group_id="g", step=0)
        await store.enqueue([rollout])
        await store.lease("w", 1, 3600.0)
        async with (
            GatewayServer(gateway) as server,
            httpx.AsyncClient(base_url=f"{server.url}/v1", timeout=600) as client,
        ):
            yield client, {"authorization": f"Bearer {tokens.issue(rollout, 1)}"}
    finally:
        for backend in reversed(backends.values()):
            await backend.close()


async def test_tokens_are_spelt_and_counted_by_the_model_that_answers(
    model: Path, tokenizers: dict[str | None, PreTrainedTokenizerBase]
) -> None:
    async with asking(model) as (client, rollout):
        messages = [{"role": "user", "content": TEXT}]

        async def post(path: str, agent: str, **body: Any) -> Any:
            reply = await client.post(path, headers={**rollout, "x-lightning-agent": agent}, json=body)
            assert reply.status_code == 200, reply.text
            return reply.json()

        async def chat(agent: str) -> None:
            asked = {"messages": messages, "max_completion_tokens": 4, "return_token_ids": True}
            said = await post("/chat/completions", agent, logprobs=True, top_logprobs=2, **asked)
            (choice,), spell = said["choices"], tokenizers[AGENTS[agent]].decode
            shown = [each["token"] for each in choice["logprobs"]["content"]]
            assert shown == [spell([token]) for token in choice["token_ids"]]
            assert said["model"] == {"writer": "qwen", "critic": "tiny"}[agent]

        async def complete(agent: str) -> None:
            asked = {"prompt": TEXT, "max_tokens": 4, "return_token_ids": True, "logprobs": 1}
            (choice,) = (await post("/completions", agent, **asked))["choices"]
            spell = tokenizers[AGENTS[agent]].decode
            assert choice["logprobs"]["tokens"] == [spell([token]) for token in choice["token_ids"]]

        # at once: which policy was asked last says nothing
        await asyncio.gather(*(ask(agent) for _ in range(8) for agent in AGENTS for ask in (chat, complete)))
        for agent, policy in AGENTS.items():
            wanted = len(prompt_ids(tokenizers[policy], messages))
            told = await post("/messages/count_tokens", agent, model="any", messages=messages)
            assert told["input_tokens"] == wanted
            assert (await post("/responses/input_tokens", agent, input=TEXT))["input_tokens"] == wanted
            # a caller without a rollout asks for a policy by the name of the model
            named = {"model": policy or "qwen", "messages": messages}
            assert (await client.post("/messages/count_tokens", json=named)).json()["input_tokens"] == wanted


# updates ----------------------------------------------------------------------------------------
def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_an_update_of_one_changes_no_byte_of_the_other(model: Path, tmp_path: Path) -> None:
    apart = lightning.GRPO(group_size=8, tasks_per_step=2, credit="per_agent")
    trained = fit(model, tmp_path / "run", solve=solve_deaf, algorithm=apart)
    for place, still in ((trained, False), (trained / "policies/b", True)):
        first, second = (content(place / f"checkpoints/step-00000{step}") for step in (1, 2))
        assert (first == second) is still, place


async def test_policies_share_weights_and_speed_where_their_model_is_the_same(
    model: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(model)
    own = local(model)
    backends = [own, *(own.another(PolicyOptions("b", model=of)) for of in (link, "tiny"))]
    try:
        for backend in backends:
            await backend.start()
        first, alike, other = (backend._started for backend in backends)
        kept = [{w.data_ptr() for w in each.policy.base.parameters()} for each in (first, alike, other)]
        assert kept[0] & kept[1]
        assert not kept[0] & kept[2]
        assert alike.speed is first.speed
        assert other.speed is not first.speed
        assert (first.policy.model.context, other.policy.model.context) == (512, 2048)
    finally:
        for backend in reversed(backends):
            await backend.close()


def test_a_teacher_of_a_policy_reads_as_its_own_model(model: Path, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    async def once_right(task: lightning.Task) -> float:
        await solve(task)
        seen[str(task.input["question"])] += 1
        return float(seen[str(task.input["question"])] == 1)

    taught = lightning.SDPO(group_size=4, tasks_per_step=2)
    folder = fit(model, tmp_path / "run", solve=once_right, algorithm=taught, steps=1, concurrency=1)
    _, metrics, _ = asyncio.run(read(folder))
    assert metrics[0].values["teacher_otherwise"] == 0
    assert metrics[0].values["teacher_share"] == 0.75


# afterwards -------------------------------------------------------------------------------------
async def test_versions_begin_with_the_model_of_their_policy(
    finished: Path, model: Path, tmp_path: Path
) -> None:
    versions, _, _ = await read(finished)
    assert [versions[name][0].uri for name in ("policy", "policy:b")] == [str(model), "tiny"]
    for name, base, kept in (
        ("policy", model, finished),
        ("policy:b", tiny_folder(), finished / "policies/b"),
    ):
        start, last = (tmp_path / name.replace(":", "-") / which for which in ("start", "last"))
        await export_model(str(finished), None, name, 0, start)
        await export_model(str(finished), None, name, 2, last)
        was, began, ended = (load_file(of / "model.safetensors") for of in (base, start, last))
        assert was.keys() == began.keys() == ended.keys()
        assert all(torch.equal(was[each].float(), began[each]) for each in was)
        assert any(not torch.equal(began[each], ended[each]) for each in was)
        tokens = {path: (path / "tokenizer.json").read_bytes() for path in (start, last, kept / "policy")}
        assert len(set(tokens.values())) == 1
        card = (kept / "policy/README.md").read_text()
        assert ("`tiny`, trained with" in card) is (name == "policy:b")


async def test_a_rollback_serves_the_version_on_its_own_model(
    run: Path, tmp_path: Path, tokenizers: dict[str | None, PreTrainedTokenizerBase]
) -> None:
    await roll_back(str(run), None, "policy:b", 1)
    asked = {"b": ("b", 1), "b@2": ("b", 2), "qwen": (None, 2)}
    async with serving_at(run) as client:
        for name, (policy, version) in asked.items():
            messages = [{"role": "user", "content": TEXT}]
            body = {"model": name, "messages": messages, "max_completion_tokens": 4, "logprobs": True}
            reply = await client.post("/chat/completions", json={**body, "return_token_ids": True})
            assert reply.status_code == 200, reply.text
            assert reply.headers["x-lightning-policy-version"] == str(version)
            said = reply.json()
            (choice,) = said["choices"]
            assert said["prompt_token_ids"] == prompt_ids(tokenizers[policy], messages)
            out = tmp_path / name.replace("@", "-")
            await export_model(
                str(run), None, "policy" if policy is None else f"policy:{policy}", version, out
            )
            network = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
            wanted = plain_logprobs(network, said["prompt_token_ids"], choice["token_ids"])
            found = [each["logprob"] for each in choice["logprobs"]["content"]]
            assert found == pytest.approx(wanted, abs=1e-4)


@asynccontextmanager
async def serving_at(run: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the run as `agentlightning serve` serves it."""
    async with SqliteStore(f"sqlite:///{run / 'store.db'}") as store:
        (record,) = await store.list_runs()
        async with serving_run(store, record, load_plugins()) as upstream:
            gateway = make_gateway(store, record, upstream, anonymous=True)
            async with (
                GatewayServer(gateway) as server,
                httpx.AsyncClient(base_url=f"{server.url}/v1", timeout=600) as client,
            ):
                yield client


def test_a_resumed_run_has_the_models_that_it_began_with(model: Path, run: Path) -> None:
    for other in (PolicyOptions("b", model=os.path.relpath(tiny_folder())), "b"):
        with pytest.raises(ConfigError, match="can't be resumed: policy 'b' began as model 'tiny'"):
            fit(model, run, steps=3, resume=True, policies={"critic": other})
    with pytest.raises(ConfigError, match=r"its own policy began as model .*qwen', and is now 'tiny'"):
        fit(model, run, steps=3, resume=True, backend=local("tiny"))
    fit(model, run, steps=3, resume=True)
    versions, metrics, _ = asyncio.run(read(run))
    assert [len(versions[name]) for name in ("policy", "policy:b")] == [4, 4]
    assert metrics[2].values["policy/b/logprob_gap_max"] < 1e-4
    record = asyncio.run(read_run(run))
    settings: Any = record.provenance["settings"]
    assert "model='tiny'" in settings["policies"]


async def test_replies_are_shown_with_the_model_and_the_tokens_of_their_policy(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, calls = await read(finished)
    by_id = {call.id: call for call in calls}
    async with Shelf(str(finished), load_plugins()) as shelf:
        asked = [("run", "done"), ("id", calls[0].rollout_id or "")]
        nodes = (await show_rollout(PageRequest(shelf, asked)))["nodes"]
    shown = [node for node in nodes if node["kind"] == "call"]
    assert {node["policy"]: node["answerer"].split()[0] for node in shown} == {None: "qwen", "b": "tiny"}
    for node in shown:
        (reply,) = node["replies"]
        said = transcript.text(transcript.replies(by_id[node["id"]]))
        assert said.strip() in "".join(reply["pieces"])
    await show_rollouts(finished, str(calls[0].rollout_id), Filter(), full=True)
    printed = capsys.readouterr().out
    assert "tiny, policy b, version" in " ".join(printed.split())


# what can't be done -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "options", "backend"),
    [
        ("policy 'b': no model folder 'nowhere'", {"model": "nowhere"}, {}),
        ("policy 'b': ", {"model": "no.gguf"}, {}),
        ("policy 'b': ", {"model": "tiny", "lora": LoraOptions(targets=("c_attn",))}, {}),
        ("policy 'b': context=500 is outside what model", {"model": "short"}, {"context": 500}),
    ],
)
def test_a_model_that_a_policy_cannot_have_is_refused_by_the_policys_name(
    model: Path, tmp_path: Path, said: str, options: dict[str, Any], backend: dict[str, Any]
) -> None:
    if options["model"] == "short":
        short = save_model(tmp_path / "short", "llama", max_position_embeddings=128)
        options = {**options, "model": short}
    with pytest.raises((ConfigError, ModelError)) as refused:
        fit(
            model,
            tmp_path / "run",
            backend=local(model, **backend),
            policies={"critic": PolicyOptions("b", **options)},
        )
    assert str(refused.value).startswith(said)


# a run ------------------------------------------------------------------------------------------
async def solve(task: lightning.Task) -> float:
    """A call of each agent; the reward follows from the tokens."""
    text = str(task.input["question"])
    said = ""
    async with openai.AsyncOpenAI(api_key="none") as client:
        for name in AGENTS:
            with lightning.agent(name):
                reply = await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": text}], max_completion_tokens=6
                )
            said += reply.choices[0].message.content or ""
    return len(said) % 3 / 2


async def solve_deaf(task: lightning.Task) -> float:
    """The same, with an equal reward for the critic in every rollout."""
    reward = await solve(task)
    lightning.reward(0.5, agent="critic")
    return reward


def fit(model: Path, folder: Path, *, solve: Any = solve, **more: Any) -> Path:
    return test_policies.fit(model, folder, solve=solve, **{"policies": POLICIES, "steps": 2, **more})


async def read(folder: Path) -> tuple[dict[str, list[ResourceVersion]], list[Metrics], list[Call]]:
    run = await read_run(folder)
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        versions = {name: await store.list_resources(run.id, name) for name in ("policy", "policy:b")}
        rollouts = await store.find_rollouts(run.id)
        calls = await store.get_calls([rollout.id for rollout in rollouts])
        return versions, await store.list_metrics(run.id), [c for of_one in calls.values() for c in of_one]


async def read_run(folder: Path) -> Run:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        return run
