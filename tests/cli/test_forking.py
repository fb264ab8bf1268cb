"""`agentlightning fork` on recorded rollouts of real apps, answered by the tiny model."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lightning_core.records.types import TRIED, Call, Rollout
from lightning_core.stores.sqlite import SqliteStore

SCRIPT = Path(__file__).parent / "forking_job.py"


@pytest.fixture
def counter() -> Iterator[str]:
    """The address of a server that counts its requests."""
    numbers = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"Visitor {next(numbers)}.".encode())

        def log_message(self, *told: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def read(run: Path) -> tuple[Rollout, list[Call], list[tuple[Rollout, list[Call]]]]:
    """The sampled rollout with its calls, and the forks with theirs."""
    async with SqliteStore(f"sqlite:///{run / 'store.db'}") as store:
        (recorded,) = (one for one in await store.find_rollouts(run.name) if one.sampling.temperature)
        trials = [one.id for one in await store.list_runs() if one.config.get(TRIED) == run.name]
        forks = [one for trial in trials for one in await store.find_rollouts(trial)]
        calls = await store.get_calls([recorded.id, *(one.id for one in forks)])
    return recorded, calls[recorded.id], [(one, calls[one.id]) for one in forks]


def test_forks_are_compared_with_the_rollout_on_record(call, tmp_path):
    run = tmp_path / "run"
    assert call("train", SCRIPT, "--folder", run)[0] == 0
    status, said = call("fork", SCRIPT, run, "--rollout", "sampled-0", "--call", 2, "--samples", 3)
    assert status == 0, said
    recorded, calls, forks = asyncio.run(read(run))
    assert recorded.reward is not None
    rewards = [one.reward for one, _ in forks]
    assert len(rewards) == 3
    mean = sum(map(float, rewards)) / 3
    (row,) = (line for line in said.splitlines() if " critic " in line)
    number = r"-?[\d.]+"
    cells = re.search(rf"({number}) +({number}) to ({number}) +([+-][\d.]+)", row)
    assert cells is not None, row
    assert float(cells[1]) == pytest.approx(mean, abs=1e-3)
    assert float(cells[4]) == pytest.approx(recorded.reward - mean, abs=1e-3)
    assert float(cells[2]) <= mean <= float(cells[3])
    for _, own in forks:
        assert [each.request for each in own] == [each.request for each in calls]
        assert [own[0].id, own[1].id] == [calls[0].id, calls[1].id]
        assert own[0].choices == calls[0].choices
        assert [each.trained for each in own] == [False, True]
    assert len({recorded.sampling.seed, *(one.sampling.seed for one, _ in forks)}) == 4
    assert {one.policy_version for one, _ in forks} == {calls[1].policy_version}
    assert call("fork", SCRIPT, run, "--rollout", "greedy-0")[1].count("was greedy")
    assert "has the calls 1 writer" in call("fork", SCRIPT, run, "--rollout", "sampled-0", "--call", 3)[1]


@pytest.mark.parametrize("reason", ["time", "chance", "network"])
def test_an_app_that_depends_on_something_else_is_refused_by_name(
    call, tmp_path, monkeypatch, counter, reason
):
    monkeypatch.setenv("FORKING_JOB", counter if reason == "network" else reason)
    run = tmp_path / "run"
    assert call("train", SCRIPT, "--folder", run)[0] == 0
    status, said = call("fork", SCRIPT, run, "--rollout", "sampled-0", "--call", 2, "--samples", 1)
    _, calls, _ = asyncio.run(read(run))
    assert status == 1
    assert "1 of 1 forks can't be compared: the app left the record" in said
    assert f"differs from call 2 of the record ({calls[1].id}, agent 'critic'): messages[0].content" in said
    words = {"time": "It is ", "chance": "Your number is ", "network": "Visitor "}[reason]
    assert said.count(words) == 2


def test_another_script_is_refused(call, tmp_path):
    run = tmp_path / "run"
    assert call("train", SCRIPT, "--folder", run)[0] == 0
    other = tmp_path / "other.py"
    other.write_text(SCRIPT.read_text().replace("solve", "another"))
    status, said = call("fork", other, run, "--rollout", "sampled-0")
    assert (status, "is of the function 'solve'" in said) == (1, True), said
