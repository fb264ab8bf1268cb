"""A verb's module is imported when the verb runs; the list of verbs needs none of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core import __version__
from lightning_core.cli.app import VERBS, Verb
from lightning_core.records.types import ResourceVersion, Run
from lightning_core.stores.sqlite import SqliteStore
from tests.build import agentlightning

TRAINING = ("torch", "transformers", "ray", "openai", "matplotlib", "tensorboard", "wandb", "mlflow", "vllm")
SERVING = ("starlette", "uvicorn", "fastapi", "httpx", "aiohttp", "jinja2", "lightning_core.console.server")
STORED = ("sqlite3", "psycopg", "redis", "numpy", "pydantic", "asyncio", "lightning_core.records")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run whose weights have one version."""
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    asyncio.run(fill(folder))
    (folder / "run.json").write_text('{"run": "first", "store": null}')
    return folder


async def fill(folder: Path) -> None:
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        await store.put_run(Run(id="first", config={"model": "tiny"}))
        await store.put_resource(
            ResourceVersion(run_id="first", version=0, uri="tiny", metrics={"greedy": 0.25})
        )


@pytest.mark.parametrize(
    ("arguments", "shown", "unused"),
    [
        (["--help"], "whatif", TRAINING + SERVING + STORED),
        (["--version"], __version__, TRAINING + SERVING + STORED),
        (["runs", "--help"], "prune", TRAINING + SERVING),
        (["runs", "{folder}"], "first", TRAINING + SERVING),
        (["models", "list", "{run}"], "0.25", TRAINING + SERVING),
    ],
    ids=" ".join,
)
def test_a_verb_imports_nothing_that_it_does_not_need(
    arguments: list[str], shown: str, unused: tuple[str, ...], run: Path
) -> None:
    said = [each.format(folder=run.parent, run=run) for each in arguments]
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('USED', [name for name in {unused!r} if name in sys.modules]))\n"
        f"sys.argv = ['agentlightning', *{said!r}]\n"
        "from lightning_core.cli import main\n"
        "main()\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "140"},
    ).stdout
    before, _, used = printed.rpartition("USED")
    assert used.strip() == "[]"
    assert shown in before


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: str(verb.name))
def test_the_list_says_what_the_verb_s_own_help_begins_with(verb: Verb) -> None:
    assert verb.help == verb.load().help.partition("\n\n")[0]


def test_a_flag_is_not_shown_as_if_it_took_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentlightning("train", "--help") == 0
    shown = [
        line for line in capsys.readouterr().out.splitlines() if "--resume " in line or "--dry-run " in line
    ]
    assert len([line for line in shown if line.startswith("│")]) == 2
    assert "<bool>" not in "".join(shown)
