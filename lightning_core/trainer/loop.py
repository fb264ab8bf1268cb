"""The training loop: collect, credit, update, publish, on one page."""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Container, Mapping, Sequence
from difflib import SequenceMatcher
from importlib.util import find_spec
from itertools import chain
from typing import Final

from lightning_core.air.rulebook import rule_numbers
from lightning_core.algorithms.search import Search
from lightning_core.backends.base import Backend, Paid, Timed
from lightning_core.errors import TrainingError, UnknownAgentError
from lightning_core.insight.advice import nothing_earned
from lightning_core.insight.failures import Refused, find_refused
from lightning_core.insight.verdict import missing_agents, seen_agents
from lightning_core.plugins import install_command
from lightning_core.prompts import ALL
from lightning_core.records.types import UNNAMED, Call, Metrics, Rollout, Task, matches
from lightning_core.trainer import discovery
from lightning_core.trainer.batch import StepBatch, had_signal, step_numbers
from lightning_core.trainer.collector import Collector, check_any_reward
from lightning_core.trainer.learners import Lines
from lightning_core.trainer.parts import ResolvedPhase
from lightning_core.trainer.report import evaluation, find_evaluation
from lightning_core.trainer.rollouts import RolloutMaker, withdraw
from lightning_core.trainer.searching import SearchBench
from lightning_core.trainer.settings import TINY
from lightning_core.trainer.summary import Evaluation
from lightning_core.trainer.teaching import teach
from lightning_core.trainer.updating import Updater
from lightning_core.trainer.versions import KEPT

logger = logging.getLogger(__name__)

PATIENCE = 256
"""Rollouts: an agent that acts in one of fifty is missing from all of them in one run of 180."""
SOLVED: Final = "two evaluations in a row solved every held-out task (stop_when_solved=False goes on)"
ALIKE = 0.82
"""Ratio of matching letters from which on two names look alike: two letters swapped in a name of six."""


class Loop:
    """The steps of one run."""

    def __init__(self, maker: RolloutMaker, train: Sequence[Task], validation: Sequence[Task]) -> None:
        self.maker = maker
        self.session = session = maker.session
        self.settings = session.settings
        self.observers = session.observers
        self.run_id = session.folder.run_id
        self.collector = Collector(maker, train)
        self.updater = Updater(session)
        self.agent_names = AgentNames(self.settings.patterns)
        self.versions = Lines(session.store, session.learners, self.settings.keep_checkpoints or KEPT)
        self.validation = validation
        self._referenced: int | None = None
        """First step of the phase whose start is the reference; None: the run's."""
        self._equal = 0
        """Updates in a row in which no group told its rollouts apart."""
        self._told_unplayed = False
        self._stopwatch = Stopwatch(session.backend)
        """Measures the time since the last step, or the last evaluation, ended."""

    async def run(self, first: int, history: Sequence[Metrics]) -> None:
        """Steps `first` to the last one, with the evaluations due before, between and after them.

        `history` has the numbers of the steps before `first`.
        """
        total, between = self.settings.total_steps, self.settings.evaluations_between
        self.agent_names.remember(history)
        self.updater.recall(history)
        for entry in history:
            self._count_equal(entry)
        for note in await self.versions.begin(first, total) if self.settings.served_model is not None else ():
            self.observers.note(note)
        if self.settings.prompts == ALL and not self.session.prompts:
            await self._find_prompts()
        if first == 0:
            await self.evaluate(0)
        for step in range(first, total):
            if (why := self._ceiling_reached()) is not None:
                await self._end_early(step, None, why)
                return
            stuck = self._is_stuck(step)
            result = await self.evaluate(step) if stuck or step in between else None
            if stuck or (result is not None and await self._is_solved(step - between.step, step)):
                await self._end_early(step, result, self._why_stuck() if stuck else SOLVED)
                return
            await self.step(step)
        if not total:
            return
        if (why := self._ceiling_reached()) is not None:
            self.observers.note(f"not evaluated after the last update: {why}")
            return
        await self.evaluate(total)

    async def _is_solved(self, *steps: int) -> bool:
        """Whether the evaluations after so many updates solved every held-out task."""
        if not self.settings.stop_when_solved:
            return False
        found = [await find_evaluation(self.session.store, self.run_id, step, None) for step in steps]
        return all(each is not None and each.detail["greedy"].solved for each in found)

    def _count_equal(self, entry: Metrics) -> None:
        """Count the updates in a row without a signal. Those from demonstrations have no groups."""
        if "groups" in entry.values:
            self._equal = 0 if had_signal(entry.values) else self._equal + 1

    def _is_stuck(self, step: int) -> bool:
        """Whether the last phase had no signal in its last `stop_when_stuck` updates before `step`."""
        patience = self.settings.stop_when_stuck
        if patience is None or self._equal < patience:
            return False
        last = self.session.phases[-1]
        return last.end == self.settings.total_steps and step - last.first >= patience

    def _why_stuck(self) -> str:
        return (
            f"in {self._equal} updates in a row all rollouts of every task got the same reward "
            "(stop_when_stuck=None goes on)"
        )

    def _ceiling_reached(self) -> str | None:
        backend = self.session.backend
        return backend.ceiling_reached if isinstance(backend, Paid) else None

    async def _end_early(self, step: int, result: Evaluation | None, why: str) -> None:
        """Keep the state after `step` updates, and take back rollouts that later updates asked for."""
        await withdraw(self.session.store, self.run_id, step, step)
        if step % self.settings.checkpoint_every:
            await self.versions.checkpoint(step)
            if result is not None:
                await self.versions.evaluated(result)
        self.observers.note(f"ended after {step} of {self.settings.total_steps} updates: {why}")

    async def _find_prompts(self) -> None:
        """Once in a run, before anything else: from then on it is as if they had been declared."""
        calls = await discovery.play(self.session, self.collector)
        self.agent_names.see(calls)
        self.agent_names.check()
        await discovery.keep(self.session, chain.from_iterable(calls.values()))

    async def step(self, step: int) -> None:
        """One update: its rollouts, their credit, and what the update measures; or one search."""
        if (search := self.settings.searches.get(step)) is not None:
            await self.search(step, search)
            return
        phase = self.session.phase(step)
        await self._set_reference(step, phase)
        batch = await self.collector.collect(step, phase)
        if phase.algorithm.learns_from is None:
            if step == 0 and not self.validation:
                self._advise(batch.rollouts, batch.calls)
            self.agent_names.see(batch.calls)
            self.agent_names.check(last=step + 1 == self.settings.total_steps)
            self._tell_unplayed()
        batch = await teach(batch, phase.algorithm, self.session.backends)
        credited, report = await self.updater.credit(step, phase, batch)
        measured = await self.updater.update(step, phase, credited)
        values = {
            **step_numbers(batch, credited, report),
            **self._air_numbers(batch),
            **measured,
            "collect_seconds": batch.seconds,
            **spent(self.session.backend),
            **self._stopwatch.read(),
            "memory_gib": peak_memory(),
        }
        metrics = Metrics(run_id=self.run_id, step=step, values=values)
        await self.session.store.put_metrics(metrics)
        self._count_equal(metrics)
        self._stopwatch.start()
        await self.versions.sampled(batch.trajectories)
        await self.checkpoint(step + 1)
        await self.observers.step_ended(metrics)

    def _tell_unplayed(self) -> None:
        """Say once which names in `policies` no trained agent has had: they may be misspelt, or seldom
        called."""
        trained = [name for name in self.agent_names.seen if matches(name, self.settings.patterns)]
        unplayed = [each for each in self.settings.policies if not any(matches(n, (each,)) for n in trained)]
        if unplayed and not self._told_unplayed:
            self._told_unplayed = True
            logger.warning(
                "policies: no trained agent matches %s so far, so its policy learns nothing. Trained agents "
                "seen: %s",
                ", ".join(map(repr, unplayed)),
                ", ".join(map(repr, sorted(trained))) or "none",
            )

    async def search(self, step: int, search: Search) -> None:
        """Look for better prompts; the policy stays as it is."""
        session = self.session
        bench = SearchBench(session, self.collector, step, search, self.collector.tasks, self.validation)
        await bench.begin()
        values = await bench.settle(await search.search(bench))
        metrics = Metrics(run_id=self.run_id, step=step, values={**values, **self._stopwatch.read()})
        await session.store.put_metrics(metrics)
        self._stopwatch.start()
        if self.settings.served_model is None:
            await session.backend.save(session.folder.checkpoint(step + 1))
        else:
            await self.checkpoint(step + 1)
        await self.observers.step_ended(metrics)

    async def _set_reference(self, step: int, phase: ResolvedPhase) -> None:
        """From its first step on, a later phase has the policy that it found as its reference."""
        if not phase.first or not phase.algorithm.needs_reference or self._referenced == phase.first:
            return
        for learner in self.session.learners:
            folder = learner.folder.reference(phase.first)
            if step == phase.first:
                await learner.backend.export(folder)
            await learner.backend.set_reference(folder)
        self._referenced = phase.first

    async def checkpoint(self, step: int) -> None:
        """Save the state after `step` updates, if it is time to."""
        if step % self.settings.checkpoint_every and step != self.settings.total_steps:
            return
        await self.versions.checkpoint(step)

    async def evaluate(self, step: int) -> Evaluation | None:
        """The validation tasks under the policy as it is after `step` updates."""
        if not self.validation or not self.session.phases:
            return None  # a search reports by itself
        validation = self.validation
        finished = await self.collector.finish(
            lambda retry: self.maker.plan(step, retry).evaluate(validation), "evaluation", again=True
        )
        ids = [rollout.id for rollout in finished]
        calls, rewards = await self.session.store.get_calls(ids), await self.session.store.get_rewards(ids)
        if step == 0:
            self._advise(finished, calls)
            where = "the first evaluation; fix the cause and start the same command again"
            await check_any_reward(self.session.store, finished, where)
        self.agent_names.see(calls, trained=False)
        if step == 0 and self.settings.total_steps and (self.agent_names.seen or self.agent_names.refused):
            self.agent_names.check()
        result = evaluation(step, finished, calls, rewards, self.settings.group_by)
        await self.versions.evaluated(result)
        self.observers.evaluated(result)
        self._stopwatch.start()
        return result

    def _advise(self, rollouts: Sequence[Rollout], calls: Mapping[str, Sequence[Call]]) -> None:
        """Show a reply and what to try, where the first rollouts earned nothing."""
        tiny = [policy for policy, model in self.session.models.items() if model == TINY]
        if (said := nothing_earned(rollouts, calls, tiny=tiny)) is not None:
            self.observers.note(said)

    def _air_numbers(self, batch: StepBatch) -> dict[str, float]:
        rulebook = self.session.rulebook
        return rule_numbers(rulebook.air.rules, batch.rewards) if rulebook is not None else {}


def spent(backend: Backend) -> dict[str, float]:
    """Tokens that a backend's service was paid for so far, as metrics; empty where it has none."""
    return backend.spent if isinstance(backend, Paid) else {}


def peak_memory() -> float:
    """Returns the most memory that this process has held, in GiB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1 << 30 if sys.platform == "darwin" else 1 << 20)  # in bytes there, elsewhere in KiB


class Stopwatch:
    """Times a step: wall time, how much of it the backend was at work, and this process's processor time.

    The wall time in which the backend was not at work went to the app, and to recording, credit and the
    store. Started again at the end of each step and of each evaluation.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self._began = self._read()

    def read(self) -> dict[str, float]:
        """Since the start: `step_seconds`, `process_seconds` of processor time of all threads of this process
        and, of a backend that measures it, `backend_seconds`."""
        now = self._read()
        return {name: value - self._began[name] for name, value in now.items()}

    def _read(self) -> dict[str, float]:
        read = {"step_seconds": time.perf_counter(), "process_seconds": time.process_time()}
        if isinstance(self._backend, Timed):
            read["backend_seconds"] = self._backend.busy_seconds
        return read


class AgentNames:
    """The agents that were seen in a run so far, and whether `agents` names any that can't be among them.

    A pattern that no call has matched may be misspelt, or it may name an agent that is seldom called. A rare
    agent must not stop a run, so absence alone proves nothing. A pattern is refused
    - at once if it looks like the name of an agent that was seen and that no pattern matches;
    - after `PATIENCE` rollouts, or at the last step, if no other pattern has matched either. Until then
      nothing can have been learnt, so nothing is lost.
    Otherwise it is said once in the log, and the run goes on. Agents that are served elsewhere count as seen,
    if their calls pass the SDK of this process.
    """

    def __init__(self, patterns: tuple[str, ...] | None) -> None:
        self.patterns = patterns
        self.seen: set[str] = set()
        self.refused: Refused | None = None
        """The refused calls of the last batch, if there were any."""
        self._answered = False
        """Whether any call was not refused."""
        self.rollouts = 0
        """Number of rollouts that were looked through."""
        self._told: set[str] = set()

    def see(self, calls: Mapping[str, Sequence[Call]], *, trained: bool = True) -> None:
        """Count the rollouts, and note who made their calls; `trained` says that an update is to follow."""
        self.rollouts += len(calls)
        every = list(chain.from_iterable(calls.values()))
        self.seen.update(call.agent for call in every)
        self._answered = self._answered or any(call.status != "refused" for call in every)
        self.refused = find_refused(every)
        if trained:
            self._tell_left_out(every)
        if self.refused is not None and self.refused.error not in self._told:
            self._told.add(self.refused.error)
            logger.warning("%s", self.refused.text)

    def _tell_left_out(self, calls: Sequence[Call]) -> None:
        """Say once for each agent and reason which calls are not trained on."""
        for agent, why in {(c.agent, each.left_out) for c in calls for each in c.choices if each.left_out}:
            if f"{agent}: {why}" not in self._told:
                self._told.add(f"{agent}: {why}")
                logger.warning("calls of agent %r are not trained on: %s", agent, why)

    def remember(self, metrics: Sequence[Metrics]) -> None:
        """Note what the steps saw that were made before this process began."""
        self.rollouts += int(sum(entry.values.get("rollouts", 0.0) for entry in metrics))
        self.seen.update(seen_agents(metrics))
        self._answered = bool(self.seen)

    def check(self, *, last: bool = False) -> None:
        """Raise UnknownAgentError if no agent was seen, or for a pattern that is refused; `last` is the last
        step. Raise TrainingError if every call was refused."""
        if not self._answered and self.refused is not None:
            raise TrainingError(f"the first batch got no reply of a model: {self.refused.text}")
        if not self.seen:
            raise UnknownAgentError(
                "the first batch made no LLM call through the gateway: does the app call its model inside "
                "the function given to fit(), and with a client that docs/frameworks.md lists as routed?"
            )
        patterns = self.patterns or ()
        missing = missing_agents(patterns, sorted(self.seen))
        unmatched = len(missing) == len(patterns)
        for pattern in missing:
            unclaimed = sorted(name for name in self.seen if not matches(name, self.patterns))
            meant = next((name for name in unclaimed if _alike(name, pattern)), None)
            said = f"agents={list(patterns)!r}: no call so far came from {pattern!r}"
            if meant is not None:
                raise UnknownAgentError(f"{said}; did you mean {meant!r}? {self._choice()}")
            if unmatched and (last or self.rollouts >= PATIENCE):
                raise UnknownAgentError(f"{said} in {self.rollouts} rollouts. {self._choice()}")
            if pattern not in self._told:
                self._told.add(pattern)
                ends = f"if none does in {PATIENCE} rollouts, the run ends"
                logger.warning("%s; %s. %s", said, ends if unmatched else "the run continues", self._choice())
        if {UNNAMED} < self.seen and not matches(UNNAMED, self.patterns) and UNNAMED not in self._told:
            self._told.add(UNNAMED)
            logger.warning(
                "some calls have no agent's name, and are not trained. If they are a trained agent's, %s",
                naming_line(sys.modules)
                or "make them in `with lightning.agent(...)`, and read a stream there too",
            )

    def _choice(self) -> str:
        names = ", ".join(map(repr, sorted(self.seen)))
        choice = f"Agents seen: {names}. Use one of these names, or a glob that matches them"
        if UNNAMED in self.seen:
            choice += f"; {UNNAMED!r} are calls that neither a plugin nor `with lightning.agent(...)` names"
            if line := naming_line(sys.modules):
                choice += f". To name them, {line}"
        return choice


_PLUGINS: Final = {
    "agent_framework": "agent_framework",
    "google.adk": "google_adk",
    "llama_index.core": "llama_index",
}
_SPANS: Final = "trace.set_tracer_provider(TracerProvider())"


def naming_line(imported: Container[str]) -> str | None:
    """The line that names the calls of an imported framework whose plugin is not installed, if any."""
    for framework, plugin in _PLUGINS.items():
        if framework in imported and find_spec(f"lightning_{plugin}") is None:
            spans = "" if framework == "llama_index.core" else f", or write `{_SPANS}` before the app runs"
            return f"install the plugin of {framework}: {install_command(plugin)}{spans}"
    if "strands" in imported:
        return f"write `{_SPANS}` before the app runs: Strands then makes spans with its agents' names"
    return None


def _alike(one: str, other: str) -> bool:
    """Whether one name may be the other, misspelt. Names that differ at their end or by an addition, like
    worker_1 and worker_2 or write and rewrite, are those of two agents."""
    one, other = one.lower(), other.lower()
    if one == other:
        return True
    apart = one in other or other in one or one[:-1] == other[:-1]
    return not apart and SequenceMatcher(None, one, other).ratio() >= ALIKE
