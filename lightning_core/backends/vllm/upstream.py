"""vLLM's servers as the gateway sees them: the same chat requests and deltas as of the local engine.

The gateway's loop reads replies and the trainer's publishes weights, so what both meet runs in a thread with
an event loop of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from lightning_core.backends.meter import Meter
from lightning_core.backends.serving.completion import Completion
from lightning_core.backends.serving.replies import ChatGeneration
from lightning_core.backends.serving.upstream import ChatModel, ChatUpstream
from lightning_core.backends.vllm.client import Client, check_server
from lightning_core.backends.vllm.dispatch import Dispatcher, Pool, Revive, Rules
from lightning_core.backends.weights.sources import find_source, find_stop_ids, load_config, load_tokenizer
from lightning_core.dialects.upstream import ChatRequest
from lightning_core.errors import ConfigError, GatewayError, UnsupportedError
from lightning_core.loop_thread import LoopThread

T = TypeVar("T")
PER_SLOT = 2
"""Replies in flight at a server for each that it samples at a time: the next are there when some end."""


class Replicas:
    """The servers. Methods may be called from any event loop and any thread."""

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        server_timeout: float = 60.0,
        probe_seconds: float = 1.0,
        silence: float = 60.0,
        max_running: int = 512,
        policy_version: int = 0,
        take_back: bool = True,
        revive: Revive | None = None,
        busy: Meter | None = None,
    ) -> None:
        """`model` is the name it is served under. `policy_version` is that of the weights the servers have.

        At most `max_running` replies are in flight at one server; the others wait in the order in which they
        came. A request waits up to `server_timeout` seconds while no server answers.

        A server is lost once it refuses a probe, or after `silence` seconds without a byte of any reply or an
        answer to a probe; there is a probe every `probe_seconds` where it is idle or in doubt. With
        `take_back` a lost server takes part again once it answers, and `revive` is called, in this object's
        own event loop, while it does not. Without, it may come back with other weights than the current ones,
        and is out until `replace`. `busy` counts while a server has a reply to sample.
        """
        if max_running < 1:
            raise ConfigError(f"max_running={max_running!r} must be at least 1")
        rules = Rules(max_running, server_timeout, probe_seconds, silence, take_back, revive)
        self._client = Client()
        self._pool = Pool(_clean(urls), self._client, rules, policy_version)
        self.model = model
        self._dispatcher = Dispatcher(self._pool, self._client, model, busy or Meter())
        self._thread = LoopThread("lightning-vllm")
        self.context: int | None = None
        """Longest prompt plus completion that all servers take; known once they were checked."""

    @property
    def urls(self) -> list[str]:
        """Where the servers are."""
        return [replica.url for replica in self._pool.replicas]

    @property
    def dead(self) -> list[str]:
        """Returns the servers that take no requests at present."""
        return [replica.url for replica in self._pool.replicas if replica.lost is not None]

    @property
    def policy_version(self) -> int:
        """The version that answers what comes now."""
        return self._pool.version

    def replace(self, urls: Sequence[str], policy_version: int | None = None) -> None:
        """The servers are these from now on, all with this version of the weights, by default the current
        one. Replies at others end with an error. A new version: between `hold` and `release`."""
        self._thread.call(self._pool.replace, _clean(urls), policy_version)

    async def check(self) -> int:
        """Ask every server whether it can be used; returns the context. Raises EngineError, by name."""
        self.context = await self._thread.run(self._check())
        return self.context

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await it in the loop of these servers."""
        return await self._thread.run(work)

    async def hold(self) -> None:
        """Keep new requests waiting; returns once those in flight have ended."""
        await self._thread.run(self._dispatcher.hold())

    async def release(self) -> None:
        """Serve again what `hold` kept waiting."""
        await self._thread.run(self._dispatcher.release())

    async def close(self) -> None:
        """End it; replies in flight end with an error. A second time does nothing."""
        if not self._thread.stopped:
            await self._thread.run(self._close())
            await asyncio.to_thread(self._thread.stop)

    def submit(self, completion: Completion, stop_ids: frozenset[int]) -> None:
        """Put a reply in line. Raises GatewayError once closed."""
        if self._thread.stopped:
            raise GatewayError("the connection to vLLM's servers was closed; start the backend again")
        completion.on_cancel = lambda: self._thread.call(self._dispatcher.cancel, completion)
        self._thread.call(self._dispatcher.start, completion, stop_ids)

    async def _check(self) -> int:
        return min([await check_server(self._client, url, self.model) for url in self.urls])

    async def _close(self) -> None:
        await self._pool.close()
        await self._dispatcher.close()
        await self._client.close()


def _clean(urls: Sequence[str]) -> list[str]:
    if not urls:
        raise ConfigError("no servers; give the addresses of one or more, such as http://127.0.0.1:8000")
    return [url.rstrip("/").removesuffix("/v1") for url in urls]


@dataclass(frozen=True, slots=True)
class _Engine:
    """The servers, and the tokens that end a reply."""

    replicas: Replicas
    stop_ids: frozenset[int]

    def submit(self, completion: Completion) -> None:
        self.replicas.submit(completion, self.stop_ids)


class VllmUpstream(ChatUpstream):
    """Serves chat completions from vLLM's servers (`upstream.Upstream`).

    Prompts are rendered here, with the tokenizer and template of the model's folder. Log-probabilities are
    those of the distribution sampled from: with `top_p` below 1, that of the tokens it leaves over; under a
    constraint, that of the tokens it allows. A server that allows others is found out, and its reply fails.
    """

    replays_cuts = False

    def __init__(
        self,
        model_folder: str | Path,
        replicas: Replicas,
        *,
        name: str | None = None,
        seed: int | None = 0,
        unmasked: str = "",
    ) -> None:
        """`name` is what the model is called, the folder's own by default. `unmasked` is the setting for
        which the update can't compute under masks: replies are then held to no form.

        With `seed` None, requests that have none are sent without: faster on a GPU, but servers that were
        started with one `--seed` may then sample alike. Raises ModelError.
        """
        source, called = find_source(model_folder)
        tokenizer = load_tokenizer(source)
        config, generation_config = load_config(source)
        stop_ids = find_stop_ids(generation_config, tokenizer)
        longest = config.max_position_embeddings
        context = replicas.context or longest
        model = ChatModel(name or called, tokenizer, context, stop_ids, config.vocab_size, longest)
        super().__init__(model, _Engine(replicas, stop_ids), seed=seed)
        self.replicas, self._unmasked = replicas, unmasked

    async def chat(self, request: ChatRequest) -> ChatGeneration:
        """Put the choices in line; the first request has the servers checked, if `check` was not called.

        Raises ContextLengthError or UnsupportedError before anything is sampled, EngineError for servers
        that can't be used.
        """
        if request.constraint is not None and self._unmasked:
            raise UnsupportedError(
                f"no reply is held to a form ({request.constraint.kind}) with {self._unmasked}: the update "
                "could not compute under its masks; leave that setting, or the form, or train with "
                "Trainer(constrain=False)"
            )
        await self.check()
        return await super().chat(request)

    async def check(self) -> None:
        """Know from now on how long a prompt the servers take; those that can't be used raise EngineError."""
        context = self.replicas.context or await self.replicas.check()
        if context != self.model.context:
            self.model = replace(self.model, context=context)
