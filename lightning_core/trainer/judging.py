"""Judging the rollouts of a step: which groups, asked how, and where the scores are kept.

A score is a final reward of its rollout, given by "judge", which counts as the last one given. What a judge
has answered lies in the run's folder as well (`judge/`, one file for each question), so that a resumed run,
or a group that went the same way as another, asks nothing again. Evaluations are not judged: they have no
groups.

A judge is asked by Chat Completions over HTTP, a bounded number of times, with httpx and without an SDK: an
SDK's calls pass the place where requests are tagged and recorded, and those of a judge belong to no rollout.
httpx is what OpenAI's SDK has long stood on: most apps have it already.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import httpx

from lightning_core.errors import ConfigError, TrainingError
from lightning_core.experience.returns import final_rewards
from lightning_core.judge.judge import Judge
from lightning_core.judge.question import Dialogue, Question, Score, dialogue, make_question
from lightning_core.records.types import Call, Reward, Rollout, Status
from lightning_core.stores.base import Store
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.parts import ResolvedPhase

log = logging.getLogger(__name__)

T = TypeVar("T", covariant=True)
SOURCE = "judge"
Rewards = dict[str, list[Reward]]
"""Rewards by rollout id."""
OPENAI = "https://api.openai.com/v1"
EXAMPLE = "http://localhost:8000/v1"
ANSWER_SECONDS = 120.0
"""How long the judge may take for one answer."""
AT_ONCE = 8
"""Groups that are judged at once; an endpoint that can't keep up answers 429 and is asked again."""
TRIES = 6
"""Tries of a question, where the endpoint fails or its answer can't be read."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a question is asked again; they double with each time, unless the endpoint says how long."""
_PASSING = frozenset({408, 409, 425, 429})
"""Statuses of 4xx that may be gone the next time."""
_EXCERPT = 300


def check_judge(judge: Judge | None, phases: Sequence[ResolvedPhase]) -> None:
    """Raise ConfigError where a judge would have nothing to compare, or can't be asked."""
    if judge is None:
        return
    address_of(judge)
    for phase in phases:
        algorithm = phase.algorithm
        if algorithm.learns_from is None and algorithm.group_size < 2:
            raise ConfigError(
                f"a judge compares the rollouts of a group, and {algorithm.name!r} has groups of one: "
                "give it group_size=2 or more"
            )


class Judging:
    """Has the rollouts of a run judged; without a judge it changes nothing."""

    def __init__(self, judge: Judge | None, store: Store, folder: RunFolder) -> None:
        self.judge = judge
        self.store = store
        self.folder = folder
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held while a question is asked, by its file: groups of one task may come to the same one."""

    async def score(
        self, rollouts: Sequence[Rollout], calls: Mapping[str, Sequence[Call]], rewards: Rewards
    ) -> Rewards:
        """All rewards, those of the judge among them.

        Raises TrainingError if the judge can't score a group; all scores that it gave are stored.
        """
        if self.judge is None:
            return rewards
        groups: defaultdict[str, list[Rollout]] = defaultdict(list)
        for rollout in rollouts:
            if rollout.status is Status.SUCCEEDED:
                groups[rollout.group_id].append(rollout)
        waiting = [group for group in groups.values() if not all(_judged(rewards[one.id]) for one in group)]
        async with JudgeEndpoint(self.judge) as endpoint:
            judging = (self._judge(self.judge, endpoint, group, calls, rewards) for group in waiting)
            given = await asyncio.gather(*judging, return_exceptions=True)
        for part in given:
            if isinstance(part, BaseException):
                raise part
            rewards = {**rewards, **{one.rollout_id: [*rewards[one.rollout_id], one] for one in part}}
        return rewards

    async def _judge(
        self,
        judge: Judge,
        endpoint: JudgeEndpoint,
        group: list[Rollout],
        calls: Mapping[str, Sequence[Call]],
        given: Rewards,
    ) -> list[Reward]:
        """The rewards of one group, stored."""
        # a thread: 0.8 s for 8 rollouts of 100 calls, in which the gateway would not answer
        told, different, question = await asyncio.to_thread(_tell, judge, group, calls)
        if question.shortened:
            log.warning(
                "group %s: %d characters of its transcripts are left out before the judge, to keep within "
                "Judge(budget=%d)",
                group[0].group_id,
                question.shortened,
                judge.budget,
            )
        try:
            scores = await self._ask(judge, endpoint, question)
        except JudgeError as problem:
            raise TrainingError(
                f"judge {judge.model!r} at {endpoint.shown} gave no scores for group {group[0].group_id!r} "
                f"(task {group[0].task.id!r}): {problem}. Every rollout and all scores so far are kept: fix "
                "the cause, then resume"
            ) from problem
        by_dialogue = dict(zip(different, scores, strict=True))
        rewards = [_reward(judge, one, by_dialogue[told[one.id]], given[one.id]) for one in group]
        await self.store.add_rewards(rewards)
        return rewards

    async def _ask(self, judge: Judge, endpoint: JudgeEndpoint, question: Question) -> list[Score]:
        """The judge's scores, from the run's folder if it was asked the same before."""
        name = f"judge/{question.digest(judge.model)}.json"
        path = self.folder.path / name
        async with self._asking[name]:
            if path.exists():
                return [Score.model_validate(one) for one in json.loads(path.read_bytes())["scores"]]
            scores = await endpoint.ask(question)
            path.parent.mkdir(exist_ok=True)
            content = {"model": judge.model, "scores": [one.model_dump() for one in scores]}
            await asyncio.to_thread(self.folder.write_json, name, content)  # a busy disk takes 20 ms
            return scores


def _tell(
    judge: Judge, group: Sequence[Rollout], calls: Mapping[str, Sequence[Call]]
) -> tuple[dict[str, Dialogue], list[Dialogue], Question]:
    """(what happened in each rollout, those that differ, the question about them)."""
    told = {rollout.id: dialogue(calls[rollout.id]) for rollout in group}
    different = sorted(
        set(told.values()), key=lambda lines: blake2b(repr(lines).encode(errors="replace")).digest()
    )
    return told, different, make_question(judge, group[0].task, different)


def _reward(judge: Judge, rollout: Rollout, score: Score, given: Sequence[Reward]) -> Reward:
    """Later than every reward of the rollout, also where the clock of its worker is ahead of ours: the last
    final reward counts."""
    own = final_rewards(one for one in given if one.source != SOURCE).get(None, 0.0)
    return Reward(
        rollout_id=rollout.id,
        attempt=rollout.attempts,
        value=judge.weight * score.score + (1 - judge.weight) * own,
        source=SOURCE,
        reason=score.reason,
        created_at=max([time.time(), *(one.created_at for one in given)]),
    )


def _judged(rewards: Sequence[Reward]) -> bool:
    return any(reward.source == SOURCE for reward in rewards)


# the endpoint ----------------------------------------------------------------------------
class Asked(Protocol[T]):
    """A question, and what is read in its answer."""

    def body(self, judge: Judge) -> dict[str, Any]:
        """The request, as Chat Completions have it."""

    def read(self, text: str) -> T:
        """Raises ValueError that says what is wrong with the answer."""


class JudgeError(Exception):
    """The judge gave no scores; the message says why."""


class _Passing(Exception):
    """A failure after which the same question may be answered."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


def address_of(judge: Judge) -> httpx.URL:
    """Where the judge is asked. Raises ConfigError for an address or a key that can't be used."""
    name = "OPENAI_BASE_URL" if judge.base_url is None else "Judge(base_url=...)"
    given = (os.environ.get("OPENAI_BASE_URL") or OPENAI) if judge.base_url is None else judge.base_url
    shown = re.sub("//.*@", "//***@", given)
    try:
        url = httpx.URL(f"{given.rstrip('/')}/chat/completions")
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"{name} {shown!r} is no URL ({error}): give one such as {EXAMPLE}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{name} {shown!r} names no host to ask: give a URL such as {EXAMPLE}")
    key = key_of(judge)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError("OPENAI_API_KEY holds a line break or another character that no key has: strip it")
    if key is None and given == OPENAI:
        raise ConfigError(f"Judge(model={judge.model!r}) asks OpenAI: set OPENAI_API_KEY, or give base_url")
    return url


def key_of(judge: Judge) -> str | None:
    """A key of the environment goes to the environment's endpoint only."""
    return (os.environ.get("OPENAI_API_KEY") or None) if judge.base_url is None else judge.api_key


class JudgeEndpoint:
    """`async with Endpoint(judge)`: the judge's endpoint, open for questions."""

    def __init__(self, judge: Judge, tries: int = TRIES) -> None:
        self._judge = judge
        self._tries = tries
        self.tokens = 0
        """Read and written so far, as the endpoint says; 0 if it does not."""
        self._url, self._key = address_of(judge), key_of(judge)
        self.shown = str(self._url.copy_with(userinfo=b"", query=None))
        """Its address, as it may be printed."""
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._client = httpx.AsyncClient(headers=headers, timeout=None)
        self._free = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def ask(self, question: Asked[T]) -> T:
        """Returns the answer, as the question reads it. Raises JudgeError once the tries are used up."""
        body = question.body(self._judge)
        plain = body["messages"]
        async with self._free:
            for number in range(self._tries):
                try:
                    text = await self._post(body)
                except _Passing as problem:
                    failure, wait = str(problem), problem.wait
                else:
                    try:
                        return question.read(text)
                    except ValueError as problem:
                        failure, wait = f"its answer can't be used: {problem}", 0.0
                        body["messages"] = [*plain, *_complaint(text, str(problem))]
                log.info("judge %r, try %d: %s", self._judge.model, number + 1, failure)
                if number + 1 < self._tries:
                    await asyncio.sleep(_pause(number) if wait is None else wait)
        raise JudgeError(f"after {self._tries} tries, the last time: {failure}")

    async def _post(self, body: dict[str, Any]) -> str:
        """The text of the answer. Raises _Passing for what may pass, JudgeError for what will not."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reply = await self._client.post(self._url, content=json.dumps(body).encode())
        except TimeoutError as error:
            raise _Passing(f"it did not answer within {ANSWER_SECONDS:g} s") from error
        except httpx.TransportError as error:
            raise _Passing(self._masked(f"it can't be reached ({type(error).__name__}: {error})")) from error
        if reply.status_code in _PASSING or reply.status_code >= 500:
            raise _Passing(self._refused(reply), _asked_to_wait(reply))
        if not reply.is_success:
            raise JudgeError(self._refused(reply) + _advice(reply))
        try:
            content = reply.json()
            self.tokens += int((content.get("usage") or {}).get("total_tokens") or 0)
            return str(content["choices"][0]["message"]["content"] or "")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            problem = f"its reply is no chat completion: {self._excerpt(reply)}"
            raise _Passing(problem, _asked_to_wait(reply)) from error

    def _refused(self, reply: httpx.Response) -> str:
        return f"it answered {reply.status_code}: {self._excerpt(reply)}"

    def _masked(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text

    def _excerpt(self, reply: httpx.Response) -> str:
        text = self._masked(" ".join(reply.text.split()))
        return text if len(text) <= _EXCERPT else text[: _EXCERPT - 1] + "…"


def _complaint(text: str, problem: str) -> list[dict[str, str]]:
    words = f"That can't be used: {problem}. Answer again, with the JSON alone."
    return [{"role": "assistant", "content": text}, {"role": "user", "content": words}]


def _advice(reply: httpx.Response) -> str:
    if reply.status_code in (401, 403):
        return "; check api_key and base_url"
    if "response_format" in reply.text:
        return '; if it does not know response_format, give Judge(fields={"response_format": None})'
    return ""


def _asked_to_wait(reply: httpx.Response) -> float | None:
    try:
        return min(max(float(reply.headers["retry-after"]), 0.0), LONGEST_PAUSE)
    except (KeyError, ValueError):
        return None


def _pause(number: int) -> float:
    return float(min(FIRST_PAUSE * 2**number, LONGEST_PAUSE) * random.uniform(0.75, 1.25))
