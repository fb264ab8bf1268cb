"""A hosted model is replaced by a small one, as docs/tutorials/replace-hosted.md tells it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lightning_core.gateway.server import ServerThread
from lightning_core.trainer.demonstrations import demonstrations
from tests.packaging.first_hour import ROOT, say, serving

PAGE = ROOT / "docs" / "tutorials" / "replace-hosted.md"
RECORD, SMALL, COMPARE = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
WRONG = 5
"""The stand-in gets every fifth message wrong."""


class Hosted:
    """The stand-in for a hosted model: it knows the team of each message, and is wrong on some."""

    def __init__(self, tasks: list[dict[str, str]]) -> None:
        self.teams = {task["message"]: task["team"] for task in tasks}
        self.wrong = {task["message"] for task in tasks[::WRONG]}
        self.keys: list[str] = []

    async def answer(self, request: Request) -> JSONResponse:
        self.keys.append(request.headers["authorization"])
        message = (await request.json())["messages"][-1]["content"]
        team = self.teams[message]
        if message in self.wrong:
            team = "account" if team == "billing" else "billing"
        reply = {"role": "assistant", "content": json.dumps({"team": team})}
        choice = {"index": 0, "finish_reason": "stop", "message": reply}
        told = {
            "id": "reply",
            "object": "chat.completion",
            "created": 0,
            "model": "large",
            "choices": [choice],
        }
        return JSONResponse(told)


@pytest.mark.timeout(2400)
def test_what_the_hosted_model_got_right_teaches_a_small_one(tmp_path: Path) -> None:
    bin, app = Path(sys.executable).parent, tmp_path / "my_app"
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    say(bin / "agentlightning", "init", "plain", app, env=env)
    for name, code in (("record.py", RECORD), ("small.py", SMALL), ("compare.py", COMPARE)):
        (app / name).write_text(code)
    tasks = [json.loads(line) for line in (app / "tasks.jsonl").read_text().splitlines()]
    hosted = Hosted(tasks)
    routes = [Route("/v1/chat/completions", hosted.answer, methods=["POST"])]
    server = ServerThread(Starlette(routes=routes), lambda: None, "lightning-hosted")
    asked = {**env, "OPENAI_BASE_URL": f"{server.start()}/v1", "OPENAI_API_KEY": "sk-of-the-app"}
    try:
        say(bin / "python", "record.py", cwd=app, env=asked)
    finally:
        server.stop()
    assert hosted.keys == ["Bearer sk-of-the-app"] * 2 * len(tasks)
    kept = demonstrations(app / "runs" / "hosted-train", least_reward=1.0, split="validation")
    trained = [task for task in tasks if task["split"] == "train"]
    right = [task for task in trained if task["message"] not in hosted.wrong]
    assert len(kept) == 2 * len(right) < 2 * len(trained)
    say(bin / "python", "small.py", cwd=app, env=env)
    summary = json.loads((app / "runs" / "small" / "summary.json").read_text())
    assert summary["failures"] == 0
    assert summary["after"]["sampled"] > summary["before"]["sampled"] + 0.1
    compared = say(bin / "python", "compare.py", cwd=app, env=env)
    assert f"runs/small: success {summary['after']['sampled']:.2f}" in compared
    with serving(bin, app, env, "small") as url:
        told = {**env, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
        answer = say(bin / "python", "app.py", "My card was charged twice", cwd=app, env=told)
    assert answer.strip() in ("billing", "shipping", "account")
