"""A server on a real socket that answers with given bytes, and keeps every request as it arrived."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

JSON, EVENTS = "application/json", "text/event-stream"


@dataclass(frozen=True)
class Answer:
    """An answer to give: `content`, piece by piece."""

    content: tuple[bytes, ...]
    kind: str = JSON
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    waits: bool = False
    """Before each piece but the first, wait until the client says `go_on`."""
    hangs: bool = False
    """Never end."""


@dataclass
class Arrived:
    """One request: its headers and body byte for byte."""

    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass
class Replay:
    """Gives the answers in turn; the last one again and again."""

    answers: list[Answer]
    url: str = ""
    arrived: list[Arrived] = field(default_factory=list)
    _go_on: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def go_on(self) -> None:
        self._go_on.release()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.arrived.append(Arrived(scope["path"], list(scope["headers"]), await request.body()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        headers = {**answer.headers, "content-type": answer.kind}
        await StreamingResponse(self._pieces(answer), answer.status, headers)(scope, receive, send)

    async def _pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        for number, piece in enumerate(answer.content):
            while answer.waits and number and not self._go_on.acquire(blocking=False):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            yield piece
        while answer.hangs:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@contextmanager
def replaying(*answers: Answer) -> Iterator[Replay]:
    """The server, running."""
    replay = Replay(list(answers))
    server = uvicorn.Server(uvicorn.Config(replay, port=0, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    replay.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield replay
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


def event(data: dict[str, Any]) -> bytes:
    """One event of a stream, named if its data has a type."""
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    """One event of a Chat Completions stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    head = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 0, "model": "played"}
    return event({**head, "choices": [choice]})


def completion(message: dict[str, Any], finish_reason: str = "stop") -> bytes:
    """A whole Chat Completions reply."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    head = {"id": "chatcmpl-7", "object": "chat.completion", "created": 0, "model": "played"}
    return json.dumps({**head, "choices": [choice]}).encode()
