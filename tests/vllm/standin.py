"""A server on loopback that speaks as much of vLLM's HTTP as `Replicas` needs, as slowly as a test wants.

`python tests/vllm/standin.py PORT [PACE]` is one in a process of its own, to be killed; without a pace its
replies have no end.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from typing import Any

from aiohttp import web

TOKEN = 7
"""All that it ever says."""


class StandIn:
    """`async with StandIn() as server`: it answers at `server.url`."""

    def __init__(self, *, pace: float = 0.0) -> None:
        """`pace`: seconds between two tokens of a reply."""
        self.pace = pace
        self.well = asyncio.Event()
        """Cleared: /health gives no answer until it is set."""
        self.well.set()
        self.go = asyncio.Event()
        """Cleared: replies have their first token and no end."""
        self.go.set()
        self.probes = 0
        self.intervals: list[int | None] = []
        """The `stream_interval` of each request, in the order in which they came."""
        self.prompts: list[list[int]] = []
        """In the order in which they came."""
        self.open = self.most_open = self.broken = 0
        """Replies under way now, and at most; those that were not read to their end."""
        self.breaking = 0
        """So many of the next replies are broken off after their first token."""

    async def __aenter__(self) -> StandIn:
        self.url = f"http://127.0.0.1:{await self.listen()}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        for event in (self.well, self.go):
            event.set()
        await self.die()

    async def die(self) -> None:
        """Break all off and listen no more."""
        await self._runner.cleanup()

    async def listen(self, port: int = 0) -> int:
        """Answer at a port, by default a free one; returns it."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.post("/v1/completions", self._complete),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, backlog=4096)
        await site.start()
        (address,) = self._runner.addresses
        return int(address[1])

    async def _health(self, _: web.Request) -> web.Response:
        self.probes += 1
        await self.well.wait()
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "max_model_len": 2048}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "stream" not in body:
            return web.json_response({"choices": [_checked(body)]})
        self.prompts.append(body["prompt"])
        self.intervals.append(body.get("stream_interval"))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self._stream(request, body)
        except (ConnectionError, asyncio.CancelledError):
            self.broken += 1
            raise
        finally:
            self.open -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        held, least = 0, 1  # as vLLM does: the first token comes at once, the others so many together
        for left in reversed(range(body["max_tokens"])):
            if not left:
                await self.go.wait()
            held += 1
            if left and held < least:
                continue
            await response.write(_event(held, None if left else "length"))
            held, least = 0, body.get("stream_interval") or 1
            if self.breaking:
                self.breaking -= 1
                assert request.transport
                request.transport.abort()
            await asyncio.sleep(self.pace)
        await response.write_eof()
        return response


def _checked(body: dict[str, Any]) -> dict[str, Any]:
    """One of two tokens, with the log-probabilities of both at the temperature."""
    likely = -math.log1p(math.exp(-1 / body["temperature"]))
    best = {f"token_id:{TOKEN}": likely, "token_id:8": likely - 1 / body["temperature"]}
    return {"token_ids": [TOKEN], "prompt_token_ids": body["prompt"], "logprobs": {"top_logprobs": [best]}}


def _event(tokens: int, reason: str | None) -> bytes:
    logprobs = {"token_logprobs": [-0.5] * tokens}
    choice = {"token_ids": [TOKEN] * tokens, "logprobs": logprobs, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


async def _serve(port: int, pace: float | None = None) -> None:
    server = StandIn(pace=pace or 0.0)
    if pace is None:
        server.go.clear()
    await server.listen(port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), *map(float, sys.argv[2:])))
