"""Any version is served, several at once: by token, by name, and while the weights change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import openai
import pytest

from lightning_core.errors import ApiError, ModelError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.gateway.versions import Embedded, VersionedUpstream, VersionRegistry
from lightning_core.records.types import ResourceVersion, Rollout, Task
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.stores.versions import choose
from tests.gateway.scripted import ScriptedEngine, until

RUN = "run"


@dataclass
class Opened:
    """An engine that was opened for a version."""

    upstream: ScriptedEngine
    closed: bool = False

    async def close(self) -> None:
        assert self.upstream.opened == self.upstream.closed, "a reply was under way"
        self.closed = True


@dataclass
class Site:
    """A gateway over versions, as tests look at it."""

    store: MemoryStore
    tokens: Tokens
    upstream: VersionedUpstream
    opened: dict[int, list[Opened]]
    registry: VersionRegistry
    url: str = ""
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    def client(self, key: str = "none", agent: str = "writer") -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=key,
            max_retries=0,
            default_headers={"x-lightning-agent": agent},
        )
        self.clients.append(client)
        return client

    async def rollout(self, name: str, policy_version: int | None = None) -> str:
        """The token of a new rollout's first attempt."""
        rollout = Rollout(
            id=name, run_id=RUN, task=Task(input={}), group_id="g", step=0, policy_version=policy_version
        )
        await self.store.enqueue([rollout])
        await self.store.lease("worker", 1, 60.0)
        return self.tokens.issue(rollout, 1)


@asynccontextmanager
async def open_site(
    *versions: int, embedded: ScriptedEngine | None = None, engines: int = 2, look_seconds: float = 1e9
) -> AsyncIterator[Site]:
    """A gateway for these versions, the last of them current; it looks only when it must."""
    store, opened = MemoryStore(), dict[int, list[Opened]]()

    async def open_engine(source: str, version: int) -> Opened:
        await asyncio.sleep(0)
        if source == "/gone":
            raise ModelError("there is no folder '/gone'")
        one = Opened(ScriptedEngine(policy_version=version, model_name="tiny"))
        opened.setdefault(version, []).append(one)
        return one

    for version in versions:
        await put(store, version)
    own = Embedded(embedded, lambda: embedded.policy_version) if embedded is not None else None
    registry = VersionRegistry(store, RUN, look_seconds=look_seconds)
    upstream = VersionedUpstream("tiny", registry, open_engine, embedded=own, engines=engines)
    site = Site(store, Tokens(b"0123456789abcdef"), upstream, opened, registry)
    gateway = Gateway(upstream, store, site.tokens, agents=("writer",), anonymous=True)
    async with GatewayServer(gateway) as server:
        site.url = server.url
        try:
            yield site
        finally:
            for client in site.clients:
                await client.close()
    await upstream.close()
    assert all(one.closed for each in opened.values() for one in each)


async def put(store: MemoryStore, version: int, uri: str | None = "/there") -> None:
    await store.put_resource(ResourceVersion(run_id=RUN, version=version, uri=uri, chosen_at=1e9 + version))


async def ask(client: openai.AsyncOpenAI, model: str = "any", text: str = "hi") -> str:
    """The weights that answered, as the reply names them."""
    reply = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
    return str(reply.system_fingerprint)


async def test_a_rollout_is_answered_by_the_version_it_is_pinned_to_and_its_calls_say_so() -> None:
    async with open_site(3, 4) as site:
        pinned, free = site.client(await site.rollout("a", 3)), site.client(await site.rollout("b"))
        assert await ask(pinned) == "policy-3"
        assert await ask(free) == "policy-4"
        calls = await site.store.get_calls(["a", "b"])
        assert [(c.policy_version, c.trained) for c in calls["a"] + calls["b"]] == [(3, True), (4, True)]


async def test_a_pin_is_for_all_agents_of_the_rollout_and_others_may_name_another_version() -> None:
    async with open_site(3, 4) as site:
        token = await site.rollout("a", 3)
        assert await ask(site.client(token, "critic")) == "policy-3"
        assert await ask(site.client(token, "critic"), "tiny@4") == "policy-4"


async def test_a_trained_agent_can_not_choose_its_weights_by_name() -> None:
    async with open_site(3, 4) as site:
        client = site.client(await site.rollout("a", 3))
        assert await ask(client, "tiny@3") == "policy-3"
        with pytest.raises(openai.BadRequestError, match="rollout says which weights answer it, version 3"):
            await ask(client, "tiny@4")


async def test_two_versions_answer_side_by_side_by_name() -> None:
    async with open_site(0, 1, 2) as site:
        client = site.client()
        assert [model.id async for model in client.models.list()] == ["tiny", "tiny@0", "tiny@1", "tiny@2"]
        assert (await client.models.retrieve("tiny@1")).id == "tiny@1"
        asked = ["tiny@1", "tiny@2"] * 5
        answers = await asyncio.gather(*(ask(client, model) for model in asked))
        assert answers == ["policy-1", "policy-2"] * 5
        assert [len(site.opened[version]) for version in (1, 2)] == [1, 1]
        assert await ask(client, "tiny") == await ask(client, "gpt-4@1") == "policy-2"


async def test_an_unknown_or_deleted_version_is_refused_in_words() -> None:
    async with open_site(1, 2, look_seconds=0.0) as site:
        with pytest.raises(openai.NotFoundError, match="no version 9; there are: 1, 2"):
            await ask(site.client(), "tiny@9")
        with pytest.raises(openai.NotFoundError, match="no version 9; there are: 1, 2"):
            await ask(site.client(), "policy@9")
        await put(site.store, 1, uri=None)
        with pytest.raises(openai.NotFoundError, match="version 1 was deleted"):
            await ask(site.client(), "tiny@1")
        await put(site.store, 3, uri="/gone")
        with pytest.raises(openai.InternalServerError, match="no folder '/gone'"):
            await ask(site.client(), "tiny@3")
        await put(site.store, 3)
        assert await ask(site.client(), "tiny@3") == "policy-3"


async def test_a_run_without_weights_yet_is_told_to_try_again() -> None:
    async with open_site() as site:
        with pytest.raises(openai.InternalServerError, match="no weights to serve yet") as refused:
            await ask(site.client())
        assert refused.value.status_code == 503


async def test_a_rollout_never_sees_older_weights_than_there_were_when_it_was_enqueued() -> None:
    """The gateway does not look by itself here: only the first call of an attempt makes it."""
    async with open_site(1) as site:
        old = site.client(await site.rollout("a"))
        assert await ask(old) == "policy-1"
        await put(site.store, 2)
        assert await ask(old) == "policy-1"
        assert await ask(site.client(await site.rollout("b"))) == "policy-2"
        assert await ask(old) == "policy-2"
        assert site.registry.looks == 2
        await choose(site.store, RUN, 1, author="ann")
        assert await ask(site.client(await site.rollout("c"))) == "policy-1"


class SlowStore(MemoryStore):
    """Answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    async def list_resources(self, run_id: str, name: str = "policy") -> list[ResourceVersion]:
        found = await super().list_resources(run_id, name)
        self.asked.set()
        await self.answer.wait()
        return found


async def test_requests_that_arrive_together_share_one_look_that_began_after_them() -> None:
    store = SlowStore()
    await put(store, 1)
    registry = VersionRegistry(store, RUN)
    early = asyncio.create_task(registry.current(("early", 1)))
    await store.asked.wait()
    await put(store, 2)
    late = [asyncio.create_task(registry.current((f"late-{n}", 1))) for n in range(20)]
    await asyncio.sleep(0)
    store.answer.set()
    assert [v.version for v in await asyncio.gather(early, *late)] == [1, *[2] * 20]
    assert registry.looks == 2


async def test_an_engine_makes_room_only_when_its_replies_have_ended() -> None:
    async with open_site(1, 2, 3, engines=1) as site:
        client = site.client()
        assert await ask(client, "tiny@1") == "policy-1"
        first = site.opened[1][0].upstream
        first.pause_after = 1
        slow = asyncio.create_task(ask(client, "tiny@1", "a b c"))
        await until(lambda: first.paused)
        others = [asyncio.create_task(ask(client, f"tiny@{version}")) for version in (2, 3, 1)]
        async with httpx.AsyncClient(base_url=site.url) as web:
            await four_under_way(web)
        assert not any(task.done() for task in (slow, *others))
        assert site.upstream.opened == [1]
        first.resume.set()
        assert await slow == "policy-1"
        assert await asyncio.gather(*others) == ["policy-2", "policy-3", "policy-1"]
        assert len(site.upstream.opened) == 1


async def four_under_way(web: httpx.AsyncClient) -> None:
    """Return once the gateway has four calls that have not ended."""
    for _ in range(5000):
        if (await web.get("/healthz")).json()["calls"] == 4:
            return
        await asyncio.sleep(0.002)
    raise AssertionError("the calls did not come to the gateway")


async def test_beside_a_trainer_the_newest_weights_are_the_trainers_own() -> None:
    own = ScriptedEngine(policy_version=5, model_name="tiny")
    async with open_site(3, 4, embedded=own) as site:
        client = site.client()
        assert [await ask(client, m) for m in ("tiny", "tiny@5", "tiny@4")] == [
            "policy-5",
            "policy-5",
            "policy-4",
        ]
        assert [model.id async for model in client.models.list()][-1] == "tiny@5"
        assert list(site.opened) == [4]


async def test_a_pinned_call_that_an_update_overtakes_is_answered_by_its_version_all_the_same() -> None:
    own = ScriptedEngine(policy_version=4, model_name="tiny")
    begin = own.chat

    async def published_meanwhile(request):  # type: ignore[no-untyped-def]
        own.policy_version = 5
        return await begin(request)

    own.chat = published_meanwhile  # type: ignore[method-assign]
    async with open_site(4, embedded=own) as site:
        client = site.client(await site.rollout("a", 4))
        assert await ask(client, text="a b") == "policy-4"
        (call,) = (await site.store.get_calls(["a"]))["a"]
        assert call.policy_version == 4
        assert call.choices[0].message["content"] == "a b"


async def test_an_engine_that_does_not_know_of_versions_can_not_answer_for_another() -> None:
    store, tokens, engine = MemoryStore(), Tokens(b"0123456789abcdef"), ScriptedEngine(policy_version=7)
    rollout = Rollout(id="a", run_id=RUN, task=Task(input={}), group_id="g", step=0, policy_version=7)
    await store.enqueue([rollout])
    await store.lease("worker", 1, 60.0)
    async with GatewayServer(Gateway(engine, store, tokens, agents=None)) as server:
        site = Site(store, tokens, None, {}, None, server.url)  # type: ignore[arg-type]
        assert await ask(site.client(tokens.issue(rollout, 1))) == "policy-7"
        other = tokens.issue(replace_version(rollout, 6), 2)
        with pytest.raises(openai.InternalServerError, match="version 6 of the weights was asked for, and 7"):
            await ask(site.client(other))
        for client in site.clients:
            await client.close()


def replace_version(rollout: Rollout, version: int) -> Rollout:
    return rollout.model_copy(update={"policy_version": version})


@pytest.mark.parametrize(
    "asked", ["٣", "３", "³", "1_0", " 3", "+3", "-1", "3.0", "0x3", "", "latest", "9" * 10]
)
async def test_a_version_is_named_by_digits_of_ascii_and_anything_else_is_refused_by_name(asked: str) -> None:
    async with open_site(3) as site:
        for client in (site.client(agent="critic"), site.client(await site.rollout("r1"))):
            with pytest.raises(openai.NotFoundError, match="is not a version of 'tiny'") as refused:
                await ask(client, f"tiny@{asked}")
            assert repr(f"tiny@{asked}") in refused.value.message or asked == "9" * 10
        assert await ask(site.client(agent="critic"), "tiny@3") == "policy-3"
        assert await ask(site.client(agent="critic"), f"other@{asked}") == "policy-3"


async def test_a_pinned_registry_gives_its_version_whichever_is_chosen() -> None:
    store = MemoryStore()
    for version in (1, 2):
        await put(store, version)
    registry = VersionRegistry(store, RUN, pinned=1, look_seconds=0)
    assert (await registry.current()).version == 1
    await choose(store, RUN, 2, author="me")
    assert (await registry.current(("rollout", 1))).version == 1
    with pytest.raises(ApiError, match="no version 7"):
        await VersionRegistry(store, RUN, pinned=7).current()
