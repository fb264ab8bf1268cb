"""`agentlightning evaluate`: policies side by side on the same tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lightning_core.cli.evaluating import PolicyScore, summarise
from lightning_core.gateway.server import ServerThread
from lightning_core.insight.verdict import level_interval, mean_interval
from lightning_core.records.types import Task
from tests.build import agentlightning

JOB = """
import os
import openai
import lightning_core as lightning
from lightning_core.tracing.scope import current_scope

async def solve(task):
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent("writer"):
            reply = await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": str(task.input["question"])}],
                max_completion_tokens=24,
            )
    place = current_scope().rollout_id.rpartition("-")[2]
    return int(place) % 2 + sum(map(ord, reply.choices[0].message.content or "")) % 11 / 10

if __name__ == "__main__":
    tasks = [{"question": f"List the boats with speed above {n}."} for n in range(9)]
    backend = lightning.LocalBackend("tiny", learning_rate=0.03)
    algorithm = lightning.GRPO(group_size=4, tasks_per_step=3)
    trainer = lightning.Trainer(backend=backend, algorithm=algorithm, steps=3, keep_checkpoints=9)
    trainer.fit(solve, train=tasks[:6], validation=tasks[6:])
"""
"""Every other rollout of a group does better, so that the weights move; the rest is read off the reply."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script, and the trained run `a`."""
    place = tmp_path_factory.mktemp("runs")
    (place / "job.py").write_text(JOB)
    arguments = ["train", str(place / "job.py"), "--folder", str(place / "a"), "--set", "progress=false"]
    assert agentlightning(*arguments) == 0
    return place


@pytest.fixture
def evaluate(monkeypatch, capsys, tmp_path):
    """The command in an empty folder; returns its status and what it printed."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def evaluate(*arguments: object) -> tuple[int, str]:
        status = agentlightning("evaluate", *arguments)
        said = capsys.readouterr()
        return status, said.out + said.err

    return evaluate


def test_a_run_its_versions_and_a_model_stand_side_by_side(evaluate, runs, tmp_path):
    run = runs / "a"
    policies = ["tiny", run, f"{run}@1", f"{run}@0"]
    status, said = evaluate(
        runs / "job.py", *(part for each in policies for part in ("--policy", each)), "--folder", "out"
    )
    assert status == 0, said
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    model, last, first, start = results["policies"]
    assert [one["policy"] for one in results["policies"]] == list(map(str, policies))
    assert start["rewards"] == model["rewards"]  # a run begins with its model's weights
    assert start["greedy"]["difference"] == 0
    assert "difference" not in model["greedy"]
    assert results["tasks"] == len(model["rewards"]) > 1
    after = json.loads((run / "summary.json").read_text())["after"]
    assert last["greedy"]["mean"] == pytest.approx(after["greedy"])
    assert all(one["failures"] == 0 for one in results["policies"])
    assert not list((tmp_path / "out").glob("*/policy"))
    assert last["rewards"] != model["rewards"]
    assert Path(first["run"]).name.endswith("-a-1")


def test_the_tasks_of_a_file_and_a_threshold_decide_the_exit_status(evaluate, runs, tmp_path):
    """One of the tasks has a character that some readers take for the end of a line."""
    tasks = [{"question": "List all\u2028boats."}, {"question": "Who?"}]
    lines = "\n\n".join(json.dumps(task, ensure_ascii=False) for task in tasks)
    (tmp_path / "frozen.jsonl").write_text(lines, "utf-8-sig")
    given = [runs / "job.py", "--tasks", "frozen.jsonl", "--folder"]
    assert evaluate(*given, "first")[0] == 0
    first = json.loads((tmp_path / "first" / "results.json").read_text())
    assert first["tasks"] == 2
    assert first["tasks_sha256"] == sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest()
    mean = first["policies"][0]["greedy"]["mean"]
    assert evaluate(*given, "second", "--at-least", mean)[0] == 0
    status, said = evaluate(*given, "third", "--at-least", mean + 1e-6)
    assert (status, "(greedy): tiny" in said) == (1, True), said
    second = json.loads((tmp_path / "second" / "results.json").read_text())
    assert second["policies"] == [{**one, "run": "second/0-tiny"} for one in first["policies"]]
    status, said = evaluate(*given, "first")
    assert (status, "nothing is overwritten" in said) == (1, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "there is no task in"),
        ('{"question": 1}\n[1]', "line 2 of 'tasks.jsonl' is not an object"),
        ('{"question": ', "line 1 of 'tasks.jsonl' is not JSON"),
        (None, "can't read the tasks in 'tasks.jsonl'"),
    ],
)
def test_a_file_without_tasks_is_refused_with_its_line(evaluate, runs, tmp_path, content, said):
    if content is not None:
        (tmp_path / "tasks.jsonl").write_text(content)
    status, printed = evaluate(runs / "job.py", "--tasks", "tasks.jsonl")
    assert status == 1
    assert said in " ".join(printed.split())


def test_a_version_that_there_is_not_is_found_before_anything_is_run(evaluate, runs, tmp_path):
    status, said = evaluate(
        runs / "job.py", "--policy", "tiny", "--policy", f"{runs / 'a'}@7", "--folder", "out"
    )
    assert status == 1
    assert "there is no version 7" in said
    assert not (tmp_path / "out").exists()


@pytest.fixture
def hosted(monkeypatch) -> Iterator[list[str]]:
    """A model at the address that the app's environment names; the models it was asked for."""
    asked: list[str] = []

    async def answer(request: Request) -> JSONResponse:
        body = await request.json()
        asked.append(body["model"])
        message = {"role": "assistant", "content": "Hello."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )

    routes = [Route("/v1/chat/completions", answer, methods=["POST"])]
    server = ServerThread(Starlette(routes=routes), lambda: None, "lightning-hosted")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.start()}/v1")
    yield asked
    server.stop()


def test_the_model_that_the_app_asks_is_a_policy_too(evaluate, runs, hosted, tmp_path):
    status, said = evaluate(runs / "job.py", "--policy", "app", "--policy", "tiny", "--folder", "out")
    assert status == 0, said
    app, tiny = json.loads((tmp_path / "out" / "results.json").read_text())["policies"]
    assert len(hosted) >= 2 * len(app["rewards"])
    assert app["failures"] == tiny["failures"] == 0
    assert "difference" in tiny["greedy"]


def test_the_figures_are_those_of_the_formulas():
    tasks = [Task(id=f"{n}", input={"n": n}) for n in range(4)]
    first = PolicyScore("a", Path("a"), [1, 0, 0, 1], [1, 1, 1, 1], 0)
    second = PolicyScore("b", Path("b"), [1, 1, 0, 1], [0, 1, 1, 1], 1)
    one, two = summarise([first, second], tasks)["policies"]
    assert one["greedy"] == {"mean": 1, "interval": level_interval([1, 1, 1, 1], 0, 1)}
    assert two["sampled"]["difference"] == 0.25
    assert two["greedy"]["difference_interval"] == mean_interval([-1, 0, 0, 0])
    # Agresti and Coull: 6 of 8 for 4 of 4, here with Student's quantile and the variance over n - 1
    low, high = one["greedy"]["interval"]
    assert (low, high) == (pytest.approx(0.75 - 2.3646 * (0.1875 / 7) ** 0.5, abs=1e-3), 1.0)
