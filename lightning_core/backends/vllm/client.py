"""The HTTP client of vLLM's servers, and the check whether a server can be used.

Prompts go as token ids and replies come back as token ids with their log-probabilities (`return_token_ids`),
so what is recorded is what the engine read and wrote. Every request names all that could change the
distribution: a server takes what is left out from the model's generation config.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import orjson

from lightning_core.backends.serving.completion import Completion
from lightning_core.dialects.upstream import Shaping
from lightning_core.errors import EngineError

PROBE_SECONDS = 5.0
"""How long a server that starts may take to answer /health."""
CONNECT_SECONDS = 10.0
SOCKET: Final = "unix:"
"""Begins the URL of a server that listens on a socket file: unix:/tmp/x/socket."""
IDLE_SECONDS = 2.0
"""How long an idle connection is kept; vLLM closes it after 5, and a request may be sent just then."""
AS_SAMPLED = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Written out, as a model's generation config may ask for other values."""
_ID = "token_id:"
CHECK_PROMPT = [5, 6, 7, 8]
"""Any ids do; every model has these."""
CHECK_BEST = 5
CHECK_SECONDS = 300.0
"""The first reply may wait for kernels to be compiled, and for other work of a busy machine."""
NEWER = "use vLLM 0.10.2 or newer"
NEAR = 0.1
"""How far the ratio of two distances may be from 2: number formats of 16 bits round."""


class LostError(EngineError):
    """A server broke off, refused the connection or answered 5xx."""


class SilentError(LostError):
    """No answer came in time: the server may be slow or gone."""


class RefusedError(LostError):
    """Nothing takes connections at its address."""


@dataclass(slots=True)
class Piece:
    """One piece of a streamed reply."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    best: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    """The server's own error, which came after all that."""


def sampling_body(completion: Completion, model: str, stop_ids: frozenset[int]) -> dict[str, Any]:
    """The request for one reply."""
    options = completion.options
    body = {
        "model": model,
        "prompt": completion.prompt_ids,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        **_shaping(options.shaping),
        "logprobs": options.top_logprobs,
        "stop_token_ids": sorted(stop_ids),
        "stream": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **AS_SAMPLED,
    }
    if completion.matcher is not None:
        body["structured_outputs"] = {"grammar": completion.matcher.grammar}
    if options.together > 1:
        body["stream_interval"] = options.together  # since vLLM 0.28; older ones send each token by itself
    if options.seed:
        digest = hashlib.blake2b(options.seed.encode(), digest_size=8).digest()
        body["seed"] = int.from_bytes(digest) >> 1  # vLLM takes a signed one
    return body


def _shaping(shaping: Shaping) -> dict[str, Any]:
    """Returns the request's sampling fields beside temperature and `top_p`."""
    asked: dict[str, tuple[Any, Any]] = {
        "top_k": (shaping.top_k, 0),
        "min_p": (shaping.min_p, 0.0),
        "presence_penalty": (shaping.presence, 0.0),
        "frequency_penalty": (shaping.frequency, 0.0),
        "repetition_penalty": (shaping.repetition, 1.0),
        "logit_bias": ({str(token): added for token, added in shaping.bias}, {}),
    }
    return {name: value for name, (value, neutral) in asked.items() if value != neutral}


class Client:
    """Requests to servers, by URL. Belongs to the event loop that first uses it."""

    def __init__(self) -> None:
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        """Keyed by socket file; "" is the session of all that have a host."""

    def _session(self, url: str) -> tuple[aiohttp.ClientSession, str]:
        """Returns the session for a server, and the beginning of its addresses."""
        file = url.removeprefix(SOCKET) if url.startswith(SOCKET) else ""
        if file not in self._sessions:
            options: dict[str, Any] = {"limit": 0, "keepalive_timeout": IDLE_SECONDS}
            connector = aiohttp.UnixConnector(file, **options) if file else aiohttp.TCPConnector(**options)
            self._sessions[file] = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            )
        return self._sessions[file], "http://localhost" if file else url

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def stream(self, url: str, body: dict[str, Any]) -> AsyncGenerator[Piece, None]:
        """The pieces of a reply. One may be empty: something has come, but no token yet.

        Raises LostError where the server is at fault, EngineError where it refuses the request.
        """
        session, base = self._session(url)
        try:
            async with session.post(base + "/v1/completions", data=orjson.dumps(body), headers=_JSON) as r:
                await _check(r, url)
                yield Piece()
                async for piece in _pieces(r, url, body):
                    yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise _kind(error)(f"{url} broke off: {_words(error)}") from error

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

    async def find_problem(self, url: str, seconds: float = PROBE_SECONDS) -> EngineError | None:
        """Why a server's /health does not answer 200 within `seconds`; None if it does."""
        try:
            await self._read(url, "/health", None, seconds)
        except EngineError as error:
            return error
        return None

    async def _read(self, url: str, path: str, content: bytes | None, seconds: float | None) -> bytes:
        session, base = self._session(url)
        try:
            async with (
                asyncio.timeout(seconds),
                session.request(
                    "GET" if content is None else "POST", base + path, data=content, headers=_JSON
                ) as r,
            ):
                await _check(r, url + path)
                return await r.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _kind(error)(f"{url + path} does not answer: {_words(error)}") from error


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
    """After a time-out, or without descriptors left in this process, the server may be well."""
    ours = getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)
    if ours or isinstance(error, TimeoutError):
        return SilentError
    return RefusedError if isinstance(error, aiohttp.ClientConnectorError) else LostError


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def check_server(client: Client, url: str, model: str) -> int:
    """The longest prompt plus completion, in tokens.

    The log-probabilities must be those at the temperature sampled with. So two are tried: at half the
    temperature the distance between two tokens' log-probabilities doubles. A server that reports the model's
    own (raw) ones repeats itself.

    Raises EngineError for a server that is away or can't be used, naming what it lacks.
    """
    context = await _context(client, url, model)
    warm = await _sample(client, url, model, temperature=1.0)
    cool = await _sample(client, url, model, temperature=0.5)
    _check_logprobs(warm, cool, url)
    return context


async def _context(client: Client, url: str, model: str) -> int:
    try:
        said = await client.ask(url, "/v1/models", seconds=CHECK_SECONDS)
    except LostError as error:
        raise EngineError(f"{error}; start vLLM there, or give the address of a server that runs") from error
    cards = said.get("data", []) if isinstance(said, dict) else []
    names = [card.get("id") for card in cards]
    if model not in names:
        raise EngineError(
            f"{url} does not serve {model!r} but {names}; give the name it serves, or start it with "
            f"--served-model-name {model}"
        )
    context = cards[names.index(model)].get("max_model_len")
    if not isinstance(context, int):
        raise EngineError(
            f"{url} does not say how long a prompt may be (max_model_len in /v1/models), so it is not vLLM, "
            f"or an old one; {NEWER}"
        )
    return context


async def _sample(client: Client, url: str, model: str, *, temperature: float) -> dict[int, float]:
    """Log-probabilities of the best tokens after a prompt."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": CHECK_PROMPT,
        "max_tokens": 1,
        "temperature": temperature,
        "seed": 0,
        "logprobs": CHECK_BEST,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **AS_SAMPLED,
    }
    said = await client.ask(url, "/v1/completions", body, CHECK_SECONDS)
    choice = said["choices"][0]
    if (
        choice.get("token_ids") is None
        or (choice.get("prompt_token_ids") or said.get("prompt_token_ids")) != CHECK_PROMPT
    ):
        raise EngineError(
            f"{url} answers without token ids (return_token_ids), so its replies can't be trained on; {NEWER}"
        )
    try:
        return dict(best_of(choice["logprobs"]["top_logprobs"][0], CHECK_BEST))
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise EngineError(
            f"{url} answers without log-probabilities of token ids (return_tokens_as_token_ids); {NEWER}"
        ) from error


def _check_logprobs(warm: dict[int, float], cool: dict[int, float], url: str) -> None:
    first, last = max(warm, key=warm.__getitem__), min(warm.keys() & cool.keys(), key=warm.__getitem__)
    distance = warm[first] - warm[last]
    if first not in cool or distance < 1e-3:
        return  # a model that prefers nothing yet: its log-probabilities are alike at every temperature
    ratio = (cool[first] - cool[last]) / distance
    logits = max(*warm.values(), *cool.values()) > 0 or abs(cool[first] - 2 * warm[first]) < 1e-6 < abs(
        warm[first]
    )
    if abs(ratio - 2) > NEAR or logits:
        what = "logits" if logits else "log-probabilities of the model itself, whatever the temperature"
        raise EngineError(
            f"{url} reports {what}; training needs those of the distribution that was sampled from: start it "
            "with --logprobs-mode processed_logprobs"
        )
