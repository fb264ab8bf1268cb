"""The programs of docs/typescript.md for Node: one trains as it stands, its clients name their agents."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lightning_core.stores.sqlite import SqliteStore
from tests.gateway.conftest import open_house

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/typescript.md").read_text()
INSTALLED = ROOT / ".data/node"
PACKAGES = {
    "@ai-sdk/openai": "3.0.141",
    "@langchain/core": "1.4.0",
    "@langchain/openai": "1.5.8",
    "@openai/agents": "0.20.0",
    "ai": "6.0.326",
    "openai": "6.49.0",
    "zod": "4.6.7",
}
MISSING = [name for name in ("node", "npm") if shutil.which(name) is None]
SMALL = """
import runpy
import lightning_core as lightning
from lightning_core.trainer.launch import Launch, launching

small = lightning.GRPO(group_size=2, tasks_per_step=2)
with launching(Launch({"model": "tiny", "steps": 1, "algorithm": small, "folder": "run", "progress": False})):
    runpy.run_path("train.py", run_name="__main__")
"""
CLIENTS = """
import { createOpenAI } from "@ai-sdk/openai"
import { ChatOpenAI } from "@langchain/openai"
import { Agent, OpenAIResponsesModel, run } from "@openai/agents"
import { generateText } from "ai"
import OpenAI from "openai"

const as = (name) => ({ "x-lightning-agent": encodeURIComponent(name) })
const clientOf = (name) => new OpenAI({ defaultHeaders: as(name) })
await clientOf("préposé").responses.create({ model: "any", input: "one" })
const model = createOpenAI({ headers: as("sdk") })("any")
const first = await generateText({ model, prompt: "two" })
const user = (content) => ({ role: "user", content })
const messages = [user("two"), ...first.response.messages, user("three")]
const more = await generateText({ model, messages })
await new ChatOpenAI({ model: "any", configuration: { defaultHeaders: as("chain") } }).invoke("four")
const agent = new Agent({ name: "desk", model: new OpenAIResponsesModel(clientOf("desk"), "any") })
const { finalOutput } = await run(agent, "five")
console.log(JSON.stringify([first.text, more.text, finalOutput]))
"""

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} is not installed here")


@pytest.fixture(scope="module")
def modules() -> Path:
    """The packages, installed once into a folder that git ignores."""
    wanted = json.dumps({"private": True, "dependencies": PACKAGES})
    told = INSTALLED / "package.json"
    if not (INSTALLED / "node_modules/ai").exists() or told.read_text() != wanted:
        INSTALLED.mkdir(parents=True, exist_ok=True)
        told.write_text(wanted)
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
        done = subprocess.run(command, cwd=INSTALLED, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stdout + done.stderr
    return INSTALLED / "node_modules"


def test_the_program_and_the_script_of_the_page_train(modules: Path, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(modules)
    for kind, name in (("javascript", "app.mjs"), ("python", "train.py")):
        (code,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", SMALL], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["steps"], summary["failures"]) == (1, 0)

    async def count() -> Counter[tuple[str, bool]]:
        async with SqliteStore(f"sqlite:///{tmp_path}/run/store.db") as store:
            ids = [one.id for one in await store.find_rollouts("run")]
            calls = [call for some in (await store.get_calls(ids)).values() for call in some]
            return Counter((call.agent, bool(call.choices[0].completion_ids)) for call in calls)

    assert asyncio.run(count()) == {("writer", True): 4}


async def test_each_client_of_the_page_names_its_agent(modules: Path, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "clients.mjs").write_text(CLIENTS)
    async with open_house() as house:
        token = await house.rollout()
        own = {"OPENAI_BASE_URL": f"{house.url}/v1", "OPENAI_API_KEY": token}
        child = await asyncio.create_subprocess_exec(
            *("node", "clients.mjs"),
            cwd=tmp_path,
            env={**os.environ, **own, "OPENAI_AGENTS_DISABLE_TRACING": "1"},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await child.communicate()
        calls = await house.calls()
    assert child.returncode == 0
    assert json.loads(said) == ["two", "three", "five"]  # the engine repeats the last message
    assert Counter(call.agent for call in calls) == {"préposé": 1, "sdk": 2, "chain": 1, "desk": 1}
    (again,) = (call for call in calls if "three" in json.dumps(call.request))
    asked, reply, _ = again.request["input"]
    assert (asked["role"], reply["id"][:4]) == ("user", "msg_")  # the AI SDK sent a reference to it
