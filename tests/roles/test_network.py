"""A worker on a machine of its own, whose link is cut while it works."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.link import Link, link
from tests.roles.run_processes import RunProcesses
from tests.stores.postgres_server import PostgresServer

CUT_SECONDS = 6
"""Longer than an impatient client waits, shorter than anybody gives up."""


@pytest.fixture
def machine() -> Iterator[Link]:
    """A machine apart, or the reason why there can be none."""
    try:
        opened = link()
        made = opened.__enter__()
    except OSError as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    yield made
    opened.__exit__(None, None, None)


@pytest.fixture
def server(machine: Link) -> Iterator[PostgresServer]:
    """A database that both machines reach."""
    with tempfile.TemporaryDirectory(prefix="lightning-postgres-") as name:  # its user must get there
        folder = Path(name)
        folder.chmod(0o755)
        made = PostgresServer(folder, listen_addresses=f"127.0.0.1,{machine.here}")
        with (folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {machine.here}/24 trust\n")
        made.start()
        try:
            yield made
        finally:
            made.stop()


def test_a_wire_that_is_cut_for_a_while_loses_no_rollout(
    tmp_path: Path, machine: Link, server: PostgresServer
) -> None:
    machine.slow_down()  # where the kernel can
    store = server.url().replace("127.0.0.1", machine.here)
    with RunProcesses(tmp_path, store) as run:
        worker = run.work("apart", before=machine.there, NO_PROXY=machine.here)
        trainer = run.train("--set", "remote=runner", "--set", f"listen={machine.here}:0", "--steps", 2)
        run.until(lambda: len(run.seen) > 6, worker, trainer)
        machine.cut()
        time.sleep(CUT_SECONDS)
        machine.mend()
        assert [process.wait() for process in (trainer, worker)] == [0, 0], run.said()
        run.check(2)
