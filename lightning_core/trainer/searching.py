"""A search as one step of a run: its trials, the reflecting model's answers, and an honest report.

Every trial's rollout ids follow from run, step, prompt versions, task and repeat, and every answer of the
reflecting model is stored beside the versions, as `reflections/STEP`. A search that was killed is begun again
and comes by the same way to where it was: no rollout is run twice, and no question asked twice.

Half of the held-out tasks choose and the other half report. The best of many candidates is flattered by the
tasks that chose it, so the report is of tasks that no search has seen.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from lightning_core.algorithms.search import Candidate, Episode, Search, Trial, mean
from lightning_core.dialects.transcript import prompt as read_prompt
from lightning_core.dialects.transcript import text as read_text
from lightning_core.errors import ConfigError, TrainingError
from lightning_core.experience.returns import with_final
from lightning_core.judge.judge import Judge
from lightning_core.judge.question import CHARACTERS
from lightning_core.prompts import ALL, LEFT_OUT, Prompt
from lightning_core.records.types import ResourceVersion, Rollout, Task
from lightning_core.stores.versions import Document, find_current, make_current, put_prompt
from lightning_core.texts.json_text import whole
from lightning_core.trainer.batch import count_failures
from lightning_core.trainer.collector import Collector, check_any_reward
from lightning_core.trainer.discovery import PLAYED, played
from lightning_core.trainer.judging import JudgeEndpoint, JudgeError, address_of
from lightning_core.trainer.session import Session
from lightning_core.trainer.summary import SearchSummary

log = logging.getLogger(__name__)

STEP: Final = "search_step"
"""The metric of a version that says which step's search made it."""
TRIES: Final = 3
"""Tries of a question to the reflecting model."""
RESAMPLES: Final = 2000
"""Resamples of the tasks, for the interval of a gain."""


class SearchBench:
    """The bench of one search (`algorithms.search.Bench`)."""

    def __init__(
        self,
        session: Session,
        collector: Collector,
        step: int,
        search: Search,
        train: Sequence[Task],
        validation: Sequence[Task],
    ) -> None:
        self.prompts: Mapping[str, Prompt] = session.prompts
        self.seed: Candidate = {}
        self.train = list({task.id: task for task in train}.values())
        self.choosing, self.reporting = halves(validation, session.settings.seed)
        self.random_seed = session.settings.seed
        self.spent = self.failures = self.refused = self.reflections = self.tokens = 0
        self._session, self._collector, self._step, self._search = session, collector, step, search
        self._numbers: dict[str, dict[str, int]] = {}
        """The version of each text, by prompt."""
        self._places = {
            (task.split, task.id): f"{task.split[0]}{place}"
            for tasks in (self.train, [*self.choosing, *self.reporting])
            for place, task in enumerate(tasks)
        }
        self._trials: dict[tuple[str, str], Trial] = {}
        """Trials by the candidate's digest and the task's place."""
        self._asking = asyncio.Lock()
        """Held while an answer is stored: questions may be asked side by side."""
        self._answers: dict[str, list[tuple[str, int]]] = {}
        """Answers of the reflecting model before a restart, by question, each with its tokens."""

    @property
    def left(self) -> int:
        """See `Bench`. What the report takes is kept back."""
        return self._search.budget - self.spent - 2 * len(self.reporting) * self._search.repeats

    async def begin(self) -> None:
        """Know the versions and answers that there are. The seed is what was current before this search."""
        run_id, store, settings = self._session.folder.run_id, self._session.store, self._session.settings
        if settings.prompts == ALL and self._step == min(settings.searches):
            self.spent += len(played(self.train, settings.seed))
        for name in self.prompts:
            versions = await store.list_resources(run_id, name)
            seed = find_current(each for each in versions if each.metrics.get(STEP) != self._step)
            assert seed is not None
            self._numbers[name] = {str(each.uri): each.version for each in reversed(versions)}
            self._numbers[name][str(seed.uri)] = seed.version
            self.seed = {**self.seed, name: str(seed.uri)}
        for each in await store.list_resources(run_id, Document.REFLECTIONS.of(self._step)):
            said = json.loads(str(each.uri))
            answer = said["answer"], int(each.metrics.get("tokens", 0))
            self._answers.setdefault(said["question"], []).append(answer)
            self.reflections += 1

    async def propose(self, parent: Candidate, texts: Candidate) -> Candidate | None:
        """See `Bench`."""
        lost = {name: self.prompts[name].lost(text) for name, text in texts.items()}
        candidate = {**parent, **texts}
        if any(lost.values()) or not all(map(str.strip, texts.values())) or candidate == parent:
            self.refused += 1
            log.info("%s: a proposal is refused: lost placeholders %r", self._search.name, lost)
            return None
        for name, text in texts.items():
            if text not in self._numbers[name]:
                made = await put_prompt(
                    self._session.store,
                    self._session.folder.run_id,
                    name,
                    text,
                    author=self._search.name,
                    parent=self._numbers[name][parent[name]],
                    metrics={STEP: float(self._step)},
                    chosen=False,
                )
                self._numbers[name][text] = made.version
        return candidate

    # trials -------------------------------------------------------------------------------
    async def evaluate(self, asked: Sequence[tuple[Candidate, Sequence[Task]]]) -> list[list[Trial]]:
        """See `Bench`."""
        wanted = {
            (digest(self.versions(candidate)), self._place(task)): (self.versions(candidate), task)
            for candidate, tasks in asked
            for task in tasks
        }
        new = {key: value for key, value in wanted.items() if key not in self._trials}
        if new:
            await self._run(new)
        return [
            [self._trials[digest(self.versions(candidate)), self._place(task)] for task in tasks]
            for candidate, tasks in asked
        ]

    def versions(self, candidate: Candidate) -> dict[str, int]:
        """The version of each of its texts."""
        return {name: self._numbers[name][text] for name, text in candidate.items()}

    def _place(self, task: Task) -> str:
        return self._places[task.split, task.id]

    async def _run(self, new: Mapping[tuple[str, str], tuple[dict[str, int], Task]]) -> None:
        first, repeats = not self._trials, self._search.repeats

        def plan(retry: int) -> list[Rollout]:
            trials = [(f"{key}-{place}", place, *value) for (key, place), value in new.items()]
            return self._collector.maker.plan(self._step, retry).search(trials, repeats)

        what = f"step {self._step + 1}, trials of prompts"
        finished = await self._collector.finish(plan, what, again=first)
        self.spent += len(finished)
        self.failures += count_failures(finished)
        if first:
            where = f"the first trials of {self._search.name}; fix the cause and resume"
            await check_any_reward(self._session.store, finished, where)
        episodes = await self._read(finished)
        for place, (key, (_, task)) in enumerate(new.items()):
            own = tuple(episodes[place * repeats : (place + 1) * repeats])
            self._trials[key] = Trial(task, own)
        if first and self._session.settings.prompts != ALL:  # those were found in calls
            self._check_told(episodes)

    async def _read(self, finished: Sequence[Rollout]) -> list[Episode]:
        store, rulebook, ids = self._session.store, self._session.rulebook, [each.id for each in finished]
        calls, events, rewards = (
            await store.get_calls(ids),
            await store.get_events(ids),
            await store.get_rewards(ids),
        )
        episodes = []
        for each in finished:
            given = rewards[each.id]
            automatic = (
                rulebook.rewards(each, calls[each.id], events[each.id]) if rulebook is not None else []
            )
            ended = with_final(each, given)
            episodes.append(Episode(ended, calls[each.id], events[each.id], [*given, *automatic]))
        return episodes

    def _check_told(self, episodes: Sequence[Episode]) -> None:
        """Raise ConfigError for a prompt that no call holds: no version of it would change anything."""
        calls = [call for each in episodes for call in each.calls]
        told = [
            read_text([message])
            for call in calls
            for message in read_prompt(call)
            if message["role"] in ("system", "developer", "user")
        ]
        for name, text in self.seed.items():
            parts = [
                part for part in self.prompts[name].split(text) if part not in self.prompts[name].placeholders
            ]
            longest = " ".join(max(parts, key=len, default="").split())
            if not any(longest in each for each in told):
                agents = ", ".join(sorted({repr(call.agent) for call in calls})) or "none"
                raise ConfigError(
                    f"prompt {name!r} is in none of {len(calls)} calls (agents seen: {agents}): declare it "
                    "in prompts={...} under the name of its agent, or take it in the app from "
                    f"lightning.prompt({name!r}, default)"
                )

    # the reflecting model -----------------------------------------------------------------
    async def reflect(self, question: str) -> str:
        """See `Bench`."""
        if earlier := self._answers.get(question):
            answer, tokens = earlier.pop(0)
            self.tokens += tokens
            return answer
        began = time.perf_counter()
        answer, tokens = await ask(self._search.asks, question)
        async with self._asking:
            self.tokens += tokens
            await self._session.store.put_resource(
                ResourceVersion(
                    run_id=self._session.folder.run_id,
                    name=Document.REFLECTIONS.of(self._step),
                    version=self.reflections,
                    kind="prompt",
                    uri=json.dumps({"question": question, "answer": answer}),
                    author=shown(self._search.asks),
                    metrics={"tokens": float(tokens), "seconds": time.perf_counter() - began},
                )
            )
            self.reflections += 1
        return answer

    # the end ------------------------------------------------------------------------------
    async def settle(self, chosen: Candidate) -> dict[str, float]:
        """Report on tasks that no search has seen; the step's metrics.

        The chosen versions become current if they are better on those tasks, and the seed otherwise.
        """
        pairs = [(self.seed, self.choosing), (chosen, self.choosing)]
        choosing = [mean(trials) for trials in await self.evaluate(pairs)]
        before, after = await self.evaluate([(self.seed, self.reporting), (chosen, self.reporting)])
        gains = [b.reward - a.reward for a, b in zip(before, after, strict=True)]
        low, high = interval(gains, self.random_seed)
        run_id, store = self._session.folder.run_id, self._session.store
        run = await store.find_run(run_id)
        left_out: Any = run.config.get(LEFT_OUT) if run is not None else None
        summary = SearchSummary(
            step=self._step,
            search=self._search.name,
            rollouts=self.spent,
            candidates=len({key for key, _ in self._trials}),
            refused=self.refused,
            reflections=self.reflections,
            tokens=self.tokens,
            tasks=len(gains),
            choosing=(choosing[0], choosing[1]),
            reporting=(mean(before), mean(after)),
            interval=(low, high),
            versions={name: (self.versions(self.seed)[name], self.versions(chosen)[name]) for name in chosen},
            prompts={name: (self.seed[name], text) for name, text in chosen.items()},
            won=[task.task.id for task, gain in zip(after, gains, strict=True) if gain > 0],
            lost=[task.task.id for task, gain in zip(after, gains, strict=True) if gain < 0],
            left_out=left_out or {},
        )
        await self._record_scores()
        for name, version in self.versions(chosen if summary.is_better else self.seed).items():
            versions = await store.list_resources(run_id, name)
            if version != self._session.prompt_versions[name]:
                await make_current(store, next(v for v in versions if v.version == version), versions)
            self._session.prompt_versions[name] = version
        name, said = Document.SEARCH.of(self._step), summary.model_dump_json()
        await store.put_resource(
            ResourceVersion(run_id=run_id, name=name, version=0, kind="prompt", uri=said)
        )
        self._session.observers.note(summary.said())
        return summary.numbers() | {"rollouts": float(self.spent), "failures": float(self.failures)}

    async def _record_scores(self) -> None:
        """Records each version's score on the tasks that choose: the best of its candidates."""
        run_id, store = self._session.folder.run_id, self._session.store
        for name in self._numbers:
            for version in await store.list_resources(run_id, name):
                if scores := self._scores(name, version.version):
                    found = {"choosing": max(scores), "tasks": float(len(self.choosing))}
                    scored = version.model_copy(update={"metrics": {**version.metrics, **found}})
                    await store.put_resource(scored)

    def _scores(self, name: str, version: int) -> list[float]:
        whole: dict[str, list[Trial]] = {}
        places = {self._place(task) for task in self.choosing}
        for (key, place), trial in self._trials.items():
            if place in places and trial.episodes[0].rollout.prompt_versions.get(name) == version:
                whole.setdefault(key, []).append(trial)
        return [mean(trials) for trials in whole.values() if len(trials) == len(self.choosing)]


def check_search(
    search: Search,
    prompts: Mapping[str, str | Prompt] | str,
    train: Sequence[Task],
    validation: Sequence[Task],
) -> None:
    """Raise ConfigError for a search that can't be made."""
    name = type(search).__name__
    if not prompts:
        raise ConfigError(
            f'{name} has nothing to improve: give prompts={{"AGENT": "its system prompt"}}, or "all"'
        )
    if not train:
        raise ConfigError(f"{name} learns from training tasks: give train=")
    choosing, reporting = halves(validation, 0)
    if not reporting:
        raise ConfigError(
            f"{name} needs at least two validation tasks, as half of them choose and half report; it has "
            f"{len(validation)}"
        )
    least = 2 * search.repeats * (len(choosing) + len(reporting)) + (PLAYED if prompts == ALL else 0)
    if search.budget < least + search.repeats:
        raise ConfigError(
            f"{name}(budget={search.budget}) is too small: trying one candidate and reporting take more than "
            f"{least} rollouts with {len(choosing) + len(reporting)} validation tasks; give more, or fewer "
            "tasks"
        )
    if isinstance(found := search.asks, str):
        address_of(_judge(found))


def halves(tasks: Sequence[Task], seed: int) -> tuple[list[Task], list[Task]]:
    """(the tasks that choose, those that report): each task once, the first half the larger."""
    order = list({task.id: task for task in tasks}.values())
    random.Random(f"halves-{seed}").shuffle(order)
    middle = (len(order) + 1) // 2
    return order[:middle], order[middle:]


def digest(versions: Mapping[str, int]) -> str:
    """A candidate in rollout ids."""
    return hashlib.blake2b(json.dumps(sorted(versions.items())).encode(), digest_size=6).hexdigest()


def interval(gains: Sequence[float], seed: int) -> tuple[float, float]:
    """95 % bootstrap interval of the mean, over tasks: the same for the same seed."""
    drawn = random.Random(f"interval-{seed}")
    means = sorted(fmean(drawn.choices(gains, k=len(gains))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


# asking -----------------------------------------------------------------------------------
class _Question:
    """One question, as an endpoint is asked it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def body(self, judge: Judge) -> dict[str, Any]:
        return {"model": judge.model, "messages": [{"role": "user", "content": self._text}]}

    def read(self, text: str) -> str:
        """The answer without what a reasoning model thinks aloud. Raises ValueError for an empty one."""
        answer = whole(text.rpartition("</think>")[2].strip())
        if not answer:
            raise ValueError("it is empty")
        return answer


async def ask(reflection: object, question: str) -> tuple[str, int]:
    """(answer, tokens read and written). Raises TrainingError after three tries without an answer."""
    asked = _Question(question)
    try:
        if isinstance(reflection, str):
            async with JudgeEndpoint(_judge(reflection), tries=TRIES) as endpoint:
                answer: str = await endpoint.ask(asked)
                return answer, endpoint.tokens or (len(question) + len(answer)) // CHARACTERS
        assert callable(reflection)
        for number in range(TRIES):
            try:
                answer = asked.read(await asyncio.to_thread(reflection, question))
                return answer, (len(question) + len(answer)) // CHARACTERS
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                log.info("reflecting model, try %d: %s", number + 1, failure)
        raise JudgeError(f"after {TRIES} tries, the last time: {failure}")
    except JudgeError as problem:
        raise TrainingError(
            f"the reflecting model {shown(reflection)} gave no answer: {problem}. Every trial and answer so "
            "far is kept: fix the cause, then resume"
        ) from problem


def _judge(reflection: str) -> Judge:
    """Where the model is asked: as a judge is."""
    url, _, model = reflection.rpartition("#")
    return Judge(model=model, base_url=url or None)


def shown(reflection: object) -> str:
    """A reflecting model in words."""
    return (
        reflection
        if isinstance(reflection, str)
        else getattr(reflection, "__qualname__", type(reflection).__name__)
    )
