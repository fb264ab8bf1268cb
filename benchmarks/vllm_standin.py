"""A server that answers as vLLM does, at once and always the same: the load of `benchmarks.served`.

python -m benchmarks.vllm_standin prints its address and serves until its input ends. A streamed reply is one
event for each token, each written by itself. With `stream_interval` in the request, which vLLM knows since
0.28, the first token comes alone and then so many together. Events have all the fields that vLLM 0.28 writes.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from itertools import pairwise
from typing import Any

REPLY = 200
CONTEXT = 131_072
MODEL = "standin"
FIRST_ID = 1000
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"
PACE = 0.0005
"""Seconds between two events, so that each arrives alone."""


def reply_ids(prompt: list[int]) -> list[int]:
    """The reply to a prompt: ids of plain words, other ones at another length of the prompt."""
    return [FIRST_ID + (len(prompt) + 7 * index) % 150 for index in range(REPLY)]


def event(first: int, ids: list[int], *, last: bool, prompt: list[int] | None) -> bytes:
    """One event of a stream, with these tokens of the reply."""
    names = [f"token_id:{each}" for each in ids]
    choice: dict[str, Any] = {
        "index": 0,
        "text": " word" * len(ids),
        "logprobs": {
            "text_offset": [5 * (first + index) for index in range(len(ids))],
            "token_logprobs": [-0.25 - (first + index) / 777 for index in range(len(ids))],
            "tokens": names,
            "top_logprobs": [{name: -0.25 - (first + index) / 777} for index, name in enumerate(names)],
        },
        "finish_reason": "length" if last else None,
        "stop_reason": None,
        "token_ids": ids,
    }
    if prompt is not None:
        choice["prompt_token_ids"] = prompt
    said = {
        "id": "cmpl-0123456789abcdef0123456789abcdef",
        "object": "text_completion",
        "created": 1764300000,
        "model": MODEL,
        "choices": [choice],
    }
    return b"data: " + json.dumps(said, separators=(",", ":")).encode() + b"\n\n"


def events(body: dict[str, Any], *, interval: int) -> list[bytes]:
    """All events of a reply."""
    ids = reply_ids(body["prompt"])
    cuts = [0, *range(1, len(ids), interval), len(ids)]
    made = [
        event(a, ids[a:b], last=b == len(ids), prompt=None if a else body["prompt"])
        for a, b in pairwise(cuts)
    ]
    return [*made, b"data: [DONE]\n\n"]


class Standin:
    """Serves connections. `interval` is the least `stream_interval`, as vLLM's own option is."""

    def __init__(self, *, knows_interval: bool) -> None:
        self._knows_interval = knows_interval

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = (
                    int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"length: " in head else 0
                )
                content = await reader.readexactly(length)
                await self._answer(writer, head, json.loads(content) if content else {})
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, head: bytes, body: dict[str, Any]) -> None:
        if not body.get("stream"):
            models = {"data": [{"id": MODEL, "max_model_len": CONTEXT}]}
            content = json.dumps(models if head.startswith(b"get") else checked(body)).encode()
            writer.write(HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(content) + content)
            return
        interval = body.get("stream_interval", 1) if self._knows_interval else 1
        writer.write(HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n")
        for each in events(body, interval=interval):
            writer.write(b"%x\r\n%b\r\n" % (len(each), each))
            await asyncio.sleep(PACE)
        writer.write(b"0\r\n\r\n")


def checked(body: dict[str, Any]) -> dict[str, Any]:
    """The answer to `check_server`: one of two tokens, at the request's temperature."""
    likely = -math.log1p(math.exp(-1 / body["temperature"]))
    best = {"token_id:7": likely, "token_id:8": likely - 1 / body["temperature"]}
    return {
        "choices": [
            {"token_ids": [7], "prompt_token_ids": body["prompt"], "logprobs": {"top_logprobs": [best]}}
        ]
    }


async def main(knows_interval: bool) -> None:
    server = await asyncio.start_server(
        Standin(knows_interval=knows_interval).serve, "127.0.0.1", limit=2**24
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] == ["interval"]))
