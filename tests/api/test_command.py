"""`agentlightning api` and `token`, as a person uses them: real processes over a real store."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from lightning_core.records.types import Status
from lightning_core.stores.sqlite import SqliteStore
from tests.api.conftest import RUN, good, rollout
from tests.build import agentlightning

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "lightning_core.cli"]
SECRET = "a secret of the servers of this house"


def said(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "40", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@contextmanager
def served(folder: Path, **environment: str) -> Iterator[str]:
    """The address of a server in a process of its own; it must end cleanly."""
    command = [*COMMAND, "api", "--store", "sqlite:///runs.db", "--listen", "127.0.0.1:0"]
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    with subprocess.Popen(command, cwd=folder, env=given, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        try:
            assert found, line + process.stderr.read()
            yield found[0]
        finally:
            process.send_signal(signal.SIGTERM)
            _, rest = process.communicate(timeout=60)
            assert process.returncode == 0, rest


async def test_a_token_made_by_the_command_opens_what_the_command_serves(tmp_path: Path) -> None:
    async with SqliteStore(f"sqlite:///{tmp_path}/runs.db") as store:
        await store.put_run(RUN)
        store_url = "sqlite:///runs.db"
        worker = said("token", "worker", "--store", store_url, "--run", "run", cwd=tmp_path)
        admin = said("token", "admin", "--hours", "1", cwd=tmp_path, LIGHTNING_API_SECRET=SECRET)
        assert (worker.returncode, admin.returncode) == (0, 0), worker.stderr + admin.stderr
        with served(tmp_path, LIGHTNING_API_SECRET=SECRET) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60) as web:
                head = {"authorization": f"Bearer {admin.stdout.strip()}"}
                body = {"rollouts": [rollout("a")]}
                assert good(await web.post("/rollouts", json=body, headers=head))["new"] == 1
                head = {"authorization": f"Bearer {worker.stdout.strip()}"}
                (lease,) = good(await web.post("/leases", json={"worker": "w"}, headers=head))["leases"]
                good(await web.post("/leases/finish", json={"key": lease["key"], "reward": 1}, headers=head))
        (done,) = await store.find_rollouts("run")
    assert done.status is Status.SUCCEEDED


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["token", "admin"], "LIGHTNING_API_SECRET"),
        (["token", "boss"], "worker, client, admin"),
        (["token", "admin", "--run", "run"], "--store"),
        (["token", "admin", "--run", "nobody's", "--store", "memory://"], "nobody's"),
        (["token", "admin", "--run", "r", "--store", "memory://", "--hours", "0"], "more than 0"),
        (["api", "--store", "mysql://x"], "mysql"),
        (["api", "--store", "memory://", "--listen", "no.such.host.invalid:1"], "the api can't listen"),
    ],
)
def test_what_can_not_be_done_is_one_message_that_says_why(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LIGHTNING_API_SECRET", raising=False)
    assert agentlightning(*arguments) == 1
    assert words in capsys.readouterr().err.replace("\n", " ")


def test_the_command_starts_without_the_web_framework() -> None:
    code = "import sys, lightning_core.cli.app; print('fastapi' in sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "False"
