"""What rollouts do in the tests of executors: functions that can run in any process.

Whatever they need to tell the test goes through files, the gateway and the store.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import openai

import lightning_core as lightning
from lightning_core.tracing.scope import current_scope
from lightning_core.tracing.tools import report_tool
from lightning_core.types import Task


def reward(task: Task) -> float:
    return float(str(task.input["i"]))


async def async_reward(task: Task) -> float:
    await asyncio.sleep(0)
    return float(str(task.input["i"]))


def nothing(task: Task) -> None:
    """Neither returns nor gives a reward."""


def broken(task: Task) -> float:
    raise ValueError(f"broke on {task.input['i']}")


def leaving(task: Task) -> float:
    sys.exit(3)


async def async_leaving(task: Task) -> float:
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


async def _ask(client: openai.AsyncOpenAI, text: str) -> openai.types.chat.ChatCompletion:
    return await client.chat.completions.create(model="any", messages=[{"role": "user", "content": text}])


def begin(task: Task) -> None:
    """Tell the test that this attempt runs, and in which process."""
    path = Path(str(task.input["began"]))
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)


async def sleeper(task: Task) -> float:
    """Hangs, if it is asked to, after it has noticed something."""
    if task.input.get("hangs"):
        report_tool("look", agent="writer", framework="x")
        begin(task)
        await asyncio.sleep(600)
    return 1.0


def spinner(task: Task) -> float:
    """The same, in an endless loop that takes no SIGTERM for an answer."""
    if task.input.get("hangs"):
        report_tool("look", agent="writer", framework="x")
        begin(task)
        while True:
            pass
    return 1.0


def deaf(task: Task) -> float:
    """The same, deep in C, where no other thread of the process is heard."""
    if task.input.get("hangs"):
        begin(task)
        sum(range(10**15))
    return 1.0


def with_grandchild(task: Task) -> float:
    """Starts a process in a session of its own that ignores SIGTERM, and hangs."""
    if task.input.get("hangs"):
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _STUBBORN, str(task.input["began"])],
            dict(os.environ),
            setsid=True,
        )
        os.waitpid(child, 0)
    return 1.0


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
    print(f"last words of {task.input['i']}", file=sys.stderr, flush=True)
    match task.input["by"]:
        case "exit":
            os._exit(7)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "memory":
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    return 0.0


def process_id(task: Task) -> float:
    return float(os.getpid())


_kept: dict[str, openai.AsyncOpenAI] = {}


async def keeping_its_client(task: Task) -> float:
    """Asks with a client that the process keeps from rollout to rollout."""
    client = _kept.setdefault("client", openai.AsyncOpenAI(api_key="none", max_retries=0))
    await _ask(client, "hello")
    return float(os.getpid())
