"""`agentlightning fork` on recorded rollouts of real apps, answered by the tiny model."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lightning_core.errors import DataError
from lightning_core.gateway.forks import WRITTEN
from lightning_core.records.types import TRIED, Call, Rollout
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.demonstrations import demonstrations

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


def test_an_edited_reply_and_an_edited_prompt_go_on_from_there(call, tmp_path):
    run, file = tmp_path / "run", tmp_path / "prompt.json"
    assert call("train", SCRIPT, "--folder", run)[0] == 0
    common = "fork", SCRIPT, run, "--rollout", "sampled-0", "--call", 1, "--samples", 2
    status, said = call(*common, "--reply", "SELECT name FROM boats")
    assert status == 0, said
    assert "your reply" in said
    assert call(*common, "--prompt", file)[0] == 0
    prompt = json.loads(file.read_text())
    prompt["messages"][0]["content"] = "List the ships."
    file.write_text(json.dumps(prompt))
    status, said = call(*common, "--prompt", file)
    assert status == 0, said
    _, calls, forks = asyncio.run(read(run))
    replied = [own for one, own in forks if one.sampling.fork and one.sampling.fork.reply]
    prompted = [own for one, own in forks if one.sampling.fork and one.sampling.fork.prompt]
    assert (len(replied), len(prompted)) == (2, 2)
    for written, critic in replied:
        (choice,) = written.choices
        assert (written.id, written.request) == (calls[0].id, calls[0].request)
        assert choice.message == {"role": "assistant", "content": "SELECT name FROM boats"}
        assert (choice.completion_ids, choice.logprobs, choice.left_out) == (None, None, WRITTEN)
        assert (written.policy_version, written.trained) == (None, False)
        assert critic.request["messages"][0]["content"].startswith("SELECT name FROM boats")
        assert (critic.policy_version, critic.trained) == (calls[1].policy_version, True)
        assert critic.choices[0].logprobs
    for sampled, critic in prompted:
        assert sampled.request == {**calls[0].request, **prompt}
        assert (sampled.prompt_ids != calls[0].prompt_ids, sampled.trained) == (True, True)
        assert sampled.choices[0].message["content"] in critic.request["messages"][0]["content"]
    with pytest.raises(DataError, match="0 of 0 train rollouts"):  # a trial is no run to imitate
        demonstrations(f"sqlite:///{run / 'store.db'}")


def test_edits_that_can_not_be_made_are_refused(call, tmp_path):
    run, file = tmp_path / "run", tmp_path / "prompt.json"
    assert call("train", SCRIPT, "--folder", run)[0] == 0
    file.write_text('{"input": []}')

    def refused(*given: object, rollout: str = "sampled-0") -> str:
        status, said = call("fork", SCRIPT, run, "--rollout", rollout, *given)
        assert status == 1, said
        return said

    assert "give a reply or a prompt" in refused("--reply", "a", "--prompt", file)
    assert "these are 2; name one" in refused("--reply", "a")
    assert "these are 2; name one" in refused("--prompt", tmp_path / "new.json")
    assert "whose prompt is in messages" in refused("--call", 1, "--prompt", file)
    both = "--call", 1, "--reply", "a", "--samples", 2
    assert "all 2 samples would be the same" in refused(*both, rollout="greedy-0")
    file.write_text("[]")
    assert "is no JSON object" in refused("--call", 1, "--prompt", file)
    status, said = call("fork", SCRIPT, run, "--rollout", "greedy-0", "--call", 1, "--reply", "a")
    assert (status, "1 rollouts fork" in said) == (0, True), said
