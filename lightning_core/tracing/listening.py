"""Listen to the calls that stay at the app's own endpoint, as they pass and without touching them.

The choke point notes a request as *watched* in its `extensions`, which never leave the process. The HTTP
client's `send`, the one step that every attempt of both SDKs passes, then keeps the bytes of the reply as
the app reads them, and when the reply ends, however it ends, what came of it is reported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, Final

from lightning_core.errors import InstrumentationError
from lightning_core.tracing.patching import patch
from lightning_core.tracing.scope import Scope
from lightning_core.tracing.seen import Watch

CLIENTS: Final = ("httpx", "httpx2")
"""The HTTP libraries that the SDKs send with."""
_NEEDED: Final = ("Client.send", "AsyncClient.send", "SyncByteStream", "AsyncByteStream")
_WATCHED: Final = "lightning_watched"
_ROUTED: Final = "lightning_routed"


def watch(request: Any, scope: Scope, agent: str, call_id: str, path: str) -> None:
    """See what becomes of a request that is about to be sent where the app sends it.

    From here on it is under way; if it never passes `send`, that is how the rollout ends with it.
    """
    try:
        content = request.content
    except RuntimeError:  # it is sent piece by piece
        content = None
    watched = Watch(scope, agent, call_id, path, request.url, content)
    request.extensions[_WATCHED] = watched
    scope.under_way[call_id] = watched.call


def keep_token(request: Any) -> None:
    """Let a routed request keep the rollout's token: credentials that the app's client adds to whatever
    it sends would replace it, and end at the gateway."""
    request.extensions[_ROUTED] = True


class _Listening:
    """A reply's stream of bytes that passes on what comes when it comes."""

    def __init__(self, stream: Any, watch: Watch) -> None:
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


def install(module: ModuleType, user: object) -> list[Callable[[], None]]:
    """Listen to what is sent with this HTTP library, until the functions returned are called.

    Raises InstrumentationError if the library has no place for it.
    """
    missing = [name for name in _NEEDED if _find(module, name) is None]
    if missing:
        raise InstrumentationError(
            f"{module.__name__} {getattr(module, '__version__', '')} has no {missing[0]!r}, through "
            "which the calls that stay at the app's own endpoint are seen; install httpx<1 or httpx2>=2,<3"
        )
    sync = partial(_send, type("ListeningStream", (_SyncListening, module.SyncByteStream), {}))
    not_sync = partial(_asend, type("ListeningStream", (_AsyncListening, module.AsyncByteStream), {}))
    return [patch(module.Client, "send", user, sync), patch(module.AsyncClient, "send", user, not_sync)]


def _find(found: object, name: str) -> object:
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _send(listening: type, original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    def send(client: Any, request: Any, **kwargs: Any) -> Any:
        watch = _begin(request, kwargs) if users else None
        if watch is None:
            return original(client, request, **kwargs)
        try:
            response = original(client, request, **kwargs)
        except BaseException as error:
            watch.close(error)
            raise
        _listen(watch, response, listening)
        return response

    return send


def _asend(listening: type, original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    async def send(client: Any, request: Any, **kwargs: Any) -> Any:
        watch = _begin(request, kwargs) if users else None
        if watch is None:
            return await original(client, request, **kwargs)
        try:
            response = await original(client, request, **kwargs)
        except BaseException as error:
            watch.close(error)
            raise
        _listen(watch, response, listening)
        return response

    return send


def _begin(request: Any, kwargs: dict[str, Any]) -> Watch | None:
    """The marks stay: a client of the app's own may send the same request again."""
    if request.extensions.get(_ROUTED, False):
        kwargs["auth"] = None
    watch: Watch | None = request.extensions.get(_WATCHED)
    if watch is None:
        return None
    if watch.sent:
        watch = request.extensions[_WATCHED] = watch.again()
    watch.sent = True
    return watch


def _listen(watch: Watch, response: Any, listening: type) -> None:
    if watch.ended:  # the same request was sent again meanwhile
        return
    watch.response = response
    if response.is_closed:  # read already
        watch.close(whole=True)
    else:
        response.stream = listening(response.stream, watch)
