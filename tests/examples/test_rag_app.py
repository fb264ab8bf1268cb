"""The RAG app on its policy: the SDK, the gateway's Responses dialect and the local engine."""

import asyncio
import json
import random
from itertools import islice, pairwise
from pathlib import Path

import pytest
from agents import Agent
from agents.tool_context import ToolContext
from lightning_openai_agents import attach, uninstall
from transformers import AutoTokenizer

import lightning_core as lightning
from examples.rag.app import MAX_TURNS, agent, ask, search
from examples.rag.library import Library, Passage, write_library
from examples.rag.reward import answer_reward
from examples.rag.tasks import load_tasks
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Call, Rollout
from lightning_core.trainer.parts import open_store
from recipes.rag.corpus import TOOLS, converse, demonstrate

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "examples" / "rag" / "policy"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Rollout, list[Call]]]:
    """Every rollout of an evaluation of eight tasks, sampled and greedy, with its calls."""
    folder = tmp_path_factory.mktemp("rag")
    attach(agent)
    try:
        tasks = load_tasks("validation", folder, limit=8)
        trainer = lightning.Trainer(
            model=POLICY, agents=["researcher"], steps=0, folder=folder / "run", progress=False
        )
        trainer.fit(solve, train=[], validation=tasks)
    finally:
        uninstall()
    return asyncio.run(read(f"sqlite:///{folder / 'run' / 'store.db'}"))


async def solve(task: lightning.Task) -> float:
    reply = await ask(str(task.input["question"]), Library(str(task.input["library"])))
    return answer_reward(reply, task.input["answers"])


async def read(url: str) -> list[tuple[Rollout, list[Call]]]:
    async with open_store(url, load_plugins()) as store:
        (run,) = await store.list_runs()
        rollouts = await store.find_rollouts(run.id)
        calls = await store.get_calls([rollout.id for rollout in rollouts])
        return [(rollout, calls[rollout.id]) for rollout in rollouts]


async def call_search(library: Library, query: str) -> str:
    """Returns the answer of the agent's tool to that query."""
    arguments = json.dumps({"query": query})
    context = ToolContext(library, tool_name="search", tool_call_id="1", tool_arguments=arguments)
    return str(await search.on_invoke_tool(context, arguments))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(POLICY)


def test_every_call_is_the_researcher_s(run) -> None:
    assert len(run) == 16
    assert {call.agent for _, calls in run for call in calls} == {"researcher"}
    assert all(1 <= len(calls) <= MAX_TURNS for _, calls in run)
    assert any(len(calls) >= 2 for _, calls in run)


def test_the_agent_asks_just_as_its_demonstrations_do(run, tokenizer) -> None:
    (demonstration,) = islice(demonstrate(random.Random(0)), 1)
    for rollout, calls in run:
        question = {"role": "user", "content": rollout.task.input["question"]}
        asked = tokenizer.apply_chat_template(
            [demonstration.messages[0], question],
            tools=TOOLS,
            add_generation_prompt=True,
            return_dict=False,
        )
        assert list(calls[0].prompt_ids) == asked


def test_each_call_goes_on_from_the_tokens_of_the_one_before(run) -> None:
    pairs = [pair for _, calls in run for pair in pairwise(calls)]
    so_far = [[*before.prompt_ids, *before.choices[0].completion_ids] for before, _ in pairs]
    kept = [list(after.prompt_ids[: len(ids)]) == ids for ids, (_, after) in zip(so_far, pairs, strict=True)]
    assert len(kept) >= 10
    assert sum(kept) >= 0.9 * len(kept)  # a sampled reply may spell a word in other tokens


def test_the_policy_searches_for_the_name_and_answers_one_hop(run, tokenizer) -> None:
    greedy = [pair for pair in run if pair[0].task.input["form"] == "direct" and "greedy" in pair[0].id]
    for rollout, calls in greedy:
        name = rollout.task.input["question"].rstrip("?").split()[-2:]
        query = tokenizer.decode(calls[0].choices[0].completion_ids)
        assert f'{{"name": "search", "arguments": {{"query": "{" ".join(name)}"}}}}' in query
    assert greedy


def test_a_conversation_is_one_run_after_another(tokenizer) -> None:
    (conversation,) = islice(converse(random.Random(0), length=2), 1)
    roles = [turn["role"] for turn in conversation.messages]
    assert roles.count("user") == 2
    assert conversation.reply.startswith("Answer: ")


async def test_the_tool_says_when_nothing_is_found(tmp_path: Path) -> None:
    library = write_library([Passage("Ada Holt", "A name.")], tmp_path / "a.sqlite")
    assert await call_search(library, "Otto") == "Nothing found."
    assert await call_search(library, "Ada") == "Ada Holt: A name."


def test_the_app_knows_nothing_of_the_project_and_the_script_adds_one_line() -> None:
    app, script = ((ROOT / "examples/rag" / name).read_text() for name in ("app.py", "train.py"))
    assert "lightning" not in app.lower()
    assert [line for line in script.splitlines() if "attach(" in line] == ["attach(agent)"]
    assert script.count("agents=[") == 1
    assert isinstance(agent, Agent)
