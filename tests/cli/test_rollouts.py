"""`show --rollout` and `export`: what a person is told of one rollout, and what a collector is sent."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lightning_core.cli.choosing import PAGE, choose
from lightning_core.records.types import (
    Call,
    Choice,
    Credited,
    Reward,
    Rollout,
    Run,
    Span,
    Split,
    Task,
    ToolEvent,
)
from lightning_core.stores.sqlite import MemoryStore, SqliteStore
from lightning_core.trainer.folder import RunFolder
from tests.build import agentlightning
from tests.trackers.test_otlp import Received, receiving

Command = Callable[..., str]


def call(rollout: str, name: str, said: str, at: float, **fields: Any) -> Call:
    given: dict[str, Any] = {
        "agent": "writer",
        "trained": True,
        "request": {"messages": [{"role": "user", "content": f"question [of] {rollout}"}]},
        "prompt_ids": [1, 2, 3],
        "choices": [Choice(completion_ids=[4], message={"content": said})],
        **fields,
    }
    return Call(id=name, rollout_id=rollout, attempt=1, started_at=at, ended_at=at + 0.5, **given)


async def fill(store: SqliteStore) -> None:
    await store.put_run(Run(id="small"))
    rewards = {"small-t0-0-0": 0.5, "small-t0-0-1": -1.0, "small-t0-1-0": 1.0}
    rollouts = [
        Rollout(
            id=name,
            run_id="small",
            task=Task(id=f"task-{name[9]}[test]", input={}),
            group_id="g",
            step=int(name[7]),
        )
        for name in [*rewards, "small-t1-0-0"]
    ]
    await store.enqueue(rollouts)
    for attempt in await store.lease("w", 3, 60.0):
        name = attempt.rollout.id
        at: dict[str, Any] = {"rollout_id": name, "attempt": 1, "agent": "writer"}
        times: dict[str, Any] = {"started_at": 2.0, "ended_at": 2.25}
        asks = {"content": None, "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "{}"}}]}
        await store.add_call(call(name, "c1", "", 1.0, choices=[Choice(message=asks)], response_id="reply"))
        await store.add_call(call(name, "c2", "the answer", 3.0, agent="judge", endpoint="https://host/v1"))
        searching = {"input": "hi", "tools": [{"type": "web_search"}]}
        await store.add_call(
            call(name, "c3", "", 4.0, status="failed", error="out of memory", trained=False).model_copy(
                update={"dialect": "responses", "request": searching}
            )
        )
        left_out = Choice(completion_ids=[4], message={"content": "so"}, left_out="it has a penalty")
        await store.add_call(call(name, "c4", "", 5.0, choices=[left_out]))
        await store.add_call(call(name, "c5", "", 6.0, choices=[], status="refused", error="no such option"))
        await store.add_events(
            [
                ToolEvent(
                    **at, id="t", name="f", arguments="{}", tool_call_id="x", error="no table", **times
                ),
                Span(
                    **at, id="1" * 16, trace_id="2" * 32, name="openai.chat", error="broke", **times
                ).model_copy(update={"attributes": {"gen_ai.response.id": "reply"}}),
            ]
        )
        await store.add_rewards(
            [
                Reward(
                    rollout_id=name,
                    attempt=1,
                    value=-0.1,
                    kind="intermediate",
                    call_id="c1",
                    source="air",
                    reason="the tool raised",
                )
            ]
        )
        await store.finish(attempt, reward=rewards[name])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four rollouts, one of which has not begun."""
    path = tmp_path_factory.mktemp("runs") / "small"

    async def write() -> None:
        with RunFolder(path, resume=False) as folder:
            folder.write_address(None)
            async with SqliteStore(folder.store_url) as store:
                await fill(store)

    asyncio.run(write())
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command; what it printed, and for a failure what it complained of."""
    monkeypatch.setenv("COLUMNS", "160")

    def command(*arguments: object, fails: bool = False) -> str:
        status = agentlightning(*arguments)
        said = capsys.readouterr()
        assert bool(status) is fails, said.err
        return said.err if fails else said.out + said.err

    return command


def test_a_rollout_is_shown_as_a_tree(run: Path, command: Command) -> None:
    shown = command("show", run, "--rollout", "small-t0-0-0")
    lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    assert lines[0].startswith(
        "rollout small-t0-0-0  task task-0[test], train, step 1: succeeded, reward +0.500"
    )
    assert "1 of 5 LLM calls were refused, the first, of agent 'writer', with: no such option" in lines[1]
    marks = [
        "writer  3 → 0 tokens, 0.50 s",
        "question [of] small-t0-0-0 → f({})",
        "f({})  0.25 s  failed: no table",
        "span openai.chat, agent writer  0.25 s  failed: broke",
        "intermediate reward -0.100  by air: the tool raised",
        "judge  3 → 1 tokens, 0.50 s  seen only, answered by https://host/v1",
        "→ the answer",
        "not trained  failed: out of memory",
        "left out of training: it has a penalty",
        "refused: no such option",
        "final reward +0.500  by app",
    ]
    assert "failed: out of memory  hosted, not offered: web_search" in shown
    places = [next(place for place, line in enumerate(lines) if mark in line) for mark in marks]
    assert places == sorted(places)
    depth = {mark: lines[place].index(mark[:4]) for mark, place in zip(marks, places, strict=True)}
    assert depth[marks[2]] == depth[marks[3]] == depth[marks[4]] > depth[marks[0]]
    assert depth[marks[-1]] == depth[marks[5]] == depth[marks[0]]


@pytest.mark.parametrize(
    ("which", "shown"),
    [
        ("best", "small-t0-1-0"),
        ("worst", "small-t0-0-1"),
        ("small-t0-1", "small-t0-1-0"),
        ("1-0-0", "small-t1-0-0"),
    ],
)
def test_a_rollout_is_found_by_words_and_by_part_of_its_id(
    run: Path, command: Command, which: str, shown: str
) -> None:
    assert command("show", run, "--rollout", which).startswith(f"rollout {shown} ")


async def test_best_and_worst_are_of_those_that_were_trained_on() -> None:
    given: dict[str, tuple[Split, float]] = {
        "low": ("validation", -9.0),
        "high": ("validation", 9.0),
        "a": ("train", 0.0),
        "b": ("train", 1.0),
        "c": ("train", 1.0),
        "d": ("train", 0.0),
    }
    task = Task(input={})

    async def ends(store: MemoryStore) -> list[str]:
        return [(await choose(store, "r", which)).id for which in ("worst", "best")]

    async with MemoryStore() as store:
        for name, (split, reward) in given.items():
            await store.enqueue([Rollout(id=name, run_id="r", task=task, group_id="g", step=0, split=split)])
            (attempt,) = await store.lease("w", 1, 60.0)
            await store.finish(attempt, reward=reward)
            if name == "high":
                assert await ends(store) == ["low", "high"], "nothing was trained on"
        assert await ends(store) == ["a", "c"], "of equals the oldest is worst, the newest best"
        credited = Credited(rollout_id="b", attempt=1, call_id="c", advantage=0.5)
        await store.add_credited([credited])
        assert await ends(store) == ["b", "b"], "it has an advantage"


def test_the_rollouts_of_a_task_are_listed_and_the_best_of_them_shown(run: Path, command: Command) -> None:
    listed = command("show", run, "--where", "task=task-0")
    assert "3 rollouts: task=task-0, " in listed
    assert " task-0[test] " in listed
    assert "small-t0-0-1" in listed
    assert "small-t0-1-0" not in listed
    assert command("show", run, "--where", "task=task-0", "--rollout", "best").startswith(
        "rollout small-t0-0-0 "
    )


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose two rollouts ended without a reward and were judged afterwards."""
    path = tmp_path_factory.mktemp("runs") / "judged"

    async def write() -> None:
        with RunFolder(path, resume=False) as folder:
            folder.write_address(None)
            async with SqliteStore(folder.store_url) as store:
                given = {"judged-t0-0-0": 0.25, "judged-t0-0-1": 0.75}
                task = Task(id="task", input={})
                asked = [Rollout(id=name, run_id="judged", task=task, group_id="g", step=0) for name in given]
                await store.enqueue(asked)
                for attempt in await store.lease("w", 2, 60.0):
                    name = attempt.rollout.id
                    own = Reward(rollout_id=name, attempt=1, value=0.5, agent="writer")
                    await store.add_rewards([own])
                    await store.finish(attempt)
                    score = {"value": given[name], "source": "judge", "reason": "well said"}
                    await store.add_rewards([Reward(rollout_id=name, attempt=1, **score)])

    asyncio.run(write())
    return path


def test_a_judge_s_score_is_shown_as_the_rollout_s_reward(judged: Path, command: Command) -> None:
    listed = command("show", judged)
    assert " 0.25 " in listed
    assert " 0.75 " in listed
    shown = command("show", judged, "--rollout", "best")
    assert shown.startswith("rollout judged-t0-0-1 ")
    assert "succeeded, reward +0.750" in shown
    assert "final reward +0.500 of writer  by app" in shown
    assert "final reward +0.750  by judge: well said" in shown


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (["step=2"], ["small-t1-0-0"]),
        (["step=1", "task=task-1"], ["small-t0-1-0"]),
        (["status=queued"], ["small-t1-0-0"]),
        (["agent=jud*", "split=train"], ["small-t0-0-0", "small-t0-0-1", "small-t0-1-0"]),
    ],
)
def test_rollouts_are_listed_by_step_split_agent_and_status(
    run: Path, command: Command, where: list[str], found: list[str]
) -> None:
    listed = command("show", run, *(part for each in where for part in ("--where", each)))
    assert [line.split()[0] for line in listed.splitlines() if line.strip().startswith("small-")] == found


def test_full_shortens_nothing(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(run, tmp_path / "small")

    async def write() -> None:
        async with SqliteStore(RunFolder(run, resume=True).store_url) as store:
            await store.add_call(call("small-t0-1-0", "c9", "long " * 40, 9.0))

    asyncio.run(write())
    assert "…" in command("show", run, "--rollout", "best")
    assert "…" not in command("show", run, "--rollout", "best", "--full")
    monkeypatch.setenv("COLUMNS", "60")
    assert "small-t0-0-1" in command("show", run, "--full"), "ids are whole on a narrow terminal"


def test_a_run_is_one_line_of_80_characters(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["20260101-120000", "20260101-120001"]
    for name in names:
        shutil.copytree(run, tmp_path / name)
    monkeypatch.setenv("COLUMNS", "80")
    title, header, _, *lines = command("runs", tmp_path).splitlines()
    assert title.startswith(f"runs in {tmp_path}, model ")
    assert header.split() == ["run", "status", "steps", "reward", "disk", "age"]
    assert sorted(line.split()[0] for line in lines[:2]) == names
    assert all(len(line) <= 80 for line in lines[:2])


def test_rollouts_of_a_condition_fit_80_columns(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = command("show", run, "--where", "agent=writer").splitlines()
    assert ["rollout", "reward", "task"] in [line.split() for line in shown]
    assert "small-t0-0-1" in {word for line in shown for word in line.split()}
    assert all(len(line) <= 80 for line in shown)


def test_show_says_which_rollouts_there_are(run: Path, command: Command) -> None:
    shown = command("show", run)
    assert "the newest 3 of 3" in shown, "one has not begun"
    assert "small-t1-0-0" not in shown
    assert " task-1[test] " in shown
    assert "small-t0-0-1" in shown
    assert f"agentlightning show {run} --rollout ID" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rollout", "small-t0"], "fits several rollouts: 'small-t0-0-0', 'small-t0-0-1', 'small-t0-1-0'"),
        (["--rollout", "nothing"], "no rollout has the id 'nothing', or one that begins or ends so"),
        (["--rollout", "nothing"], "give 'best', 'worst', 'failed' or an id: 'small-t0-0-0', "),
        (["--rollout", ""], "no rollout has the id ''"),
        (
            ["--where", "agent=stranger"],
            "no call of 'stranger' in these rollouts; agents seen: judge, writer",
        ),
        (
            ["--where", "step=1", "--where", "status=queued"],
            "none of the 4 rollouts fits step=1 status=queued",
        ),
        (["--rollout", "failed"], "none of these 4 rollouts has failed"),
        (["--where", "split=test"], "give 'train' or 'validation'"),
        (["--where", "status=lost"], "give one of queued, "),
        (["--where", "step=last"], "give a whole number"),
        (["--where", "reward=1"], "it is none of task, step, split, agent and status"),
        (["--where", "=1"], "give task, step, split, agent, status or a field"),
        (["--where", "task=other"], "no task has the id 'other'"),
        (["--where", "task=other"], "give an id: 'task-0[test]', 'task-1[test]'"),
    ],
)
def test_what_is_not_there_is_an_error_with_what_is(
    run: Path, command: Command, arguments: list[str], words: str
) -> None:
    assert words in command("show", run, *arguments, fails=True)


@pytest.fixture
def collector() -> Any:
    with receiving() as server:
        yield server


def test_every_rollout_of_a_run_is_exported(run: Path, command: Command, collector: Received) -> None:
    said = command("sync", run, collector.url)
    assert f"sent 24 spans of 3 rollouts to {collector.url}/v1/traces" in said
    assert {name for name in collector.spans() if name.startswith("rollout")} == {
        "rollout small-t0-0-0",
        "rollout small-t0-0-1",
        "rollout small-t0-1-0",
    }


def test_a_collector_s_password_is_not_shown(run: Path, command: Command, collector: Received) -> None:
    secret = collector.url.replace("//", "//user:s3cret@")
    said = command("sync", run, secret)
    assert f"3 rollouts to {collector.url}/v1/traces" in said
    assert "s3cret" not in said


def test_a_collector_that_is_not_there_is_one_message(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with receiving() as gone:
        url = gone.url
    said = command("sync", run, url, fails=True)
    assert f"the collector at {url}/v1/traces can't be reached" in said.replace("\n", " ")
    assert "Traceback" not in said
    assert "not the URL" in command("sync", run, "ftp://nowhere", fails=True)


@asynccontextmanager
async def new_run(path: Path) -> AsyncIterator[SqliteStore]:
    """The store of a new run's folder."""
    with RunFolder(path, resume=False) as folder:
        folder.write_address(None)
        async with SqliteStore(folder.store_url) as store:
            yield store


def test_show_reads_no_more_rollouts_of_a_long_run_than_it_lists(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write() -> None:
        async with new_run(tmp_path / "long") as store:
            task = Task(id="task", input={})
            asked = [
                Rollout(id=f"long-t{n}", run_id="long", task=task, group_id="g", step=n) for n in range(500)
            ]
            await store.enqueue(asked)
            await store.lease("w", 400, 60.0)

    asyncio.run(write())
    read: list[int] = []
    find = SqliteStore.find_rollouts

    async def counted(store: SqliteStore, *arguments: Any, **options: Any) -> list[Rollout]:
        found = await find(store, *arguments, **options)
        read.append(len(found))
        return found

    monkeypatch.setattr(SqliteStore, "find_rollouts", counted)
    shown = command("show", tmp_path / "long")
    assert "the newest 8 of 400" in shown
    assert "long-t399" in shown
    assert "long-t391" not in shown
    assert sum(read) == 8


def test_a_condition_and_a_word_read_a_long_run_page_by_page(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run has 1,000 rollouts with a call each. A question reads one page of them, and their calls alone."""

    async def write() -> None:
        async with new_run(tmp_path / "long") as store:
            task = Task(id="task", input={})
            names = [f"long-t{n}" for n in range(1_000)]
            asked = [
                Rollout(id=name, run_id="long", task=task, group_id="g", step=n // 10)
                for n, name in enumerate(names)
            ]
            await store.enqueue(asked)
            for n, attempt in enumerate(await store.lease("w", 1_000, 60.0)):
                name = attempt.rollout.id
                await store.add_call(call(name, "c", "reply", 1.0))
                await store.finish(attempt, reward=n / 1_000)
            given = {"attempt": 1, "call_id": "c", "advantage": 1.0}
            await store.add_credited([Credited(rollout_id=name, **given) for name in names])

    asyncio.run(write())
    read = {"find_rollouts": 0, "get_calls": 0}

    def counting(name: str) -> None:
        method = getattr(SqliteStore, name)

        async def counted(store: SqliteStore, *arguments: Any, **options: Any) -> Any:
            found = await method(store, *arguments, **options)
            read[name] += len(found)
            return found

        monkeypatch.setattr(SqliteStore, name, counted)

    for name in read:
        counting(name)
    listed = command("show", tmp_path / "long", "--where", "agent=writer")
    assert "the newest 40 rollouts (all with --full): agent=writer" in listed
    assert "long-t999" in listed
    assert "long-t959" not in listed
    assert read["get_calls"] == read["find_rollouts"] == PAGE
    read.update(find_rollouts=0, get_calls=0)
    assert command("show", tmp_path / "long", "--rollout", "worst").startswith("rollout long-t0 ")
    assert command("show", tmp_path / "long", "--rollout", "best").startswith("rollout long-t999 ")
    assert read["find_rollouts"] == 2 * PAGE
    read.update(find_rollouts=0, get_calls=0)
    assert "10 rollouts: step=7" in command("show", tmp_path / "long", "--where", "step=7")
    assert read == {"find_rollouts": 10, "get_calls": 0}
