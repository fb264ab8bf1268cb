"""All plays at once: a real runner, gateway and store, and what was recorded of each."""

from __future__ import annotations

import asyncio
import importlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from lightning_core.gateway.app import Gateway
from lightning_core.gateway.limits import Limits
from lightning_core.gateway.server import GatewayServer
from lightning_core.gateway.tokens import Tokens
from lightning_core.plugins import load_plugins
from lightning_core.prompts import DECLARED, PinnedPrompts, Prompt, written
from lightning_core.records.types import Attempt, Call, Event, Rollout, Run, Status, Task
from lightning_core.runner.runner import Runner
from lightning_core.runner.tagging import tagging
from lightning_core.stores.base import Store
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.stores.versions import put_prompt
from lightning_core.tracing.scope import Scope, read_unseen
from tests.proof import bare
from tests.proof.engine import ProofEngine
from tests.proof.play import Play, read_marks

FRAMEWORKS = {
    "bare": "openai",
    "langgraph": "langgraph",
    "autogen": "autogen_agentchat",
    "openai_agents": "agents",
    "crewai": "crewai",
    "agent_framework": "lightning_agent_framework",
    "google_adk": "lightning_google_adk",
    "llama_index": "lightning_llama_index",
    "nested": "openai",
}
"""The modules with plays, and the package each needs. CrewAI and LlamaIndex are not there beside openai 3,
and ADK is there only."""


PATIENT = Limits(head_seconds=300.0, body_seconds=300.0)
"""All frameworks start on one loop, which stands still meanwhile. On a busy machine that takes longer than
the 30 s after which the gateway closes a silent connection, and a bare client does not try again."""


@dataclass(slots=True)
class Tally:
    """The counts of one play."""

    play: Play
    rollouts: int = 0
    calls: int = 0
    wrong_rollout: int = 0
    wrong_agent: int = 0
    wrong_call: int = 0
    """Calls recorded under more than one id."""
    wrong_prompt: int = 0
    """Calls whose model was told another version of the prompt than their rollout is pinned to."""
    missing: int = 0
    surplus: int = 0
    silent: int = 0
    """Calls of which nothing is known: neither recorded nor noticed."""
    timed_out: int = 0
    """Rollouts that failed by a time-out, and said so. What they did not come to ask is not missing."""
    twice: list[str] = field(default_factory=list)
    """Calls recorded under more than one id."""

    def add(
        self,
        calls: Sequence[Call],
        repeats: int,
        events: Sequence[Event] = (),
        prompts: Mapping[str, int] | None = None,
        *,
        error: str | None = None,
    ) -> None:
        """Count what was recorded and noticed under one rollout, which has these versions of prompts and
        failed with that error."""
        self.rollouts += 1
        timed_out = timed_out_by(error)
        self.timed_out += timed_out
        self.calls += len(calls)
        nonces: defaultdict[str, set[str]] = defaultdict(set)
        for call in calls:
            truth = read_marks(call)
            self.wrong_rollout += truth["rollout"] != call.rollout_id
            self.wrong_agent += truth["agent"] != call.agent
            told = (prompts or {}).get(truth["agent"])
            self.wrong_prompt += told is not None and truth.get("prompt") != str(told)
            if "nonce" in truth:
                nonces[truth["nonce"]].add(call.id)
        self.wrong_call += sum(len(ids) - 1 for ids in nonces.values())
        doubled = {each for ids in nonces.values() if len(ids) > 1 for each in ids}
        self.twice += [f"{c.rollout_id}: call {c.id} {c.status} {c.error}" for c in calls if c.id in doubled]
        recorded = Counter((call.agent, call.status) for call in calls)
        expected = self.play.expected(repeats)
        missing = 0 if timed_out else (expected - recorded).total()
        found = filter(None, map(read_unseen, events))
        noticed = sum(count for unseen, count in found if not unseen.line)
        due = 0 if timed_out else self.play.noticed * repeats
        self.missing += missing
        self.silent += max(0, missing + due - noticed)
        self.surplus += (recorded - expected).total() + max(0, noticed - self.play.noticed * repeats)

    @property
    def mistakes(self) -> int:
        return (
            self.wrong_rollout
            + self.wrong_agent
            + self.wrong_call
            + self.wrong_prompt
            + self.missing
            + self.surplus
            + self.silent
        )


@dataclass(slots=True)
class Proof:
    """All plays, and what broke."""

    tallies: list[Tally]
    most_at_once: int = 0
    errors: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """The modules of which no play was run, as their framework is not installed."""

    @property
    def holds(self) -> bool:
        return not self.errors and not any(tally.mistakes for tally in self.tallies)


async def prove(folder: Path, *, calls: int, rollouts: int) -> Proof:
    """Run every play in as many rollouts as it takes, all of them at once."""
    async with AsyncExitStack() as stack:
        plays = await _open_plays(stack)
        store = await stack.enter_async_context(SqliteStore(f"sqlite:///{folder}/proof.db"))
        tokens = Tokens(b"0123456789abcdef")
        plugins = load_plugins()
        stack.enter_context(tagging(plugins))
        per_play = math.ceil(rollouts / len(plays))
        of_one_run = sum(sum(play.calls.values()) for play in plays)
        prompts = await _put_prompts(store)
        stage = Stage(plays, per_play, repeats=math.ceil(calls / (per_play * of_one_run)))
        await store.enqueue(stage.rollouts)
        gateway = Gateway(ProofEngine(), store, tokens, agents=None, prompts=prompts)
        async with GatewayServer(gateway, limits=PATIENT) as server:

            def scope_for(attempt: Attempt) -> Scope:
                key = tokens.issue(attempt.rollout, attempt.number)
                return Scope(attempt.rollout.id, attempt.number, server.url, key)

            finished = await stage.perform(store, scope_for, prompts)
        recorded = await store.get_calls([rollout.id for rollout in finished])
        events = await store.get_events([rollout.id for rollout in finished])
    failed = [r for r in finished if r.status is not Status.SUCCEEDED]
    errors = [f"{r.id}: {r.error}" for r in failed if not timed_out_by(r.error)]
    errors += [f"plugin {name!r} is broken: {problem}" for name, problem in plugins.broken.items()]
    return Proof(stage.judge(recorded, events, finished), stage.most, errors, _skipped())


def timed_out_by(error: str | None) -> bool:
    """Whether a rollout failed by a time-out: `TimeoutError`, `ConnectionTimeoutError`, `APITimeoutError`."""
    return (error or "").partition(":")[0].rpartition(".")[2].endswith(("TimeoutError", "Timeout"))


async def _put_prompts(store: Store) -> PinnedPrompts:
    """Several versions of the prompt of each agent in the plays of a bare client."""
    for name in bare.PINNED:
        for text in bare.PROMPTS:
            await put_prompt(store, "proof", name, text, author="proof")
    declared = {name: Prompt(bare.PROMPTS[0]) for name in bare.PINNED}
    return PinnedPrompts(store, Run(id="proof", config={DECLARED: written(declared)}))


async def _open_plays(stack: AsyncExitStack) -> list[Play]:
    skipped = _skipped()
    modules = [name for name in FRAMEWORKS if name not in skipped]
    opened = [importlib.import_module(f"tests.proof.{name}").plays() for name in modules]
    return [play for plays in opened for play in await stack.enter_async_context(plays)]


def _skipped() -> list[str]:
    return [name for name, package in FRAMEWORKS.items() if find_spec(package) is None]


class Stage:
    """The rollouts of all plays; each runs its play `repeats` times, one after another."""

    def __init__(self, plays: list[Play], per_play: int, repeats: int) -> None:
        self.plays = plays
        self.repeats = repeats
        self.rollouts = [
            Rollout(
                id=f"{index}-{copy}",
                run_id="threads" if play.threads else "loop",
                task=Task(input={"play": index, "rollout": f"{index}-{copy}"}),
                group_id=str(index),
                step=0,
                prompt_versions=dict.fromkeys(bare.PINNED, copy % len(bare.PROMPTS))
                if play.framework == "bare client"
                else {},
            )
            for index, play in enumerate(plays)
            for copy in range(per_play)
        ]
        self.most = 0
        """The most rollouts that were at work at one moment."""
        self._here = 0
        self._all_here = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def perform(
        self, store: Store, scope_for: Callable[[Attempt], Scope], prompts: PinnedPrompts
    ) -> list[Rollout]:
        """Run them all to their end."""
        stop, many = asyncio.Event(), len(self.rollouts)
        runners = [
            Runner(
                solve,
                store,
                run_id=run_id,
                scope_for=scope_for,
                concurrency=many,
                timeout=1800,
                prompts=prompts,
            )
            for run_id, solve in (("loop", self._on_loop), ("threads", self._in_thread))
        ]
        serving = [asyncio.create_task(runner.serve(stop)) for runner in runners]
        finished = await store.wait_finished([rollout.id for rollout in self.rollouts])
        stop.set()
        await asyncio.gather(*serving)
        return finished

    def judge(
        self,
        recorded: Mapping[str, Sequence[Call]],
        events: Mapping[str, Sequence[Event]],
        finished: Sequence[Rollout],
    ) -> list[Tally]:
        """Compare what the store holds with what the prompts say and with what the apps should have made."""
        tallies = [Tally(play) for play in self.plays]
        errors = {rollout.id: rollout.error for rollout in finished}
        for rollout in self.rollouts:
            tally = tallies[int(rollout.group_id)]
            tally.add(
                recorded[rollout.id],
                self.repeats,
                events[rollout.id],
                rollout.prompt_versions,
                error=errors[rollout.id],
            )
        return tallies

    async def _on_loop(self, task: Task) -> float:
        play = self._play(task)
        await self._wait_for_all()
        for _ in range(self.repeats):
            await play.run(str(task.input["rollout"]))  # type: ignore[misc]
        self._leave()
        return 1.0

    def _in_thread(self, task: Task) -> float:
        play = self._play(task)
        asyncio.run_coroutine_threadsafe(self._wait_for_all(), self._loop).result()
        for _ in range(self.repeats):
            play.run(str(task.input["rollout"]))
        self._loop.call_soon_threadsafe(self._leave)
        return 1.0

    def _play(self, task: Task) -> Play:
        return self.plays[int(str(task.input["play"]))]

    async def _wait_for_all(self) -> None:
        """No rollout makes a call before all have come."""
        self._here += 1
        self.most = max(self.most, self._here)
        if self._here == len(self.rollouts):
            self._all_here.set()
        await self._all_here.wait()

    def _leave(self) -> None:
        self._here -= 1
