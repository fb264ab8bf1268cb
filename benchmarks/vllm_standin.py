"""A server that answers as vLLM does, always the same: the load of `benchmarks.served`.

python -m benchmarks.vllm_standin prints its address and serves until its input ends. It answers Completions,
streamed, as our gateway asks it, and Chat Completions, whole or streamed, as other gateways do. A streamed
reply is one event for each token, each written by itself. With `stream_interval` in the request, which vLLM
knows since 0.28, the first token comes alone and then so many together. A whole reply comes as late as the
last event would. Replies have the fields that vLLM 0.28 writes.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

REPLY = 200
CONTEXT = 131_072
MODEL = "standin"
FIRST_ID = 1000
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"
PACE = 0.0005
"""Seconds for a token, so that each event arrives alone."""
TEXTS = (" word", " text", " line", " page")
"""Tokens of a chat reply in turn; some gateways break off a reply that repeats one token."""
CHARACTERS = 4
"""A chat reply names one prompt id for so many characters of its messages: nothing is tokenised."""
UNSET = (
    *("service_tier", "system_fingerprint", "prompt_logprobs", "prompt_text"),
    *("kv_transfer_params", "ec_transfer_params", "metrics"),
)
"""Fields of a whole chat reply that are null."""


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
    return sse(said)


def sse(said: dict[str, Any]) -> bytes:
    """An event of a stream."""
    return b"data: " + json.dumps(said, separators=(",", ":")).encode() + b"\n\n"


def events(body: dict[str, Any], *, interval: int) -> Iterator[tuple[int, bytes]]:
    """All events of a reply, each with the number of its tokens."""
    ids = reply_ids(body["prompt"])
    cuts = [0, *range(1, len(ids), interval), len(ids)]
    for a, b in pairwise(cuts):
        yield b - a, event(a, ids[a:b], last=b == len(ids), prompt=None if a else body["prompt"])


def text(index: int) -> str:
    """The token at that place of a chat reply."""
    return TEXTS[index % len(TEXTS)]


class Chat:
    """The reply to a chat request, with token ids and logprobs if it asks for them."""

    def __init__(self, body: dict[str, Any]) -> None:
        size = len(json.dumps(body["messages"])) // CHARACTERS
        self._prompt = [FIRST_ID + index % 150 for index in range(size)]
        self._ids = reply_ids(self._prompt)
        self._body = body

    def _said(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": "chatcmpl-0123456789abcdef", "object": kind, "created": 1764300000, "model": MODEL}
        return {**head, "choices": choices, **more}

    def _choice(self, first: int, ids: list[int], *, last: bool) -> dict[str, Any]:
        logprobs = [
            {
                "token": text(index),
                "logprob": -0.25 - index / 777,
                "bytes": [*text(index).encode()],
                "top_logprobs": [],
            }
            for index in range(first, first + len(ids))
        ]
        return {
            "index": 0,
            "logprobs": {"content": logprobs} if self._body.get("logprobs") else None,
            "finish_reason": "length" if last else None,
            "token_ids": ids if self._body.get("return_token_ids") else None,
        }

    def _named(self) -> list[int] | None:
        return self._prompt if self._body.get("return_token_ids") else None

    def _usage(self) -> dict[str, Any]:
        many, more = len(self._prompt), len(self._ids)
        return {"prompt_tokens": many, "total_tokens": many + more, "completion_tokens": more}

    def whole(self) -> dict[str, Any]:
        """The reply in one piece."""
        message = {"role": "assistant", "content": "".join(map(text, range(REPLY)))}
        nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        choice = {
            **self._choice(0, self._ids, last=True),
            "message": {**message, **nothing},
            "stop_reason": None,
            "routed_experts": None,
        }
        usage = {**self._usage(), "prompt_tokens_details": None, "completion_tokens_details": None}
        said = self._said("chat.completion", [choice], usage=usage, prompt_token_ids=self._named())
        return {**said, **dict.fromkeys(UNSET)}

    def events(self) -> Iterator[tuple[int, bytes]]:
        """All events of the streamed reply, each with the number of its tokens."""
        kind = "chat.completion.chunk"
        start = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        yield 0, sse(self._said(kind, [{**start, "finish_reason": None}], prompt_token_ids=self._named()))
        for index, token in enumerate(self._ids):
            choice = self._choice(index, [token], last=index + 1 == len(self._ids))
            yield 1, sse(self._said(kind, [{**choice, "delta": {"content": text(index)}}]))
        if (self._body.get("stream_options") or {}).get("include_usage"):
            yield 0, sse(self._said(kind, [], usage=self._usage()))


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
        chat = Chat(body) if b"/chat/completions " in head.partition(b"\r\n")[0] else None
        if body.get("stream"):
            interval = body.get("stream_interval", 1) if self._knows_interval else 1
            await self._stream(writer, chat.events() if chat else events(body, interval=interval))
            return
        if chat:
            await asyncio.sleep(PACE * REPLY)
            said = chat.whole()
        elif head.startswith(b"get"):
            said = {"data": [{"id": MODEL, "max_model_len": CONTEXT}]}
        else:
            said = checked(body)
        content = json.dumps(said).encode()
        writer.write(HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(content) + content)

    async def _stream(self, writer: asyncio.StreamWriter, made: Iterator[tuple[int, bytes]]) -> None:
        writer.write(HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n")
        for tokens, each in made:
            await asyncio.sleep(PACE * tokens)
            writer.write(b"%x\r\n%b\r\n" % (len(each), each))
            await writer.drain()  # ends the stream if the client has left
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


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
