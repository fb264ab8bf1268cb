"""Others' texts on a terminal: what is printed of a run whose every text is hostile."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.records.types import (
    Alert,
    Call,
    Choice,
    Member,
    Metrics,
    ResourceVersion,
    Reward,
    Rollout,
    Run,
    Span,
    Status,
    Task,
    ToolEvent,
)
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.texts.terminal import Terminal, shown
from lightning_core.trainer.display import Display
from lightning_core.trainer.folder import RunFolder
from tests.build import agentlightning

EVIL = "\x1b]0;title\x07\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31m\u202etxt[bold]→"
"""Title, clear, clipboard, a C1 sequence, a change of direction; then markup and an arrow."""
SENT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
VERBS = (
    ("runs", "{runs}"),
    ("show", "{run}"),
    ("show", "{run}", "--full"),
    ("show", "{run}", "--where", "status=failed"),
    ("show", "{run}", "--rollout", "worst", "--full"),
    ("why", "{run}"),
    ("alerts", "{run}"),
    ("models", "list", "{run}"),
    ("models", "--name", "system", "diff", "{run}", "0", "1"),
    ("runs", "prune", "{run}"),
)


async def fill(store: SqliteStore, name: str) -> None:
    origin: dict[str, Any] = {"script": EVIL, "command": [EVIL], "machine": {"host": EVIL}, "seed": EVIL}
    await store.put_run(
        Run(id=name, config={"model": EVIL, "ended": EVIL}, provenance=origin, status="failed")
    )
    await store.put_member(Member(run_id=name, role="runner", name=EVIL, url=EVIL, data={"host": EVIL}))
    await store.add_alerts([Alert(run_id=name, id="a", rule=EVIL, message=EVIL)])
    await store.put_metrics(Metrics(run_id=name, step=0, values={"reward": 0.5, "air/evil": 1.0}))
    for number in (0, 1):
        for kind, called in (("weights", "policy"), ("prompt", "system")):
            given: dict[str, Any] = {"kind": kind, "name": called, "uri": f"{EVIL}\n{number}", "author": EVIL}
            await store.put_resource(ResourceVersion(run_id=name, version=number, chosen_at=1.0, **given))
    rollouts = [
        Rollout(id=f"r{n}", run_id=name, task=Task(id=f"t{n}{EVIL}", input={"q": EVIL}), group_id="g", step=0)
        for n in range(2)
    ]
    await store.enqueue(rollouts)
    for attempt in await store.lease("w", 2, 60.0):
        rollout = attempt.rollout.id
        at: dict[str, Any] = {"rollout_id": rollout, "attempt": 1, "started_at": 1.0, "ended_at": 2.0}
        said = Choice(completion_ids=[4], message={"content": EVIL})
        request: dict[str, Any] = {"messages": [{"role": "user", "content": EVIL}]}
        await store.add_call(
            Call(id="c", agent=EVIL, trained=True, request=request, prompt_ids=[1], choices=[said], **at)
        )
        await store.add_events(
            [
                ToolEvent(id="t", agent=EVIL, name=EVIL, arguments=EVIL, error=EVIL, **at),
                Span(id="1" * 16, trace_id="2" * 32, agent=EVIL, name=EVIL, error=EVIL, **at),
            ]
        )
        await store.add_rewards(
            [Reward(rollout_id=rollout, attempt=1, value=1.0, kind="intermediate", source=EVIL, reason=EVIL)]
        )
        good = rollout == "r0"
        await store.finish(attempt, reward=0.5 if good else None, error=None if good else f"Boom: {EVIL}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "a\x1b[2Jb"

    async def write() -> None:
        with RunFolder(path, resume=False) as folder:
            folder.write_address(None)
            async with SqliteStore(folder.store_url) as store:
                await fill(store, folder.run_id)

    asyncio.run(write())
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, run: Path) -> Callable[..., str]:
    """Returns the output of a verb on both streams, which have an encoding."""
    monkeypatch.setenv("COLUMNS", "160")

    def call(verb: tuple[str, ...], encoding: str = "utf-8") -> str:
        words = [word.format(run=run, runs=run.parent) for word in verb]
        written = io.BytesIO()
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, io.TextIOWrapper(written, encoding, write_through=True))
        agentlightning(*words)
        return written.getvalue().decode(encoding)

    return call


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_control_character_of_a_stored_text_reaches_the_terminal(
    command: Callable[..., str], verb: tuple[str, ...]
) -> None:
    said = command(verb)
    assert SENT.search(said) is None
    assert "\u241b" in said, "the escape is shown"


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
@pytest.mark.parametrize("verb", [VERBS[0], VERBS[1], VERBS[8]], ids=" ".join)
def test_a_stream_that_lacks_a_character_gets_another(
    command: Callable[..., str], verb: tuple[str, ...], encoding: str
) -> None:
    said = command(verb, encoding)
    assert "Traceback" not in said
    assert "?" in said


def test_the_trainer_s_display_shows_control_characters_and_keeps_its_own() -> None:
    written = io.StringIO()
    console = Terminal(file=written, force_terminal=True, width=160)
    failed = Rollout(
        id=EVIL,
        run_id="a",
        task=Task(id=EVIL, input={}),
        group_id="g",
        step=0,
        status=Status.FAILED,
        error=f"Boom: {EVIL}",
    )
    with Display(enabled=True, steps=2, console=console) as display:
        display.start(Run(id="a"), [])
        display.collecting(EVIL, [failed])
        display.rollout_ended(failed)
        display.note(EVIL)
        display.alert(Alert(run_id="a", id="a", rule=EVIL, message=EVIL))
    said = written.getvalue()
    assert "\x1b[31m" in said
    assert "\u241b]52;c" in said
    for sequence in ("\x1b]0;", "\x1b[2J", "\x1b]52", "\x9b", "\u202e"):
        assert sequence not in said


def test_an_exception_of_a_script_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"raise ValueError({EVIL!r})\n")
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    agentlightning("train", script)
    assert SENT.search(written.getvalue()) is None
    assert "ValueError: \u241b]0;title" in written.getvalue()


def test_each_kind_of_control_character_has_its_sign() -> None:
    assert shown("a\x00\x1b\x7f\x9b\u202e\ud800\tb\nc") == "a\u2400\u241b\u2421\\x9b\\u202e\\ud800\tb\nc"
