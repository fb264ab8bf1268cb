"""Run the example of a plugin's README as a script, against the gateway double.

In a process of its own: an example leaves its clients open, as scripts do, and installs what it likes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from lightning_core.testing.server import GatewayDouble

_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_PROGRAM = """
import asyncio, inspect, json, sys
from lightning_core.plugins import load_plugins
from lightning_core.tracing.openai_sdk import instrument
from lightning_core.tracing.scope import Scope, rollout_scope
from lightning_core.records.types import Task

given = json.load(sys.stdin)
example = {"__name__": "example"}
exec(compile(given["code"], "README.md", "exec"), example)
assert tuple(example["trainer"].agents) == tuple(given["trained"]), example["trainer"].agents


async def main():
    with instrument(load_plugins().who), rollout_scope(Scope("readme", 1, given["url"], "token")):
        reward = example["solve"](Task(input=given["input"]))
        return await reward if inspect.isawaitable(reward) else reward


print("reward", asyncio.run(main()))
"""


def run_example(readme: Path, gateway: GatewayDouble, trained: list[str], **task_input: object) -> float:
    """The reward that the README's `solve` gives for one task; its calls arrive at the gateway double.

    The page has one Python block, which defines `solve` and a `trainer` of the agents `trained`; its last
    lines, from `trainer.fit(` on, are left out. AssertionError with the script's errors if it fails.
    """
    [code] = _BLOCK.findall(readme.read_text())
    code = code.partition("trainer.fit(")[0]
    given = {"code": code, "url": gateway.url, "trained": trained, "input": task_input}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "OPENAI_API_KEY": "none",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
    )
    if done.returncode:
        raise AssertionError(f"the example of {readme} fails:\n{done.stderr}")
    return float(done.stdout.rpartition("reward ")[2])
