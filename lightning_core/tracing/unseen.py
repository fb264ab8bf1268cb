"""Calls of models that pass by the SDKs: sent to the gateway or recorded where that is safe, else noticed.

An HTTP library knows no agents, but its one step that every request passes runs in the caller's own context,
as the SDKs' does. A POST that reads as a call of a model, and bears none of our marks, is

- *routed*, if a trained agent makes it and the gateway speaks that API: same path, same JSON;
- *recorded*, if it stays at the app's endpoint and httpx sends it (`observed`);
- *noticed* otherwise: counted by host, library and agent, and told as the alert `unseen_calls`;
- *lost*, if it is made outside every rollout while rollouts run: noticed with the app's own line of code.

| library | the step | routed |
|---|---|---|
| httpx, httpx2 | `Client.send`, `AsyncClient.send` (in `observed`) | yes |
| requests | `Session.send` | yes |
| aiohttp | `ClientSession._request` | yes |
| urllib3 | `PoolManager.urlopen`; in a pool of one host, `HTTPConnectionPool.urlopen` | yes; no |
| http.client, urllib.request | `HTTPConnection.request` | no |
| DSPy's own transport (lm15) | `StdlibTransport.stream`, `StdlibAsyncTransport.stream` | yes |

A call that a framework's cache of replies answers passes by the SDKs too. So a trained agent's calls by-pass
these caches inside a rollout. A cached reply is no sample of the policy: of a group's rollouts the first asks
and the others repeat its reply, so nothing is recorded of them and all get one reward. Other agents keep
their caches. `LIGHTNING_CACHES=keep` in the environment keeps all of them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import uuid4

import orjson

from lightning_core.dialects import find_dialect
from lightning_core.dialects.base import Dialect
from lightning_core.errors import ConfigError
from lightning_core.prompts import put_in
from lightning_core.records.types import UNNAMED
from lightning_core.tracing import observed, spans
from lightning_core.tracing.patching import patch
from lightning_core.tracing.routing import (
    SDKS,
    TAKEN_OUT,
    Puller,
    Sdk,
    address,
    at_gateway,
    innermost,
    marks,
    route,
)
from lightning_core.tracing.scope import Scope, Unseen, current_agent, current_scope, left_behind, running

log = logging.getLogger(__name__)

_CERTAIN: Final = re.compile(
    r"/chat/completions$|:(?:stream)?generateContent$|:(?:stream)?rawPredict$|/api/(?:chat|generate)$"
    r"|/model/[^/]+/(?:invoke|converse)[^/]*$",
    re.IGNORECASE,
)
"""Paths of OpenAI's API and those made after it, Gemini's, Vertex's, Ollama's and Bedrock's."""
_LIKELY: Final = re.compile(r"/(?:responses|completions?|messages|generate|v\d+/chat|complete|infer)$")
"""Paths that other services have too: their body decides."""
_OF_MODELS: Final = frozenset({"model", "prompt", "inputs"})
"""Fields of which the body of a call of a model has at least one."""
KEEP: Final = "LIGHTNING_CACHES"
"""The variable that says "keep"."""
_OURS: Final = str(Path(__file__).parents[1])
_LIBRARIES: Final = (sysconfig.get_path("stdlib"), "site-packages", "dist-packages", "<frozen")


@dataclass(frozen=True, slots=True)
class Post:
    """A request that is about to be sent."""

    library: str
    url: str
    body: object
    headers: Mapping[str, str]
    movable: bool = True
    """Whether the library can still send it elsewhere."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a request goes instead, with which headers."""

    url: str
    headers: dict[str, str]


def name_caller(users: Sequence[Puller]) -> str:
    """The agent that is calling in this context."""
    who = innermost([current_agent(), spans.current_span_agent(), *(user() for user in users)])
    return who.agent if who is not None else UNNAMED


def meet(post: Post, users: Sequence[Puller]) -> Routed | bool:
    """Handles a POST: it is routed, or it was noticed (True), or it is not a model's (False)."""
    scope = current_scope()
    if observed.passing.get() or (scope is None and not running()):
        return False
    at = urlsplit(post.url)
    if not _is_call(at.path, post.body):
        return False
    if scope is None:
        return _lost(post.library, at.netloc, at.path)
    if at_gateway(at.netloc, scope):
        return False
    agent = name_caller(users)
    spoken = _spoken(at.path, post.body) if post.movable else None
    if spoken is None or not _goes_to_gateway(spoken[0], scope, agent, at.hostname or "", post.headers):
        _check_prompt(scope, agent, spoken and spoken[2], post.body)
        scope.notice(Unseen(at.netloc, post.library, agent, at.path))
        return True
    sdk, path, _ = spoken
    query = urlencode([pair for pair in parse_qsl(at.query) if pair[0] != "api-version"])
    kept = {name: value for name, value in post.headers.items() if name.lower().encode() not in TAKEN_OUT}
    own = marks(sdk, scope, agent, _call_id(post.headers))
    return Routed(address(scope, path, query), {**kept, **own})


def meet_httpx(request: Any, users: Sequence[Puller]) -> bool:
    """The same for a request of httpx or httpx2, which is routed or watched in place. Whether it was a call
    of a model."""
    scope = current_scope()
    if scope is None and not running():
        return False
    path, netloc = request.url.path, request.url.netloc.decode("ascii")
    if not (_CERTAIN.search(path) or _LIKELY.search(path)):
        return False
    body = observed.content_of(request)
    if not _is_call(path, body):
        return False
    if scope is None:
        return _lost(type(request).__module__.partition(".")[0], netloc, path)
    if at_gateway(netloc, scope):
        return False
    agent, spoken = name_caller(users), _spoken(path, body)
    if spoken is None:
        _check_prompt(scope, agent, None, body)
        scope.notice(Unseen(netloc, type(request).__module__.partition(".")[0], agent, path))
        return True
    sdk, served, dialect = spoken
    call = _call_id(request.headers)
    if _goes_to_gateway(sdk, scope, agent, request.url.host, request.headers):
        route(sdk, request, scope, agent, call, served)
        observed.keep_token(request)
    else:
        _check_prompt(scope, agent, dialect, body)
        observed.watch(request, scope, agent, call, dialect)
    return True


def _check_prompt(scope: Scope, agent: str, dialect: type[Dialect] | None, body: object) -> None:
    """Raise ConfigError for a call past the SDKs whose prompt has another version, as that is put in there
    alone."""
    pinned = scope.prompts.get(agent)
    if pinned is None or agent in scope.taken:
        return
    request = dict(_read(body))
    if dialect is None or put_in(agent, pinned, dialect, request) != request:
        raise ConfigError(
            f"agent {agent!r} has a prompt with versions, and its call of a model passes by the SDKs of "
            "OpenAI and Anthropic, where that is put in: take it in the app from "
            f"lightning.prompt({agent!r}, default)"
        )


def _goes_to_gateway(sdk: Sdk, scope: Scope, agent: str, host: str, given: Mapping[str, str]) -> bool:
    if scope.trains(agent):
        return True
    texts = {name.lower(): value if isinstance(value, str) else "" for name, value in given.items()}
    return sdk.names_no_endpoint(host, texts)


def _call_id(given: Mapping[str, str]) -> str:
    """The app's own idempotency key; without one each request is a call."""
    own = next((value for name, value in given.items() if name.lower() == "idempotency-key"), None)
    return own or uuid4().hex


# reading a request --------------------------------------------------------------------------
def _is_call(path: str, body: object) -> bool:
    if _CERTAIN.search(path):
        return True
    return _LIKELY.search(path) is not None and not _OF_MODELS.isdisjoint(_read(body))


def _spoken(path: str, body: object) -> tuple[Sdk, str, type[Dialect]] | None:
    """The API that a request speaks, and its path after `/v1`, if it is one of the gateway's."""
    for sdk in SDKS:
        served = sdk.served.fullmatch(path)
        if served is not None and (dialect := find_dialect(served[1])) is not None:
            found = dialect.prompt in _read(body)
            return (sdk, served[1], dialect) if found else None
    return None


def _read(body: object) -> Mapping[str, object]:
    """A body's JSON object; empty if it is none, or is sent piece by piece."""
    if isinstance(body, str | bytes | bytearray):
        try:
            body = orjson.loads(body)
        except ValueError:
            return {}
    return body if isinstance(body, dict) else {}


# calls outside every rollout ----------------------------------------------------------------
def _lost(library: str, netloc: str, path: str) -> bool:
    """Notice it with every rollout that runs, as nothing says whose it is."""
    scopes, line = running(), app_line()
    if line is None or left_behind() or any(at_gateway(netloc, scope) for scope in scopes):
        return False
    for scope in scopes:
        scope.notice(Unseen(netloc, library, UNNAMED, path, line))
    return True


def app_line() -> str | None:
    """The innermost line of the app's own code; None if the call is this package's own, such as a judge's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_OURS):
            if not name.startswith(str(Path(_OURS, "tracing"))):
                return None
        elif not any(part in name for part in _LIBRARIES):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a library's own thread"


# the libraries ------------------------------------------------------------------------------
Wrap = Callable[[Callable[..., Any], list[Puller]], Callable[..., Any]]
Bypass = Callable[..., Any]
"""The replacement of a cache's method: `bypass(original, owner, *args, **kwargs)`."""


def install(module: ModuleType, user: Puller) -> list[Callable[[], None]]:
    """Meet what is sent with one of `LIBRARIES`, or by-pass one of `CACHES`, until the functions returned are
    called."""
    if module.__name__ in CACHES:
        owner, names, bypass = CACHES[module.__name__]
        wrap: Wrap = partial(_around, bypass)
        lost = "a cache of its replies can't be by-passed; switch it off for the agents that are trained"
    else:
        owner, name, wrap = LIBRARIES[module.__name__]
        names = (name,)
        lost = (
            "calls of models that are made with it past an SDK are neither routed nor noticed; make them "
            "with the SDK of OpenAI or Anthropic, or with httpx"
        )
    kind = getattr(module, owner, None)
    if missing := [name for name in names if not hasattr(kind, name)]:
        log.warning("%s has no %s.%s: %s", module.__name__, owner, missing[0], lost)
        return []
    return [patch(kind, name, user, wrap) for name in names]  # type: ignore[arg-type]


def _session_send(original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    def send(session: Any, request: Any, **kwargs: Any) -> Any:
        if not users or request.method != "POST":
            return original(session, request, **kwargs)
        met = meet(Post("requests", str(request.url), request.body, request.headers), users)
        if isinstance(met, Routed):
            request.url = met.url
            request.headers = type(request.headers)(met.headers)
            kwargs["proxies"] = {}  # those given are for the address before, as are the session's
        with observed.pass_on(met is True):
            return original(session, request, **kwargs)

    return send


def _manager_urlopen(original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    def urlopen(manager: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        if not users or method != "POST":
            return original(manager, method, url, *args, **kwargs)
        given = kwargs.get("headers") or manager.headers
        post = Post("urllib3", url, kwargs.get("body"), dict(given), movable=manager.proxy is None)
        met = meet(post, users)
        if isinstance(met, Routed):
            url, kwargs["headers"] = met.url, met.headers
        with observed.pass_on(met is True):
            return original(manager, method, url, *args, **kwargs)

    return urlopen


def _pool_urlopen(original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    def urlopen(pool: Any, method: str, url: str, body: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not users or method != "POST":
            return original(pool, method, url, body, *args, **kwargs)
        whole = url if "://" in url else f"{pool.scheme}://{pool.host}:{pool.port}{url}"
        with observed.pass_on(meet(Post("urllib3", whole, body, {}, movable=False), users) is True):
            return original(pool, method, url, body, *args, **kwargs)

    return urlopen


def _connection_request(original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    def request(connection: Any, method: str, url: str, body: Any = None, *args: Any, **kwargs: Any) -> Any:
        if users and method == "POST":
            whole = url if "://" in url else f"http://{connection.host}:{connection.port}{url}"
            meet(Post("http.client", whole, body, {}, movable=False), users)
        return original(connection, method, url, body, *args, **kwargs)

    return request


_ADDED: Final = ("_default_auth", "_default_proxy")
"""Options that a session of aiohttp adds to requests that have none."""


def _aiohttp_request(original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    async def request(session: Any, method: str, url: Any, **kwargs: Any) -> Any:
        if not users or method != "POST":
            return await original(session, method, url, **kwargs)
        whole = str(session._build_url(url)) if hasattr(session, "_build_url") else str(url)
        body = kwargs["data"] if kwargs.get("data") is not None else kwargs.get("json")
        given = dict(kwargs.get("headers") or {})
        # Where the session itself adds credentials or a proxy, it adds them to any request.
        added = (kwargs.get("auth"), *(getattr(session, name, None) for name in _ADDED))
        movable = all(one is None for one in added)
        met = meet(Post("aiohttp", whole, body, {**session.headers, **given}, movable), users)
        if isinstance(met, Routed):
            # The session adds its own headers; an empty one takes the place of a credential.
            hidden = {name: "" for name in session.headers if name.lower().encode() in TAKEN_OUT}
            ours = {name.lower() for name in met.headers}
            hidden = {name: "" for name in hidden if name.lower() not in ours}
            kwargs = {name: value for name, value in kwargs.items() if name not in ("params", "proxy", "ssl")}
            url, kwargs["headers"] = met.url, {**hidden, **met.headers}
        with observed.pass_on(met is True):
            return await original(session, method, url, **kwargs)

    return request


def _lm15_stream(original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    """DSPy's own transport, which opens sockets itself."""

    def stream(transport: Any, request: Any) -> Any:
        if not users or request.method != "POST":
            return original(transport, request)
        movable = getattr(transport, "_proxy", None) is None
        met = meet(Post("dspy", request.url, request.body, dict(request.headers), movable), users)
        if isinstance(met, Routed):
            request = replace(request, url=met.url, headers=list(met.headers.items()))
        return original(transport, request)

    return stream


LIBRARIES: Final[Mapping[str, tuple[str, str, Wrap]]] = {
    "requests.sessions": ("Session", "send", _session_send),
    "urllib3.poolmanager": ("PoolManager", "urlopen", _manager_urlopen),
    "urllib3.connectionpool": ("HTTPConnectionPool", "urlopen", _pool_urlopen),
    "aiohttp.client": ("ClientSession", "_request", _aiohttp_request),
    "http.client": ("HTTPConnection", "request", _connection_request),
    "dspy._vendor.lm15.transports._sync": ("StdlibTransport", "stream", _lm15_stream),
    "dspy._vendor.lm15.transports._async": ("StdlibAsyncTransport", "stream", _lm15_stream),
}
"""The module, and its class, method and wrapper."""


# the caches ---------------------------------------------------------------------------------
_GLOBALS: Final = "langchain_core.globals"


def _without_cache(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """LangChain: False switches off the model's own cache and the global one. Where there is none, the app's
    own object does it, which may count or remember."""
    if model.cache or (model.cache is None and sys.modules[_GLOBALS].get_llm_cache() is not None):
        model = model.model_copy(update={"cache": False})
    return original(model, *args, **kwargs)


def _create(original: Callable[..., Any], cache: Any, *args: Any, **kwargs: Any) -> Any:
    """AutoGen: the client that the cache is around."""
    return getattr(cache.client, original.__name__)(*args, **kwargs)


def _miss(original: Callable[..., Any], cache: Any, *args: Any, **kwargs: Any) -> Any:
    """LiteLLM and DSPy: nothing is found."""
    return asyncio.sleep(0) if inspect.iscoroutinefunction(original) else None


def _around(bypass: Bypass, original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    def around(owner: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current_scope() if users else None
        if scope is None or os.environ.get(KEEP) == "keep" or not scope.trains(name_caller(users)):
            return original(owner, *args, **kwargs)
        return bypass(original, owner, *args, **kwargs)

    return around


CACHES: Final[Mapping[str, tuple[str, tuple[str, ...], Bypass]]] = {
    "langchain_core.language_models.chat_models": (
        "BaseChatModel",
        ("_generate_with_cache", "_agenerate_with_cache"),
        _without_cache,
    ),
    "langchain_core.language_models.llms": ("BaseLLM", ("generate", "agenerate"), _without_cache),
    "autogen_ext.models.cache._chat_completion_cache": (
        "ChatCompletionCache",
        ("create", "create_stream"),
        _create,
    ),
    "litellm.caching.caching": ("Cache", ("get_cache", "async_get_cache"), _miss),
    "dspy.clients.cache": ("Cache", ("get",), _miss),
}
"""The module, and its class, the methods that look into the cache, and what is done instead."""
