"""What is said to one of vLLM's servers, and what it answers.

Prompts go as token ids and replies come back as token ids with their log-probabilities (`return_token_ids`),
so what is recorded is what the engine read and wrote. All that could change the distribution is said with
every request: a server takes what is not said from the model's generation config.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from lightning_core.backends.chat.completion import Completion
from lightning_core.errors import EngineError

PROBE_SECONDS = 5.0
"""How long a server that starts may take to say that it is well."""
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0
"""How long an idle connection is kept; vLLM closes it after 5, and a request may be sent just then."""
AS_SAMPLED = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""What no request here asks for; a generation config may."""
_ID = "token_id:"


class LostError(EngineError):
    """A server broke off, or never answered: the request may go on elsewhere."""


class SilentError(LostError):
    """No answer came in time, or none could be waited for: the server may be slow as well as gone."""


@dataclass(slots=True)
class Piece:
    """What came at once of one reply."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    best: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    """What the server said of itself after all that."""


def sampling_body(completion: Completion, model: str, stop_ids: frozenset[int]) -> dict[str, Any]:
    """The request for what a reply still lacks: all of it, or the rest of what another server has begun."""
    options, so_far = completion.options, len(completion.ids)
    body = {
        "model": model,
        "prompt": completion.prompt_ids + completion.ids,
        "max_tokens": options.max_tokens - so_far,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "logprobs": options.top_logprobs,
        "stop_token_ids": sorted(stop_ids),
        "stream": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **AS_SAMPLED,
    }
    if options.seed:  # the rest of a reply must not repeat the dice of its beginning
        body["seed"] = _number(f"{options.seed}/{so_far}" if so_far else options.seed)
    return body


def _number(text: str) -> int:
    """A seed as vLLM takes it."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


class Wire:
    """Requests to servers, by URL. Belongs to the event loop that first uses it."""

    def __init__(self) -> None:
        self._opened: aiohttp.ClientSession | None = None

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            )
        return self._opened

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def stream(self, url: str, body: dict[str, Any]) -> AsyncGenerator[Piece, None]:
        """The pieces of a reply. One may be empty: something has come, but no token yet.

        Raises LostError where the server is at fault, EngineError where it refuses the request.
        """
        try:
            async with self._session.post(
                url + "/v1/completions", data=orjson.dumps(body), headers=_JSON
            ) as r:
                await _check(r, url)
                yield Piece()
                async for piece in _pieces(r, url, body):
                    yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise _kind(error)(f"{url} broke off: {_said(error)}") from error

    async def ask(
        self, url: str, path: str, body: Mapping[str, Any] | None = None, seconds: float | None = None
    ) -> Any:
        """The JSON of a reply (None if it is no JSON): POST where there is a body, GET else.

        Raises LostError or EngineError as `stream` does.
        """
        text = await self._read(url, path, None if body is None else orjson.dumps(body), seconds)
        try:
            return orjson.loads(text) if text else None
        except orjson.JSONDecodeError:
            return None

    async def ailment(self, url: str, seconds: float = PROBE_SECONDS) -> EngineError | None:
        """What is wrong with a server; None if it says within `seconds` that it is well."""
        try:
            await self._read(url, "/health", None, seconds)
        except EngineError as error:
            return error
        return None

    async def born(self, url: str, seconds: float) -> float | None:
        """When the server's process started; None if it does not say. Raises LostError if it says nothing."""
        try:
            lines = (await self._read(url, "/metrics", None, seconds)).splitlines()
        except LostError:
            raise
        except EngineError:  # an old one, or one that keeps it to itself
            return None
        said = [line for line in lines if line.startswith(b"process_start_time_seconds ")]
        return float(said[0].split()[1]) if said else None

    async def _read(self, url: str, path: str, content: bytes | None, seconds: float | None) -> bytes:
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(
                    "GET" if content is None else "POST", url + path, data=content, headers=_JSON
                ) as r,
            ):
                await _check(r, url + path)
                return await r.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _kind(error)(f"{url + path} does not answer: {_said(error)}") from error


_JSON = {"content-type": "application/json"}


async def _check(response: aiohttp.ClientResponse, what: str) -> None:
    if response.status < 400:
        return
    text = (await response.text())[:500]
    kind = LostError if response.status >= 500 else EngineError
    raise kind(f"{what} answers {response.status}: {text}")


async def _pieces(response: aiohttp.ClientResponse, url: str, body: dict[str, Any]) -> AsyncIterator[Piece]:
    """The events of a stream, those that arrive together as one piece."""
    buffer, fresh, ended = b"", True, False
    async for data in response.content.iter_any():
        *events, buffer = (buffer + data).split(b"\n\n")
        piece = Piece()
        for event in events:
            if event.startswith(b"data: {"):
                said = orjson.loads(event[6:])
                if fresh:
                    _check_prompt(said, url, body["prompt"])
                    fresh = False
                _take(piece, said, url, body["logprobs"])
        ended = ended or piece.finish_reason is not None
        yield piece
        if piece.error:
            raise LostError(f"{url} failed: {piece.error}")
    if not ended:
        raise LostError(f"{url} ended a reply without a reason")


def _check_prompt(said: dict[str, Any], url: str, prompt: list[int]) -> None:
    read = (said.get("choices") or [{}])[0].get("prompt_token_ids", prompt)
    if read != prompt:
        raise EngineError(f"{url} read {len(read or ())} tokens where {len(prompt)} were sent, or other ones")


def _take(piece: Piece, said: dict[str, Any], url: str, best: int) -> None:
    """Add an event to the piece."""
    if "error" in said:
        piece.error = str(said["error"].get("message", said["error"]))
        return
    for choice in said["choices"]:
        ids, logprobs = choice.get("token_ids") or [], choice.get("logprobs") or {}
        values = logprobs.get("token_logprobs") or []
        if len(ids) != len(values):
            raise EngineError(f"{url} sent {len(ids)} token ids with {len(values)} log-probabilities")
        piece.ids += ids
        piece.logprobs += values
        if best:
            piece.best += [best_of(table, best) for table in logprobs["top_logprobs"]]
        piece.finish_reason = choice.get("finish_reason") or piece.finish_reason


def best_of(table: dict[str, float], count: int) -> list[tuple[int, float]]:
    """The most probable ids; the table holds the sampled one as well, wherever it stands."""
    pairs = [(int(name.removeprefix(_ID)), value) for name, value in table.items()]
    return sorted(pairs, key=lambda pair: -pair[1])[:count]


def _kind(error: Exception) -> type[LostError]:
    """A time-out, and a lack of descriptors in this process, say nothing of the server."""
    ours = getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)
    return SilentError if ours or isinstance(error, TimeoutError) else LostError


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
