"""Programs in place of a function: what they are told, what they say, and that nothing of them is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_core.errors import ConfigError
from lightning_core.records.types import Rollout, Span, Status
from lightning_core.runner.program import Command
from lightning_core.runner.runner import prepare
from tests.gateway.scripted import until
from tests.runner.served import ServedRunner, lives, rollouts, serve_runner, written


def python(code: str, **options: Any) -> Command:
    """A program that starts fast."""
    return Command([sys.executable, "-I", "-S", "-c", code], **options)


def shell(code: str, **options: Any) -> Command:
    return Command(["sh", "-c", code], **options)


async def play(command: Command, count: int = 1, **given: Any) -> tuple[Rollout, Span]:
    """The last rollout, and what is stored of its program."""
    async with serve_runner(None, command) as at:
        finished = await at.play(rollouts("program", count, **given))
        return finished[-1], await span_of(at, finished[-1])


async def span_of(at: ServedRunner, rollout: Rollout) -> Span:
    (span,) = (await at.store.get_events([rollout.id]))[rollout.id]
    assert isinstance(span, Span)
    return span


# what it is told, and what it says ------------------------------------------------------------
@pytest.mark.parametrize(
    ("printed", "reward"),
    [("0.5", 0.5), ("true", 1.0), ('thinking\\n{"reward": -1, "why": "late"}\\n\\n', -1.0), ("1\\n2", 2.0)],
)
async def test_the_last_line_is_the_reward(printed: str, reward: float) -> None:
    done, span = await play(shell(f"printf '{printed}'"))
    assert (done.status, done.reward, done.error) == (Status.SUCCEEDED, reward, None)
    assert span.error is None
    assert span.name == "sh"


async def test_the_task_is_on_its_input_and_in_its_environment() -> None:
    code = """
import json, os, sys
read, told = json.load(sys.stdin), json.loads(os.environ["LIGHTNING_TASK"])
assert read == told and read["id"] and read["split"] == "train", (read, told)
print(read["input"]["worth"])
"""
    done, _ = await play(python(code), worth=0.25)
    assert (done.reward, done.error) == (0.25, None)


async def test_a_task_too_large_for_the_environment_is_on_its_input_alone() -> None:
    code = """
import json, os, sys
print(len(json.load(sys.stdin)["input"]["text"]) * ("LIGHTNING_TASK" not in os.environ))
"""
    done, _ = await play(python(code), text="é" * 300_000)
    assert done.reward == 300_000


async def test_a_program_need_not_read_its_task() -> None:
    done, _ = await play(shell("echo 1"), text="x" * 300_000)
    assert done.reward == 1.0


CALLER = """
import json, os, sys, urllib.request

def post(url, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return json.load(opener.open(urllib.request.Request(url, json.dumps(body).encode(), headers)))

number = json.load(sys.stdin)["input"]["i"]
for turn in range(2):
    messages = [{"role": "user", "content": f"{number} {turn}"}]
    post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"model": "any", "messages": messages})
post(os.environ["LIGHTNING_REWARD_URL"], {"value": number / 10})
print("done")
"""


@pytest.mark.parametrize("workers", [None, 2])
async def test_calls_and_rewards_of_programs_side_by_side_are_each_its_own(workers: int | None) -> None:
    async with serve_runner(workers, python(CALLER, agent="writer")) as at:
        finished = await at.play(rollouts("program", 6))
        calls = await at.store.get_calls([one.id for one in finished])
    assert [(one.reward, one.error) for one in finished] == [(i / 10, None) for i in range(6)]
    for number, one in enumerate(finished):
        said: list[Any] = [call.request["messages"] for call in calls[one.id]]
        assert [messages[0]["content"] for messages in said] == [f"{number} 0", f"{number} 1"]
        assert {(call.agent, call.trained) for call in calls[one.id]} == {("writer", True)}


async def test_without_a_reward_the_error_says_how_to_give_one() -> None:
    failed, span = await play(shell("echo all is well"))
    assert "as the last line, or post one to LIGHTNING_REWARD_URL" in str(failed.error)
    assert span.attributes["process.stdout"] == "all is well"


async def test_a_reward_that_is_no_number_is_an_error_that_shows_it() -> None:
    failed, _ = await play(shell("""echo '{"reward": "high"}'"""))
    assert "'high', not a finite number" in str(failed.error)


async def test_the_run_of_a_program_is_stored_without_the_keys_on_its_command_line() -> None:
    program = Command(["sh", "-c", "echo 1", "--api-key", "sk-1", "postgresql://me:sk-2@h/d", "--steps", "3"])
    _, span = await play(program)
    assert span.attributes["process.command_args"] == [
        *("sh", "-c", "echo 1", "--api-key", "***", "postgresql://***@h/d", "--steps", "3")
    ]


async def test_a_program_that_is_given_no_task_sees_its_arguments_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_TASK", "of a program around this one")
    monkeypatch.setenv("PWD", "/elsewhere")
    told = ["sh", "-c", 'echo "$LIGHTNING_TASK $(cat) $PWD" >&2; echo 1']
    _, span = await play(Command(told, folder=tmp_path, pass_task=False))
    assert str(span.attributes["process.stderr"]).split() == [str(tmp_path)]


# failing --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "end"),
    [("exit 3", "ended with exit code 3"), ("kill -SEGV $$", "was killed by signal 11 (SIGSEGV)")],
)
async def test_a_program_that_fails_is_an_error_with_its_last_words(code: str, end: str) -> None:
    failed, span = await play(shell(f"echo 1; echo no such table >&2; {code}"))
    assert f"program 'sh' {end}" in str(failed.error)
    assert str(failed.error).endswith("its stderr ends:\nno such table")
    assert (span.error, span.attributes["process.stdout"]) == (end, "1")


async def test_output_is_read_all_the_time_and_its_end_is_kept() -> None:
    code = "import sys; sys.stdout.write('a' * 20_000_000 + '\\n0.5\\n'); sys.stderr.write('b' * 5_000_000)"
    done, span = await play(python(code))
    assert done.reward == 0.5
    assert len(str(span.attributes["process.stderr"])) == 8_000
    assert str(span.attributes["process.stdout"]).endswith("aaa\n0.5")


async def test_what_a_program_leaves_running_ends_with_it(tmp_path: Path) -> None:
    child = f"setsid sh -c 'echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 600'"
    done, _ = await play(shell(f"({child} &); while [ ! -e {tmp_path}/pid ]; do sleep 0.01; done; echo 1"))
    assert done.reward == 1.0
    assert not lives(written(tmp_path / "pid"))


# hanging --------------------------------------------------------------------------------------
HANGING = """
import json, os, signal, subprocess, sys, time
task = json.load(sys.stdin)["input"]
if task.get("began"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("I hang", flush=True)
    code = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with open(task["began"] + ".new", "w") as file:
        json.dump([os.getpid(), int(child.stdout.readline())], file)
    os.rename(task["began"] + ".new", task["began"])
    time.sleep(600)
print(task["i"])
"""


async def pids(path: Path) -> list[int]:
    """Returns the ids of a hanging program and of the process it has started, which ignores SIGTERM as
    well."""
    await until(path.exists, seconds=60)
    return read_pids(path)


def read_pids(path: Path) -> list[int]:
    return list(json.loads(path.read_text()))


@pytest.mark.parametrize("workers", [None, 1])
async def test_a_program_that_ignores_sigterm_is_ended_at_its_time_out_and_its_slot_serves_the_next(
    workers: int | None, tmp_path: Path
) -> None:
    command = python(HANGING)
    async with serve_runner(workers, command, concurrency=1, timeout=5) as at:
        (late,) = await at.play(rollouts("program", 1, began=str(tmp_path / "began")))
        ended = await pids(tmp_path / "began")
        assert not any(lives(pid) for pid in ended)
        at.runner.timeout = None
        after = await at.play(rollouts("program", 2))
        if workers is None:
            span = await span_of(at, late)
            assert (span.error, span.attributes["process.stdout"]) == ("ended by its runner", "I hang")
    assert late.error == f"TimeoutError: task {late.task.id!r} took longer than 5 s and was cancelled"
    assert [one.reward for one in after] == [0.0, 1.0]


async def test_a_cancelled_program_ends_within_a_moment_and_its_slot_serves_the_next(tmp_path: Path) -> None:
    command = python(HANGING)
    async with serve_runner(None, command, concurrency=1, timeout=None, lease_seconds=600) as at:
        (hanging,) = rollouts("program", 1, began=str(tmp_path / "began"))
        await at.store.enqueue([hanging])
        ended = await pids(tmp_path / "began")
        assert await at.store.cancel([hanging.id]) == 1
        after = await at.play(rollouts("program", 2))
        assert not any(lives(pid) for pid in ended)
    assert [one.reward for one in after] == [0.0, 1.0]


# what is refused at the start -----------------------------------------------------------------
def test_a_program_that_is_not_there_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="there is no program 'no-such-program'"):
        prepare(Command(["no-such-program"]), None)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Command("ls -l"), "give a list"),
        (lambda: Command([]), "give a list"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()
