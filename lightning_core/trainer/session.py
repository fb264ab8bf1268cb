"""A training run's open parts: its settings, folder, store, backend, phases and prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from lightning_core.backends.base import Backend, naming
from lightning_core.backends.settings import PolicyOptions
from lightning_core.errors import ConfigError
from lightning_core.gateway.server import check_free
from lightning_core.plugins import Plugins, load_plugins
from lightning_core.prompts import Prompt
from lightning_core.records.types import Trajectory
from lightning_core.runner.runner import prepare
from lightning_core.stores.base import Store
from lightning_core.stores.credentials import from_folder
from lightning_core.stores.heartbeat import Heartbeat, make_member
from lightning_core.stores.versions import find_current, model_of, models_of, put_prompt
from lightning_core.texts.masking import without_password
from lightning_core.trainer.demonstrations import encode_all
from lightning_core.trainer.folder import PolicyFolder, RunFolder, from_anywhere
from lightning_core.trainer.learners import PolicyLearner, load_checkpoints
from lightning_core.trainer.observers import Observers
from lightning_core.trainer.parts import (
    ResolvedPhase,
    make_backend,
    make_rulebook,
    open_store,
    resolve_phases,
)
from lightning_core.trainer.preflight import check_options
from lightning_core.trainer.settings import Settings

Solve = Callable[..., Any]
"""The user's function: takes a Task, runs the app once, returns the reward; may be async."""


class Session:
    """`async with Session(...)` opens the run's store and starts its backend."""

    store: Store
    backend: Backend
    """The backend of the run's own policy."""
    learners: list[PolicyLearner]
    """The policies under training, the run's own first."""
    plugins: Plugins
    phases: list[ResolvedPhase]
    demonstrations: dict[int, tuple[Trajectory, ...]]
    """Demonstrations of a phase, by its first step."""

    def __init__(self, settings: Settings, folder: RunFolder, solve: Solve, observers: Observers) -> None:
        self.settings = settings
        self.folder = folder
        self.solve = solve
        self.observers = observers
        self._stack = AsyncExitStack()
        self._presence = AsyncExitStack()
        """The trainer's heartbeat: it ends last, so a run that still closes is not shown as ended."""
        self.prompts: Mapping[str, Prompt] = {}
        """As declared, or found; with `prompts="all"` none before that."""
        self.prompt_versions: dict[str, int] = {}
        """The current version of each of them; rollouts that are asked for are pinned to it."""

    async def __aenter__(self) -> Session:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _open(self, stack: AsyncExitStack) -> None:
        settings, folder = self.settings, self.folder
        self.plugins = load_plugins()
        if "runner" not in settings.remote_roles:
            prepare(self.solve, settings.workers)  # what can't run there is refused at once
        self.phases = resolve_phases(settings.phases, self.plugins)
        self.rulebook = make_rulebook(settings.air, self.plugins)
        self.backend = make_backend(settings, self.plugins)
        check_options(settings, self.phases, self.backend)
        if settings.port is not None and "gateway" not in settings.remote_roles:
            check_free(settings.host, settings.port)
        self.store = await stack.enter_async_context(open_store(self.store_url, self.plugins))
        await self._check_models()
        self._presence = await stack.enter_async_context(AsyncExitStack())
        stack.push_async_callback(self.backend.close)
        await self.backend.start()
        self.demonstrations = {
            phase.first: encode_all(phase.algorithm.learns_from, self.backend, settings.patterns)
            for phase in self.phases
            if phase.algorithm.learns_from is not None
        }
        self.learners = [PolicyLearner(None, self.backend, folder)]
        for policy in settings.named_policies:
            await self._add_policy(policy, stack)
        if (checkpoint := folder.latest_checkpoint()) is not None:
            await load_checkpoints(self.learners, checkpoint[0])

    async def _add_policy(self, policy: PolicyOptions, stack: AsyncExitStack) -> None:
        """Start a backend for a named policy."""
        folder = PolicyFolder(self.folder, policy.name)
        folder.prepare()
        with naming(policy):
            backend = self.backend.another(policy)
            stack.push_async_callback(backend.close)
            await backend.start()
        self.learners.append(PolicyLearner(policy.name, backend, folder))

    async def _check_models(self) -> None:
        """Raise ConfigError, by name, if a policy of a run that goes on has another base model than before:
        no checkpoint of it would fit."""
        known = await self.store.find_run(self.folder.run_id)
        if known is None or not self.settings.resume:
            return
        named = models_of(known)
        for policy, model in self.models.items():
            before = model_of(known, policy) if policy is None or policy in named else None
            if before not in (None, model):
                which = "its own policy" if policy is None else f"policy {policy!r}"
                raise ConfigError(
                    f"run {known.id!r} can't be resumed: {which} began as model {before!r}, and is now "
                    f"{model!r}; give the same as before, or {other_way(self.folder)}"
                )

    @property
    def models(self) -> dict[str | None, str]:
        """The base model of each policy; None: the run's own."""
        own = self.backend.model
        named = {each.name: each.model for each in self.settings.named_policies}
        return {None: str(own), **{name: str(own if of is None else of) for name, of in named.items()}}

    @property
    def backends(self) -> dict[str | None, Backend]:
        """The backend of each policy; None: the run's own."""
        return {each.policy: each.backend for each in self.learners}

    async def join(self, run_id: str) -> None:
        """Be listed among the run's members until everything else is closed."""
        member = make_member(run_id, "trainer", "trainer")
        await self._presence.enter_async_context(Heartbeat(self.store, member))

    async def pin_prompts(self, prompts: Mapping[str, Prompt]) -> None:
        """Know which version of each prompt is the current one; the first is what the app itself sends."""
        self.prompts, run_id = prompts, self.folder.run_id
        for name, prompt in prompts.items():
            current = find_current(await self.store.list_resources(run_id, name))
            current = current or await put_prompt(self.store, run_id, name, prompt.text, author="app")
            self.prompt_versions[name] = current.version

    @property
    def store_url(self) -> str:
        """The store of a resumed run is the one it was begun with."""
        given, address = self.settings.store, self.folder.read_address()
        if address is not None and given is not None:
            begun = without_password(from_anywhere(address["store"] or "of its folder"))
            shown = without_password(from_anywhere(given))
            if shown != begun:
                raise ConfigError(
                    f"run {self.folder.run_id!r} was started with store {begun!r}, not {shown!r}; "
                    "resume it without `store`"
                )
        if given is not None or address is None:
            return str(given or self.folder.store_url)
        return from_folder(address["store"]) if address["store"] else self.folder.store_url

    def phase(self, step: int) -> ResolvedPhase:
        """The phase that makes update `step`."""
        return next(phase for phase in self.phases if step < phase.end)


def other_way(folder: RunFolder) -> str:
    """Names the other way out for a person who has changed the settings."""
    if folder.latest_checkpoint() is None and (folder.read_address() or {}).get("store") is None:
        return "leave --resume out: a run without an update begins again in its folder"
    return "start a new run in another folder"
