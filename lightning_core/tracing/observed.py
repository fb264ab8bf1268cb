"""Calls that stay at the app's own endpoint: observed as they pass, without touching them, and stored.

The choke point notes a request as *watched* in its `extensions`, which never leave the process. The HTTP
client's `send`, the one step that every attempt of both SDKs passes, then keeps the bytes of the reply as
the app reads them. When the reply ends, however it ends, its `Call` is stored. No header is kept, neither of
the request nor of the reply: they bear the app's keys.

All this runs inside the app's own calls, so nothing that a server or an app sends may raise here: what
can't be read becomes a call that says so.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Final

import orjson

from lightning_core.dialects.base import Dialect
from lightning_core.dialects.lenient import ObservedReply, error_of
from lightning_core.errors import InstrumentationError
from lightning_core.records.types import Call, CallStatus
from lightning_core.tracing.patching import patch
from lightning_core.tracing.scope import Scope

CLIENTS: Final = ("httpx", "httpx2")
"""The HTTP libraries that the SDKs send with."""
_NEEDED: Final = (
    *("Client.send", "AsyncClient.send", "SyncByteStream", "AsyncByteStream"),
    *("Client._transport_for_url", "AsyncClient._transport_for_url"),
)
_WATCHED: Final = "lightning_watched"
_ROUTED: Final = "lightning_routed"
_MOST_CHARACTERS: Final = 500
"""Characters kept of a server's error message."""
_SECRETS: Final = ("authorization", "authorization_token", "headers", "api_key")
"""Fields with secrets in the descriptions of remote tools, and in bodies meant for a proxy."""


passing: ContextVar[bool] = ContextVar("lightning_passing", default=False)
"""Whether a call that is known already is being sent here, maybe by one library through another."""


@contextmanager
def pass_on(known: bool) -> Iterator[None]:
    """Marks requests sent in this block as known already, if `known`."""
    before = passing.get()
    passing.set(known or before)
    try:
        yield
    finally:
        passing.set(before)  # no token: an async reply may be given up in another context


def watch(request: Any, scope: Scope, agent: str, call_id: str, dialect: type[Dialect]) -> None:
    """Observe a request that is about to be sent where the app sends it.

    From here on it is under way; if it never passes `send`, that is how the rollout ends with it.
    """
    watched = ObservedCall(scope, agent, call_id, dialect, request.url, content_of(request))
    request.extensions[_WATCHED] = watched
    scope.under_way[call_id] = watched.call


def content_of(request: Any) -> bytes | None:
    """A request's body; None if it is sent piece by piece."""
    try:
        content: bytes = request.content
        return content
    except RuntimeError:
        return None


def keep_token(request: Any) -> None:
    """Let a routed request keep the rollout's token, and go straight to the gateway: credentials that the
    app's client adds to whatever it sends would replace the token, and a proxy need not know this machine."""
    request.extensions[_ROUTED] = {}


class _Listening:
    """A reply's stream of bytes that passes on what comes when it comes."""

    def __init__(self, stream: Any, watch: ObservedCall) -> None:
        self._stream = stream
        self._watch = watch
        self._chunks: list[bytes] = []
        watch.chunks = self._chunks

    @property
    def elapsed(self) -> Any:
        return self._stream.elapsed  # where httpx2's responses look for it


class _SyncListening(_Listening):
    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._stream:
                self._chunks.append(chunk)
                yield chunk
        except GeneratorExit:  # given up midway: whoever opened the reply closes it
            raise
        except BaseException as error:
            self._watch.close(error)
            raise
        self._watch.close(whole=True)

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._watch.close()


class _AsyncListening(_Listening):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                self._chunks.append(chunk)
                yield chunk
        except GeneratorExit:
            raise
        except BaseException as error:
            self._watch.close(error)
            raise
        self._watch.close(whole=True)

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            self._watch.close()


def install(
    module: ModuleType, user: object, meet: Callable[[Any, list[Any]], bool]
) -> list[Callable[[], None]]:
    """Listen to what is sent with this HTTP library, until the functions returned are called. `meet` is given
    what no SDK has built, and says whether it is a call of a model; it may route or watch it.

    Raises InstrumentationError if the library has no place for it.
    """
    missing = [name for name in _NEEDED if _find(module, name) is None]
    if missing:
        raise InstrumentationError(
            f"{module.__name__} {getattr(module, '__version__', '')} has no {missing[0]!r}, through "
            "which the calls that stay at the app's own endpoint are seen; install httpx<1 or httpx2>=2,<3"
        )
    sync = partial(_send, meet, type("ListeningStream", (_SyncListening, module.SyncByteStream), {}))
    not_sync = partial(_asend, meet, type("ListeningStream", (_AsyncListening, module.AsyncByteStream), {}))
    return [patch(module.Client, "send", user, sync), patch(module.AsyncClient, "send", user, not_sync)]


def _find(found: object, name: str) -> object:
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _send(
    meet: Callable[[Any, list[Any]], bool], listening: type, original: Callable[..., Any], users: list[Any]
) -> Callable[..., Any]:
    def send(client: Any, request: Any, **kwargs: Any) -> Any:
        if not users or not _is_known(request, users, meet):
            return original(client, request, **kwargs)
        watch = _begin(client, request, kwargs, _keep_headers)
        try:
            with pass_on(True):
                response = original(client, request, **kwargs)
        except BaseException as error:
            _fail(watch, error)
            raise
        _listen(watch, response, listening)
        return response

    return send


def _asend(
    meet: Callable[[Any, list[Any]], bool], listening: type, original: Callable[..., Any], users: list[Any]
) -> Callable[..., Any]:
    async def send(client: Any, request: Any, **kwargs: Any) -> Any:
        if not users or not _is_known(request, users, meet):
            return await original(client, request, **kwargs)
        watch = _begin(client, request, kwargs, _keep_headers_async)
        try:
            with pass_on(True):
                response = await original(client, request, **kwargs)
        except BaseException as error:
            _fail(watch, error)
            raise
        _listen(watch, response, listening)
        return response

    return send


def _is_known(request: Any, users: list[Any], meet: Callable[[Any, list[Any]], bool]) -> bool:
    """Whether it is a call of a model that was routed, watched or noticed."""
    extensions = request.extensions
    if _ROUTED in extensions or _WATCHED in extensions:
        return True
    return request.method == "POST" and not passing.get() and meet(request, users)


def _begin(
    client: Any, request: Any, kwargs: dict[str, Any], hook: Callable[[Any], Any]
) -> ObservedCall | None:
    """The marks stay: a client of the app's own may send the same request again."""
    if _ROUTED in request.extensions:
        kwargs["auth"] = None
        if hooks := client.event_hooks["request"]:
            request.extensions[_ROUTED] = request.headers.copy()
            if hooks[-1] is not hook:
                hooks.append(hook)
        _leave_out_proxy(client, request.url)
    watch: ObservedCall | None = request.extensions.get(_WATCHED)
    if watch is None:
        return None
    if watch.sent:
        watch = request.extensions[_WATCHED] = watch.again()
    watch.sent = True
    return watch


def _keep_headers(request: Any) -> None:
    """The last hook of a client: those before it may have put other credentials into a routed request."""
    request.headers.update(request.extensions.get(_ROUTED, {}))


async def _keep_headers_async(request: Any) -> None:
    _keep_headers(request)


def _leave_out_proxy(client: Any, url: Any) -> None:
    """Have the app's client send to this address by its own transport, whatever proxy it has for others."""
    # The app made the client, and httpx lets no one name a transport for an address afterwards.
    if client._transport_for_url(url) is not client._transport:
        kind = type(next(iter(client._mounts)))  # a pattern of addresses
        mounts = {kind(f"all://{url.netloc.decode('ascii')}"): None, **client._mounts}
        client._mounts = dict(sorted(mounts.items()))  # the narrowest pattern first


def _fail(watch: ObservedCall | None, error: BaseException) -> None:
    if watch is not None:
        watch.close(error)


def _listen(watch: ObservedCall | None, response: Any, listening: type) -> None:
    if watch is None or watch.ended:  # the same request was sent again meanwhile
        return
    watch.response = response
    if response.is_closed:  # read already
        watch.close(whole=True)
    else:
        response.stream = listening(response.stream, watch)


@dataclass(eq=False, slots=True)
class ObservedCall:
    """One attempt at a call, from the moment its request was built."""

    scope: Scope
    agent: str
    call_id: str
    dialect: type[Dialect]
    url: Any
    content: bytes | None
    """The request's body; None if it is sent piece by piece."""
    started_at: float = field(default_factory=time.time)
    response: Any = None
    chunks: list[bytes] | None = None
    """The bytes of a reply that is read piece by piece, as they came; None if it was read at once."""
    raised: BaseException | None = None
    sent: bool = False
    ended: bool = False

    def again(self) -> ObservedCall:
        """The next attempt with the same request. This one is over, and the next one counts."""
        self.close()
        following = ObservedCall(self.scope, self.agent, self.call_id, self.dialect, self.url, self.content)
        self.scope.under_way[self.call_id] = following.call
        return following

    def close(self, raised: BaseException | None = None, *, whole: bool = False) -> None:
        """Store the attempt's call. `whole`: the reply was read to its end. Only the first
        time counts. Never raises."""
        if self.ended:
            return
        self.ended, self.raised = True, raised
        self.scope.seen.append(self.call(whole=whole))
        if self.scope.under_way.get(self.call_id) == self.call:
            del self.scope.under_way[self.call_id]
        self.response = self.chunks = None  # which refer back here: what is over is freed at once

    def call(self, *, whole: bool = False) -> Call:
        """The call as it stands; cancelled, if neither its reply has ended nor anything was raised.
        Never raises, and may be asked from any thread."""
        # Once, and in this order: another thread's `close` takes away the response first.
        chunks, response = self.chunks, self.response
        arrived = _Arrived(response, chunks) if response is not None else None
        try:
            return self._read(arrived, whole)
        except Exception as error:
            refused = arrived is not None and arrived.refused
            failed = refused or isinstance(self.raised, Exception)
            return self._call(
                status="failed" if failed else "completed" if whole else "cancelled",
                error=f"could not be read: {type(error).__name__}",
            )

    def _read(self, arrived: _Arrived | None, whole: bool) -> Call:
        body, (reply, doubt) = self._body(), self._reply(arrived)
        status, error = self._outcome(arrived, reply, whole)
        return self._call(
            model=str(body.get("model") or ""),
            request=body,
            choices=reply.choices,
            status=status,
            error=doubt if whole and error is None else error,
            response_id=reply.response_id,
        )

    def _call(self, **read: Any) -> Call:
        return Call(
            id=self.call_id,
            rollout_id=self.scope.rollout_id,
            attempt=self.scope.attempt,
            agent=self.agent,
            trained=False,
            dialect=self.dialect.name,
            started_at=self.started_at,
            ended_at=time.time(),
            endpoint=endpoint_of(self.url, self.dialect.path),
            **read,
        )

    def _body(self) -> dict[str, Any]:
        try:
            body = orjson.loads(self.content or b"")
        except ValueError:
            return {}
        return without_secrets(body) if isinstance(body, dict) else {}

    def _reply(self, arrived: _Arrived | None) -> tuple[ObservedReply, str | None]:
        """The reply, and why it could not be read if so. The app may read it all the same."""
        if arrived is None or arrived.refused:
            return ObservedReply(), None
        try:
            return self.dialect.read_reply(arrived.content(), streamed=arrived.streamed), None
        except (TypeError, LookupError, AttributeError, ValueError, RuntimeError) as error:
            return ObservedReply(), f"its reply could not be read: {type(error).__name__}: {error}"

    def _outcome(
        self, arrived: _Arrived | None, reply: ObservedReply, whole: bool
    ) -> tuple[CallStatus, str | None]:
        if arrived is not None and arrived.refused:
            return "failed", arrived.refusal()
        if reply.error is not None:
            return "failed", reply.error[:_MOST_CHARACTERS]
        if reply.complete:
            return "completed", None
        if isinstance(self.raised, Exception):
            return "failed", _described(self.raised)
        if not whole or arrived is None:
            return "cancelled", None
        return ("failed", "its reply ended early") if arrived.streamed else ("completed", None)


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A reply as far as it has come, held here while another thread may be ending it."""

    response: Any
    chunks: list[bytes] | None
    """None if it was read at once."""

    @property
    def refused(self) -> bool:
        return bool(self.response.is_error)

    @property
    def streamed(self) -> bool:
        kind: str = self.response.headers.get("content-type", "")
        return kind.startswith("text/event-stream")

    def content(self) -> bytes:
        """Returns the received bytes, decoded as far as possible: an encoding may be broken, or cut off."""
        if self.chunks is None:
            content: bytes = self.response.content
            return content
        if "content-encoding" not in self.response.headers:
            return b"".join(self.chunks)
        headers = {"content-encoding": self.response.headers["content-encoding"]}
        decoded: list[bytes] = []
        try:
            for piece in type(self.response)(200, headers=headers, content=iter(self.chunks)).iter_bytes():
                decoded.append(piece)
        except Exception as error:  # httpx's or httpx2's DecodingError
            if not decoded:
                raise ValueError(f"{type(error).__name__}: {error}") from error
        return b"".join(decoded)

    def refusal(self) -> str:
        """The status and the server's words; not those of a refused key, which may repeat the key."""
        said = f"HTTP {self.response.status_code} {self.response.reason_phrase}".rstrip()
        if self.response.status_code in (401, 403):
            return said
        try:
            message = error_of(orjson.loads(self.content()))
        except (TypeError, AttributeError, ValueError, RuntimeError):
            message = None
        return f"{said}: {message[:_MOST_CHARACTERS]}" if message else said


def endpoint_of(url: Any, path: str) -> str:
    """The base URL of an address, without user, password and query."""
    base = url.raw_path.partition(b"?")[0].decode("ascii").removesuffix(path)
    return f"{url.scheme}://{url.netloc.decode('ascii')}{base}"


def without_secrets(body: dict[str, Any]) -> dict[str, Any]:
    """The request's body without the credentials that some endpoints are given in it."""
    kept = {name: value for name, value in body.items() if name not in _SECRETS}
    for name in ("tools", "mcp_servers"):
        if isinstance(kept.get(name), list):
            kept[name] = [
                {key: value for key, value in tool.items() if key not in _SECRETS}
                if isinstance(tool, dict)
                else tool
                for tool in kept[name]
            ]
    return kept


def _described(error: BaseException) -> str:
    """Its type, and its words unless there is an address among them, which may hold a key."""
    words = str(error)
    return f"{type(error).__name__}: {words}" if words and "://" not in words else type(error).__name__
