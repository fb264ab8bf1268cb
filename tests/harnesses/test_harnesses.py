"""Coding harnesses run unchanged: their own programs, as docs/harnesses.md starts them, on a real gateway.

Each works on a folder of its own and really changes a file there. The engine follows a script.
`make harnesses` installs the programs; one that is missing is skipped by its name.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.records.types import Call, Task
from lightning_core.tracing.scope import Scope, rollout_scope
from tests.gateway.conftest import open_house
from tests.gateway.scripted import END, Line, ScriptedEngine, until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "harnesses.md").read_text()
INSTALLED = ROOT / ".data" / "harnesses"
PLACES = [INSTALLED / "node_modules/.bin", INSTALLED / "mini-swe-agent/bin", INSTALLED / "aider/bin"]
PROGRAMS = os.pathsep.join(map(str, PLACES))
BROKEN, MENDED = "print('helo')\n", "print('hello')\n"
MEND = "sed -i s/helo/hello/ hello.py"

Step = str | tuple[str, dict[str, Any]]
"""A reply of the model: words, or a call of a tool."""


class Conversing(ScriptedEngine):
    """Its tokens are words with the blank space around them, and a reply reads the same in a later prompt."""

    def encode(self, text: str) -> list[int]:
        return [self._token(word) for word in text.split(" ")]

    def prompt_ids(self, request: ChatRequest) -> list[int]:
        ids: list[int] = []
        for message in request.messages:
            content = str(message.get("content") or "")
            ids += self.encode(
                content if message["role"] == "assistant" else f"<{message['role']}> {content}"
            )
            ids += [END] if message["role"] == "assistant" else []
        return ids


@dataclass(frozen=True)
class Harness:
    """One program, and what the model does in it."""

    program: str
    steps: Sequence[Step]
    """Replies of the main agent, in its turn."""
    aside: Callable[[ChatRequest], bool] = lambda request: False
    """Whether a request is not the main agent's: a title, or a sub-agent's."""
    asides: int = 0
    """How many such requests it makes."""
    waits: Step | None = None
    """The main agent's step before its last, until they were made: its sub-agents run beside it."""


def prompted(text: str) -> Callable[[ChatRequest], bool]:
    """Whether a system prompt holds these words."""
    return lambda request: any(
        text in str(message.get("content")) for message in request.messages if message["role"] == "system"
    )


def asked(text: str) -> Callable[[ChatRequest], bool]:
    """Whether a user says these words and nothing else."""
    return lambda request: request.messages[-1] == {"role": "user", "content": text}


EXPLORE = {"description": "look", "prompt": "Look at hello.py.", "subagent_type": "Explore"}
WHOLE = f"hello.py\n```\n{MENDED}```\n"
HARNESSES = {
    "codex": Harness(
        "codex",
        [("exec_command", {"cmd": MEND}), ("multi_agent_v1.spawn_agent", {"message": "Look."}), "done"],
        asked("Look."),
        1,
        ("exec_command", {"cmd": "sleep 0.2"}),
    ),
    "claude": Harness(
        "claude",
        [("Bash", {"command": MEND, "description": "mend"}), ("Agent", EXPLORE), "done"],
        prompted("file search specialist"),
        1,
    ),
    "opencode": Harness(
        "opencode",
        [("bash", {"command": MEND, "description": "mend"}), "done"],
        prompted("You are a title generator"),
        1,
    ),
    "qwen": Harness(
        "qwen",
        # From 0.24 on it lets `sed -i` change no file that it has not read itself.
        [
            (
                "run_shell_command",
                {"command": f"{MEND.replace(' -i', '')} > new && mv new hello.py", "is_background": False},
            ),
            "done",
        ],
    ),
    "mini": Harness(
        "mini",
        [
            ("bash", {"command": MEND}),
            ("bash", {"command": "cat hello.py"}),
            ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
        ],
    ),
    "aider": Harness("aider", [WHOLE]),
}


def engine_of(harness: Harness) -> Conversing:
    steps = list(harness.steps)
    seen: list[ChatRequest] = []

    def next_step(request: ChatRequest) -> Step:
        if harness.aside(request):
            seen.append(request)
            return "seen"
        if harness.waits is not None and len(steps) == 1 and len(seen) < harness.asides:
            return harness.waits
        return steps.pop(0) if steps else "done"

    def says(request: ChatRequest, choice: int) -> Line:
        step = next_step(request)
        if isinstance(step, str):
            return Line(step)
        name, arguments = step
        function = {"name": name, "arguments": json.dumps(arguments)}
        return Line("", [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}])

    return Conversing(says=says, context=10**9)


def arguments_of(name: str, prompt: str) -> list[str]:
    """How the page starts it."""
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        if f"def {name}(" in block:
            exec(block, found)
    arguments: list[str] = found[name](prompt)
    return arguments


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a program works in; its home is beside it, and it has no keys but the gateway's."""
    (tmp_path / "home").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    (work / "hello.py").write_text(BROKEN)
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC", "CLAUDE", "OPENAI", "CODEX", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", PROGRAMS + os.pathsep + os.environ["PATH"])
    return work


def skip_unless_installed(program: str) -> None:
    if shutil.which(program, path=PROGRAMS) is None:
        pytest.skip(f"{program} is not installed here; make harnesses")


def branches(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls, each with those whose tokens its prompt begins with."""
    found: list[list[Call]] = []
    for call in calls:
        read = call.prompt_ids or []
        for branch in found:
            before = [*(branch[-1].prompt_ids or []), *(branch[-1].choices[0].completion_ids or [])]
            if read[: len(before)] == before:
                branch.append(call)
                break
        else:
            found.append([call])
    return found


@pytest.mark.parametrize("name", HARNESSES)
async def test_a_harness_works_and_is_recorded_whole(name: str, folder: Path) -> None:
    harness = HARNESSES[name]
    skip_unless_installed(harness.program)
    async with open_house(
        engine_of(harness), names={"aside": "file search specialist|You are a title generator"}
    ) as house:
        token = await house.rollout()
        with rollout_scope(Scope("r1", 1, house.url, token, None)):
            async with asyncio.timeout(120):
                arguments = arguments_of(name, "mend hello.py")
                await lightning.Command(arguments, agent="coder", folder=folder, pass_task=False)(
                    Task(input={})
                )
        assert (folder / "hello.py").read_text() == MENDED
        calls = sorted(await house.calls(), key=lambda call: call.started_at)
        assert {call.status for call in calls} == {"completed"}
        assert all(call.choices[0].completion_ids for call in calls)
        assert house.engine.opened == len(calls)  # none is missing, none is there twice
        main, *others = sorted(branches(calls), key=len, reverse=True)
        assert len(main) >= len(harness.steps) if harness.waits else len(main) == len(harness.steps)
        assert [len(branch) for branch in others] == [1] * harness.asides
        for before, after in pairwise(main):
            assert len(after.prompt_ids or []) > len(before.prompt_ids or [])
        expected = {"coder"} | ({"aside"} if name in ("claude", "opencode") else set())
        assert {call.agent for call in calls} == expected


async def test_a_harness_that_is_cut_off_leaves_nothing_behind(folder: Path) -> None:
    skip_unless_installed("mini")
    marker = uuid.uuid4().hex
    step: Step = ("bash", {"command": f"sh -c 'sleep 600; echo {marker}'"})
    engine = engine_of(Harness("mini", [step]))
    async with open_house(engine) as house:
        token = await house.rollout()
        with rollout_scope(Scope("r1", 1, house.url, token, None)):
            command = lightning.Command(
                arguments_of("mini", "wait"), agent="coder", folder=folder, pass_task=False
            )
            running = asyncio.create_task(command(Task(input={})))
            await until(lambda: running_with(marker), 60)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert not running_with(marker)


def running_with(marker: str) -> list[str]:
    """The processes whose command line holds these words, but for those that were given them in a prompt."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if marker in line:
            found.append(line)
    return found
