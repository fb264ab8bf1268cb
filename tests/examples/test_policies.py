"""An app of each of four frameworks, trained with one policy and with two, by one argument."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lightning_core.records.types import Call, ResourceVersion
from lightning_core.stores.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class App:
    """A training script of several agents."""

    script: str
    agents: list[str]
    second: str
    """The agent among them that gets a policy of its own."""
    settings: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ("--", "--held-out-tasks", "2")
    """Arguments of the script."""


APPS = {
    "langgraph": App("examples/sql/train.py", ["write_query", "rewrite_query"], "rewrite_query"),
    "autogen": App(
        "examples/support/train.py",
        ["triage", "billing", "shipping", "account"],
        "triage",
        ("model=tiny", "temperature=1", "checkpoint_every=1"),
    ),
    "openai_agents": App("tests/examples/openai_agents_pair.py", ["writer", "checker"], "checker", (), ()),
    "crewai": App("examples/crew/train.py", ["SQL writer", "SQL reviewer"], "SQL reviewer"),
}


@pytest.mark.parametrize("several", [False, True], ids=["one policy", "two policies"])
@pytest.mark.parametrize("framework", APPS)
def test_an_app_trains_with_one_policy_and_with_two(framework: str, several: bool, tmp_path: Path) -> None:
    pytest.importorskip(f"lightning_{framework}")
    app, folder = APPS[framework], tmp_path / "run"
    plays = {app.second: "b"} if several else {}
    settings = [
        *("algorithm.group_size=6", "algorithm.tasks_per_step=4", "keep_checkpoints=3"),
        f"agents={json.dumps(app.agents)}",
        *app.settings,
        *([f"policies={json.dumps(plays)}"] if several else []),
    ]
    command = [sys.executable, "-m", "lightning_core.cli", "train", str(ROOT / app.script), "--steps", "2"]
    command += ["--folder", str(folder), *(part for each in settings for part in ("--set", each))]
    done = subprocess.run(
        [*command, *app.held_out],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    calls, versions = asyncio.run(read(folder))
    trained = [call for call in calls if call.trained]
    assert {call.agent for call in trained} == set(app.agents)
    assert all(call.policy == plays.get(str(call.agent)) for call in trained)
    newest = {name: max(each.version for each in of) for name, of in versions.items()}
    assert newest.keys() == ({"policy", "policy:b"} if several else {"policy"})
    assert min(newest.values()) >= 1  # each was updated, and answers with the update in the next step
    for call in trained:
        assert (call.policy_version or 0) <= newest["policy:b" if call.policy else "policy"]


async def read(folder: Path) -> tuple[list[Call], dict[str, list[ResourceVersion]]]:
    """The calls of training, and the versions of each policy."""
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        rollouts = await store.find_rollouts(run.id, split="train")
        calls = await store.get_calls([rollout.id for rollout in rollouts])
        names = ("policy", "policy:b")
        versions = {name: await store.list_resources(run.id, name) for name in names}
    return [call for of in calls.values() for call in of], {name: of for name, of in versions.items() if of}
