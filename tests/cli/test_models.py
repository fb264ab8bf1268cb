"""`agentlightning models`, as a person uses it, on a run with weights and a prompt."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lightning_core.backends.weights.sources import tiny_folder
from lightning_core.cli.rollouts import open_run
from lightning_core.cli.serving import print_token
from lightning_core.console.shelf import Shelf
from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.records.types import ResourceVersion, Run
from lightning_core.stores.base import get_run
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.stores.versions import put_prompt
from lightning_core.trainer.roles.gateway import serving_run
from tests.build import agentlightning

Command = Callable[..., str]
MOVED = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with versions 0 to 3, of which 1 has no content any more."""
    folder = tmp_path / "run"
    asyncio.run(fill(folder))
    (folder / "run.json").write_text('{"run": "run", "store": null}')
    return folder


async def fill(folder: Path) -> None:
    trained = folder / "checkpoints" / "step-000002"
    shutil.copytree(tiny_folder(), trained / "model")
    weights = load_file(trained / "model" / "model.safetensors")
    weights[MOVED] = weights[MOVED] * 1.5
    save_file(weights, trained / "model" / "model.safetensors", {"format": "pt"})
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        await store.put_run(Run(id="run", config={"model": "tiny"}))
        for number, uri, metrics in (
            (0, "tiny", {"greedy": 0.25}),
            (1, None, {"greedy": 0.125, "reward": 0.5}),
            (2, str(trained), {"greedy": 0.75, "step": 2.0}),
        ):
            await store.put_resource(
                ResourceVersion(
                    run_id="run",
                    version=number,
                    uri=uri,
                    parent=number - 1 if number else None,
                    metrics=metrics,
                    chosen_at=1e9 + number,
                )
            )
        await put_prompt(store, "run", "system", "Answer.\nBe brief.", author="ann")
        await put_prompt(store, "run", "system", "Answer.\nBe kind.", author="bob", parent=0)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`agentlightning models …`; what it printed."""

    def call(*arguments: object, fails: bool = False) -> str:
        monkeypatch.setenv("COLUMNS", "140")
        status = agentlightning("models", *arguments)
        said = capsys.readouterr()
        assert bool(status) == fails, said.err
        return " ".join((said.err if fails else said.out).split())

    return call


def test_the_list_says_what_is_current_what_it_came_to_and_what_is_gone(run: Path, command: Command) -> None:
    said = command("list", run)
    assert re.search(r"│ │ 0 │ │ │ 0.25 │ tiny │", said), said
    assert re.search(r"│ │ 1 │ │ 0.5 │ 0.125 │ deleted │", said), said
    assert re.search(r"● │ 2 │ 2 │ │ 0.75 │ 6.0 MB │", said), said
    prompts = command("--name", "system", "list", run)  # app and bob have written them
    assert re.search(r"● │ 1 │ bob │ 16 characters", prompts), prompts


def test_the_list_fits_80_columns(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    agentlightning("models", "list", run)
    shown = capsys.readouterr().out.splitlines()
    names = ["version", "step", "reward", "greedy", "size", "age"]
    assert names in [re.findall(r"\w+", line) for line in shown]
    assert all(len(line) <= 80 for line in shown)


def test_a_rollback_is_recorded_with_its_author_and_undone_like_it_was_done(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    assert "version 0 of policy is the current one, 2 was before" in command("rollback", run, 0)
    said = command("list", run)
    assert "● │ 0" in said
    assert "ann chose version 0 in place of 2" in said
    monkeypatch.setenv("LOGNAME", "bob")
    command("rollback", run, 2)
    assert "bob chose version 2 in place of 0" in command("list", run)


def test_a_user_without_a_name_rolls_back_as_a_number(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)  # as in a container that runs as any user
    command("rollback", run, 0)
    assert f"user {os.getuid()} chose version 0" in command("list", run)


def test_going_back_to_what_was_deleted_is_refused_with_what_is_there(run: Path, command: Command) -> None:
    assert "content of version 1 was deleted to save space; there are: 0, 2" in command(
        "rollback", run, 1, fails=True
    )
    assert "there is no version 7; there are: 0, 2" in command("rollback", run, 7, fails=True)
    assert "● │ 2" in command("list", run)


def test_a_comparison_shows_the_numbers_and_the_tensors_that_moved(run: Path, command: Command) -> None:
    said = command("diff", run, 0, 2)
    assert "greedy │ 0.25 │ 0.75 │ +0.5" in said
    first = said.index(MOVED)
    assert "50.000%" in said[first : first + 80]
    assert re.search(r"(\d+) tensors, (\d+) of them the same", said)
    count, same = map(int, re.findall(r"(\d+) tensors, (\d+) of them the same", said)[0])
    assert count - same == 1


def test_two_prompts_are_compared_line_by_line(run: Path, command: Command) -> None:
    said = command("--name", "system", "diff", run, 0, 1)
    assert "-Be brief. +Be kind." in said
    assert "-Answer." not in said


def test_what_is_exported_is_loaded_by_transformers(run: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out [red]"
    assert "out [red]" in command("export", run, 2, out)
    state = AutoModelForCausalLM.from_pretrained(out).state_dict()
    start = AutoModelForCausalLM.from_pretrained(tiny_folder()).state_dict()
    assert (state[MOVED] / start[MOVED]).nanmean().item() == pytest.approx(1.5, rel=1e-3)
    assert "is not empty, and nothing is overwritten" in command("export", run, 0, out, fails=True)
    command("--name", "system", "export", run, 1, tmp_path / "prompt")
    assert (tmp_path / "prompt" / "system.txt").read_text() == "Answer.\nBe kind."


def test_a_run_whose_folder_was_moved_is_exported_compared_and_served(run: Path, command: Command) -> None:
    renamed = run.rename(run.with_name("renamed"))
    out = run.with_name("out")
    command("export", renamed, 2, out)
    assert AutoModelForCausalLM.from_pretrained(out)
    assert "50.000%" in command("diff", renamed, 0, 2)

    async def serve() -> None:
        async with open_run(renamed) as (store, run_id):
            async with serving_run(store, await get_run(store, run_id), load_plugins(), version=2):
                pass
            [*_, last] = await store.list_resources(run_id)
        assert last.uri == str(renamed / "checkpoints" / "step-000002")
        async with Shelf(str(renamed), load_plugins()) as shelf:
            seen = await (await shelf.read(await shelf.get("renamed"))).list_resources(run_id)
        assert seen[-1] == last
        async with SqliteStore(f"sqlite:///{renamed / 'store.db'}") as store:
            [*_, last] = await store.list_resources(run_id)
        assert last.uri == str(run / "checkpoints" / "step-000002")

    asyncio.run(serve())


def test_a_run_is_found_in_its_store_as_well(run: Path, command: Command) -> None:
    url = f"sqlite:///{run / 'store.db'}"
    found, same = command("--store", url, "list", "run"), command("list", run)
    assert re.sub(r"│ \d+ \w+ │", "", found) == re.sub(r"│ \d+ \w+ │", "", same)
    assert "run 'other' has no weights in this store" in command("--store", url, "list", "other", fails=True)
    assert "no prompt 'user'" in command("--name", "user", "list", run, fails=True)


def test_a_store_that_is_not_there_is_not_made(command: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mistyped.db'}"
    assert "there is no store" in command("--store", url, "list", "run", fails=True)
    with pytest.raises(ConfigError, match="there is no store"):
        asyncio.run(print_token(url, "run", "worker", 1.0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["rollback", "export", "diff"])
def test_a_version_is_named_by_digits_of_ascii(
    run: Path, command: Command, tmp_path: Path, verb: str
) -> None:
    more = {"rollback": [], "export": [str(tmp_path / "out")], "diff": ["0"]}[verb]
    for asked in ("٠", "1_0", "+1"):
        said = command(verb, run, asked, *more, fails=True)
        assert "is not the number of a version" in said
