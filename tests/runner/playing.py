"""Functions of rollouts in the tests of workers, which can run in any process.

Each is named by its task, so that one pool can play them all. What they need to tell the test goes through
files, the gateway and the store.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai

import lightning_core as lightning
from lightning_core.records.types import Task
from lightning_core.tracing.scope import current_scope
from lightning_core.tracing.tools import report_tool

PROMPTED = "guide"
"""The agent whose prompt is pinned to another version than its seed."""
SEED = "Answer in one word."


async def play(task: Task) -> object:
    """Plays the task's function."""
    played = globals()[str(task.input["play"])](task)
    return await played if inspect.isawaitable(played) else played


def play_in_thread(task: Task) -> object:
    """The same of what is not async."""
    return globals()[str(task.input["play"])](task)


def reward(task: Task) -> float:
    return float(str(task.input["i"]))


def nothing(task: Task) -> None:
    """Neither returns nor gives a reward."""


def broken(task: Task) -> float:
    raise ValueError(f"broke on {task.input['i']}")


def leaving(task: Task) -> float:
    sys.exit(3)


def huge_value(task: Task) -> object:
    return "x" * 30_000_000


def huge_notice(task: Task) -> float:
    report_tool("read", agent="writer", framework="x", result="x" * 5_000_000)
    return 1.0


def huge_error(task: Task) -> float:
    raise ValueError("x" * 30_000_000)


async def noticing(task: Task) -> float:
    """Notices a tool run, rewards and a call that goes to an endpoint of the app's own."""
    report_tool("look", agent="checker", framework="x", arguments={"i": task.input["i"]})
    lightning.reward(0.25, agent="writer", reason=f"rollout {task.input['i']}")
    async with openai.AsyncOpenAI(api_key="sk-mine", base_url=str(task.input["hosted"])) as client:
        with lightning.agent("checker"):
            reply = await _ask(client, f"rollout {task.input['i']}")
    lightning.reward(-0.5, call=reply)
    if task.input.get("fails"):
        raise ValueError("after all that")
    return 1.0


async def asking(task: Task) -> float:
    """Asks the policy, under two names at once, and says in each prompt which rollout it is."""
    async with openai.AsyncOpenAI(api_key="none", max_retries=0) as client:

        async def ask(name: str) -> None:
            with lightning.agent(name):
                for turn in range(3):
                    await _ask(client, f"{task.input['i']} {name} {turn}")

        await asyncio.gather(ask("writer"), ask("reader"))
    return 1.0


async def prompted(task: Task) -> float:
    """Tells an endpoint of the app's own its prompt twice: by the seed, and as `lightning.prompt` has it."""
    told = lightning.prompt(PROMPTED, SEED)
    async with openai.AsyncOpenAI(api_key="sk-mine", base_url=str(task.input["hosted"])) as client:
        with lightning.agent(PROMPTED):
            await _ask(client, told, system=SEED)
    return 1.0


async def _ask(
    client: openai.AsyncOpenAI, text: str, *, system: str | None = None
) -> openai.types.chat.ChatCompletion:
    messages: Any = [{"role": "system", "content": system}] if system is not None else []
    return await client.chat.completions.create(
        model="any", messages=[*messages, {"role": "user", "content": text}]
    )


def begin(task: Task) -> None:
    """Tell the test that this attempt runs, and in which process."""
    path = Path(str(task.input["began"]))
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)


async def sleeper(task: Task) -> None:
    """Hangs, after it has noticed something."""
    report_tool("look", agent="writer", framework="x")
    begin(task)
    await asyncio.sleep(600)


def spinner(task: Task) -> None:
    """The same, in an endless loop."""
    report_tool("look", agent="writer", framework="x")
    begin(task)
    while True:
        pass


def deaf(task: Task) -> None:
    """Hangs deep in C, where no other thread of the process is heard, and no Python code is run."""
    begin(task)
    sum(range(10**15))


def with_grandchild(task: Task) -> None:
    """Hangs on a process in a session of its own that ignores SIGTERM."""
    arguments = [sys.executable, "-I", "-S", "-c", _STUBBORN, str(task.input["began"])]
    os.waitpid(os.posix_spawn(sys.executable, arguments, dict(os.environ), setsid=True), 0)


_STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


def dying(task: Task) -> float:
    """Kills its own process, in the way that the task says, on the first try."""
    scope = current_scope()
    if scope is not None and scope.attempt > 1:
        return 1.0
    os.write(2, f"last words of {task.input['i']}\n".encode())
    match task.input["by"]:
        case "exit":
            os._exit(7)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "memory":
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    return 0.0


def bequeathing(task: Task) -> float:
    """How many sockets a program has that the app starts without a care."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _SOCKETS], close_fds=False, capture_output=True, check=True
    )
    return float(done.stdout)


_SOCKETS = """
import os, stat
found = 0
for fd in range(3, 256):
    try:
        found += stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        pass
print(found)
"""


def process_id(task: Task) -> float:
    return float(os.getpid())


_kept: dict[str, openai.AsyncOpenAI] = {}


async def keeping_its_client(task: Task) -> float:
    """Asks with a client that the process keeps from rollout to rollout."""
    client = _kept.setdefault("client", openai.AsyncOpenAI(api_key="none", max_retries=0))
    await _ask(client, "hello")
    return float(os.getpid())


class Unloadable:
    """A function that comes apart where it is put together again."""

    def __call__(self, task: Task) -> float:
        return 1.0

    def __reduce__(self) -> Any:
        return divmod, (1, 0)
