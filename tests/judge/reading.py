"""A judge on a real socket: it reads the transcripts it is sent, and scores them by a rule of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lightning_core.gateway.server import ServerThread

Lines = list[dict[str, str]]
Fault = Callable[[dict[str, Any]], Response | str]
"""An answer in place of scores: a whole response, or the text of one; from the request's body."""


@dataclass
class ReadingJudge:
    """Scores each transcript by `rule`, and notes what it was asked."""

    rule: Callable[[Lines], float]
    faults: list[Fault] = field(default_factory=list)
    """Answers to the next requests, used up in turn."""
    delay: float = 0.0
    """Seconds before each answer."""
    together: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(1))
    """Answers wait until so many can be given at once."""
    url: str = ""
    peak: int = 0
    """The most requests that waited at once."""
    waiting: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("authorization"))
        self.waiting += 1
        self.peak = max(self.peak, self.waiting)
        await asyncio.sleep(self.delay)
        await self.together.wait()
        self.waiting -= 1
        said = self.faults.pop(0)(body) if self.faults else self.judge(body)
        if isinstance(said, Response):
            return said
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = {"id": "x", "object": "chat.completion", "created": 0, "model": "judge", "choices": [choice]}
        return JSONResponse(reply)

    def judge(self, body: dict[str, Any]) -> str:
        transcripts = self.transcripts(body)
        scores = [
            {"id": name, "reason": f"rule of {len(lines)} lines", "score": self.rule(lines)}
            for name, lines in transcripts.items()
        ]
        return json.dumps({"scores": scores})

    @staticmethod
    def transcripts(body: dict[str, Any]) -> dict[str, Lines]:
        """Returns the transcripts in a request, by id."""
        shown: dict[str, Lines] = json.loads(body["messages"][1]["content"])["transcripts"]
        return shown


@contextmanager
def judging(
    rule: Callable[[Lines], float], *faults: Fault, delay: float = 0.0, together: int = 1
) -> Iterator[ReadingJudge]:
    """A running judge on a free port of this machine."""
    judge = ReadingJudge(rule, list(faults), delay, asyncio.Barrier(together))
    app = Starlette(routes=[Route("/v1/chat/completions", judge.answer, methods=["POST"])])
    server = ServerThread(app, lambda: None, "reading-judge")
    judge.url = server.start() + "/v1"
    try:
        yield judge
    finally:
        server.stop()


def status(code: int, text: str = "no", **headers: str) -> Fault:
    """An HTTP error."""
    return lambda body: JSONResponse(
        {"error": {"message": text}}, code, headers={"retry-after": "0", **headers}
    )
