"""Asking a judge's endpoint: Chat Completions over HTTP, with a bounded number of tries.

With httpx and without an SDK: an SDK's calls pass the place where requests are tagged and recorded, and those
of a judge belong to no rollout. httpx is what OpenAI's SDK has long stood on: most apps have it already.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
from types import TracebackType
from typing import Any, Self

import httpx

from lightning_core.errors import ConfigError
from lightning_core.judge.judge import Judge
from lightning_core.judge.question import Question, Score

log = logging.getLogger(__name__)

OPENAI = "https://api.openai.com/v1"
EXAMPLE = "http://localhost:8000/v1"
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a question is asked again; they double with each time, unless the endpoint says how long."""
_PASSING = frozenset({408, 409, 425, 429})
"""Statuses of 4xx that may be gone the next time."""
_EXCERPT = 300


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


class Endpoint:
    """`async with Endpoint(judge)`: the judge's endpoint, open for questions."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._url, self._key = address_of(judge), key_of(judge)
        self.shown = str(self._url.copy_with(userinfo=b"", query=None))
        """Its address, as it may be printed."""
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._client = httpx.AsyncClient(headers=headers, timeout=None)
        self._free = asyncio.Semaphore(judge.concurrency)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def ask(self, question: Question) -> list[Score]:
        """The scores, in the order of the question's ids. Raises JudgeError once the tries are used up."""
        body = question.body(self._judge)
        plain = body["messages"]
        async with self._free:
            for number in range(self._judge.retries + 1):
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
                if number < self._judge.retries:
                    await asyncio.sleep(_pause(number) if wait is None else wait)
        raise JudgeError(f"after {self._judge.retries + 1} tries, the last time: {failure}")

    async def _post(self, body: dict[str, Any]) -> str:
        """The text of the answer. Raises _Passing for what may pass, JudgeError for what will not."""
        try:
            async with asyncio.timeout(self._judge.timeout):
                reply = await self._client.post(self._url, content=json.dumps(body).encode())
        except TimeoutError as error:
            raise _Passing(f"it did not answer within {self._judge.timeout:g} s") from error
        except httpx.TransportError as error:
            raise _Passing(self._masked(f"it can't be reached ({type(error).__name__}: {error})")) from error
        if reply.status_code in _PASSING or reply.status_code >= 500:
            raise _Passing(self._refused(reply), _asked_to_wait(reply))
        if not reply.is_success:
            raise JudgeError(self._refused(reply) + _advice(reply))
        try:
            return str(reply.json()["choices"][0]["message"]["content"] or "")
        except (ValueError, LookupError, TypeError) as error:
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
