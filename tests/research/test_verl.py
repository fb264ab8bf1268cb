"""This project's share of a step: computed from the notes beside a run, and shown as its record says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.records.types import Metrics
from research.verl.share import MEASURING, machine, own, spent, told_apart
from research.verl.study import RANKS, STUDIES
from research.verl.usage import OWN, PROCESSES, THREADS, Usage, begins, watched, whose

USED = {
    "process": 2.0,
    "machine": 12.0,
    "thread/runner, trainer and app": 1.0,
    "thread/gateway": 0.3,
    f"thread/{MEASURING}": 0.1,
    "looks/app": 30.0,
    "looks/house": 10.0,
    "looks/loop": 60.0,
    "process/verl": 3.0,
    "process/vLLM": 4.0,
    "process/Ray": 0.5,
}


def test_the_first_thread_is_divided_by_where_it_was_seen_at_work() -> None:
    found = told_apart(USED)
    assert found == pytest.approx(
        {
            "trainer: the app": 0.75,
            "trainer: runner and trainer": 0.25,
            "trainer: gateway": 0.3,
            "trainer: native threads": 0.6,
            "verl": 3.0,
            "vLLM": 4.0,
            "Ray": 0.5,
        }
    )
    assert own({"processor": found}) == pytest.approx(0.25 + 0.3)
    assert own({"processor": found}, ()) == pytest.approx(0.75 + 0.25 + 0.3 + 0.6)


def test_what_else_the_machine_did_is_what_no_process_of_the_run_did() -> None:
    assert machine(USED) == pytest.approx({"all": 12.0, "others": 12.0 - 2.0 - 7.5})


def test_only_what_was_used_in_steps_counts(tmp_path: Path) -> None:
    """Two steps of 2 s, an evaluation between them in which much was used."""
    usage = tmp_path / "usage.jsonl"
    noted = {100: 10.0, 102: 14.0, 110: 94.0, 112: 100.0}
    lines = [json.dumps({"at": at, "sums": {"process": used}}) for at, used in noted.items()]
    usage.write_text("\n".join(lines))
    steps = [
        Metrics(run_id="r", step=i, values={"step_seconds": 2.0}, created_at=ended)
        for i, ended in enumerate((102, 112))
    ]
    assert spent(steps, usage) == {"process": (4.0 + 6.0) / 2}


def sums(path: Path) -> list[dict[str, float]]:
    return [json.loads(line)["sums"] for line in path.read_text().splitlines()]


def test_the_sums_go_on_where_a_run_was_stopped(tmp_path: Path) -> None:
    for _ in range(2):
        Usage(tmp_path / "usage.jsonl").note()
    first, second = sums(tmp_path / "usage.jsonl")
    assert second["process"] >= 2 * first["process"] > 0
    assert second["machine"] >= first["machine"]


@pytest.mark.parametrize(("title", "whose_it_is"), [("VLLM::EngineCore", "vLLM"), ("raylet", "Ray")])
def test_a_process_below_is_told_by_its_title(title: str, whose_it_is: str) -> None:
    command = {"args": [title, "-c", "echo ready; read line"], "executable": "/bin/sh"}
    with subprocess.Popen(**command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert f"process/{whose_it_is}" in Usage(Path("nowhere")).read()


@pytest.mark.parametrize(
    ("title", "whose_it_is"),
    [
        ("ray::vLLMHttpServer.launch_server", "vLLM"),
        ("ray::lightning_1a_0:Worker.update_actor", "verl"),
        ("ray::IDLE", "Ray"),
        ("python -c from multiprocessing", None),
    ],
)
def test_what_a_title_says(title: str, whose_it_is: str | None) -> None:
    assert begins(title, PROCESSES) == whose_it_is


def test_threads_are_told_by_their_names(tmp_path: Path) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="lightning-gateway")
    thread.start()
    used = Usage(tmp_path / "usage.jsonl").read()
    ended.set()
    thread.join()
    assert {f"thread/{THREADS[name]}" for name in ("MainThread", "lightning-gateway")} <= used.keys()


def test_a_run_is_watched_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "run/usage.jsonl"
    with watched(tmp_path / "run"):
        while not any("looks/loop" in line for line in (sums(path) if path.exists() else [])):
            json.loads("[1]")
    assert OWN not in [thread.name for thread in threading.enumerate()]
    assert signal.getsignal(signal.SIGPROF) is signal.SIG_DFL


def calling(*paths: str) -> str:
    """Whose the innermost frame is, of functions in these files that call one another in turn."""

    def innermost() -> str:
        return whose(sys._getframe(1))

    call: Callable[[], str] = innermost
    for path in reversed(paths):
        names: dict[str, Any] = {"call": call}
        exec(compile("def outer(): return call()", path, "exec"), names)
        call = names["outer"]
    return call()


def test_code_that_is_nobody_s_is_its_caller_s() -> None:
    site = "/venv/site-packages"
    app = f"{site}/langgraph/pregel/main.py"
    house = "/src/lightning_core/tracing/openai_sdk.py"
    assert calling(house, app) == "app"
    assert calling(app, house) == "house"
    assert calling(app, house, f"{site}/httpx/_client.py") == "app"
    assert calling(app, "/usr/lib/python3.11/asyncio/base_events.py", "/usr/lib/python3.11/json.py") == "loop"
    assert calling(house, "/usr/lib/python3.11/json/encoder.py") == "house"


def test_verl_has_as_many_ranks_on_any_machine() -> None:
    local, verl = (variant.settings() for variant in STUDIES["verl"].variants)
    assert local == {"backend": "local"}
    assert verl["backend"].gpus == RANKS
