"""The API, listening, over a real store; with tokens of every scope."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from lightning_core.api.access import RunGrant, Scope, issue
from lightning_core.api.app import LIMITS, Api
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.limits import Limits
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import Member, Run
from lightning_core.stores.base import Store
from lightning_core.stores.http_store import HttpStore
from tests.gateway.scripted import ScriptedEngine
from tests.stores import conftest as stores
from tests.stores import redis_server as servers

make_store = stores.make_store
postgres_server, postgres_url = stores.postgres_server, stores.postgres_url
redis_server, redis_url = stores.redis_server, stores.redis_url
every_kind = pytest.mark.parametrize("store", stores.KINDS, indirect=True)
SECRET = "0123456789abcdef" * 4
SERVER_SECRET = b"of the server, for all runs"
RUN = Run(id="run", secret=SECRET, created_at=1.0)
OTHER = Run(id="other", secret=SECRET[::-1], created_at=2.0)


@dataclass
class Desk:
    """A running API and what a test wants to know of it."""

    store: Store
    url: str
    web: httpx.AsyncClient
    tokens: dict[str, str] = field(default_factory=dict)

    async def ask(
        self, method: str, path: str, body: Any = None, *, scope: str = "admin", **query: Any
    ) -> httpx.Response:
        """The answer to a request; a `bytes` body goes as it is."""
        headers = {"authorization": f"Bearer {self.tokens.get(scope, scope)}"} if scope else {}
        content = {"content": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
        return await self.web.request(
            method, f"/api/v1{path}", headers=headers, params=query or None, **content
        )

    async def get(self, path: str, *, scope: str = "client", **query: Any) -> Any:
        """Returns the answer to a GET."""
        return good(await self.ask("GET", path, scope=scope, **query))

    async def post(self, path: str, body: Any, *, scope: str = "admin") -> Any:
        """Returns the answer to a POST."""
        return good(await self.ask("POST", path, body, scope=scope))

    def remote(self, scope: str = "admin", **options: Any) -> HttpStore:
        """The store as a program on another machine opens it."""
        return HttpStore(self.url.replace("://", f"://:{self.tokens[scope]}@"), **options)

    async def lease(self, scope: str = "worker", **fields: Any) -> list[dict[str, Any]]:
        leases: list[dict[str, Any]] = (await self.post("/leases", {"worker": "w1", **fields}, scope=scope))[
            "leases"
        ]
        return leases


def good(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def error(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error of an answer, which must have that status and code."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    problem: dict[str, Any] = answer.json()["error"]
    assert problem["code"] == code
    assert problem["message"]
    return problem


def token(scope: Scope, run: Run | None, *, seconds: float = 3600) -> str:
    """A token of one run, or of all."""
    secret = SERVER_SECRET if run is None else bytes.fromhex(run.secret)
    return issue(secret, RunGrant(scope, None if run is None else run.id, time.time() + seconds))


def rollout(name: str, **fields: Any) -> dict[str, Any]:
    """A rollout as a client writes it."""
    return {"id": name, "run_id": "run", "group_id": "g", "step": 0, "task": {"input": {"q": name}}, **fields}


def tokens() -> dict[str, str]:
    """Returns tokens by name: for one run `worker`, `client`, `admin`; for all runs `all worker` and so on;
    for another run."""
    scopes: tuple[Scope, ...] = ("worker", "client", "admin")
    return (
        {scope: token(scope, RUN) for scope in scopes}
        | {f"all {scope}": token(scope, None) for scope in scopes}
        | {f"other {scope}": token(scope, OTHER) for scope in scopes}
        | {"expired": token("admin", RUN, seconds=-1)}
    )


@asynccontextmanager
async def open_desk(
    store: Store, *, listening: bool = True, port: int = 0, limits: Limits = LIMITS, **options: Any
) -> AsyncIterator[Desk]:
    """Run the API as a test needs it, over HTTP or (quicker to open) in this process; with two runs."""
    for run in (RUN, OTHER):
        await store.put_run(run)
    api = Api(store, **{"secret": SERVER_SECRET, **options})
    if not listening:
        transport = httpx.ASGITransport(api.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as web:
            yield Desk(store, "", web, tokens())
        return
    async with (
        GatewayServer(api, port=port, name="lightning-api", limits=limits) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as web,
    ):
        yield Desk(store, server.url, web, tokens())


@asynccontextmanager
async def serving(store: Store, port: int = 0, engine: ScriptedEngine | None = None) -> AsyncIterator[str]:
    """A gateway that serves the run, as its member says; its URL."""
    gateway = Gateway(engine or ScriptedEngine(), store, Tokens(bytes.fromhex(SECRET)), agents=None)
    async with GatewayServer(gateway, port=port) as server:
        data: dict[str, Any] = {"instance": gateway.instance}
        await store.put_member(Member(run_id="run", role="gateway", name="g", url=server.url, data=data))
        yield server.url


@pytest.fixture(params=("memory", "sqlite"))
async def store(request: pytest.FixtureRequest, make_store: Callable[[str], Store]) -> AsyncIterator[Store]:
    """A store; `every_kind` are all that there are."""
    async with make_store(request.param) as opened:
        yield opened


@pytest.fixture
def free_port() -> int:
    """A port on which nobody listens."""
    return servers.free_port()


@pytest.fixture
async def desk(store: Store) -> AsyncIterator[Desk]:
    async with open_desk(store, listening=False) as opened:
        yield opened
