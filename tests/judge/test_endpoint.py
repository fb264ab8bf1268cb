"""A judge asked over real HTTP: what it is sent, what may pass, and what ends the asking."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from lightning_core.errors import ConfigError
from lightning_core.judge.judge import Judge
from lightning_core.judge.question import Line, Score, make_question
from lightning_core.records.types import Task
from lightning_core.trainer import judging as asking
from lightning_core.trainer.judging import JudgeEndpoint, JudgeError, address_of
from tests.judge.reading import Fault, Lines, ReadingJudge, judging, status

TEXTS = ("b", "aaa", "aa")


def shorter(lines: Lines) -> float:
    """The shorter the better."""
    return 1 / len(lines[-1]["text"])


async def ask(server: ReadingJudge, **options: Any) -> list[Score]:
    judge = Judge(**{"model": "large", "base_url": server.url, "api_key": "sk-secret", **options})
    question = make_question(judge, Task(input={}), [(Line("writer", "assistant", text),) for text in TEXTS])
    async with JudgeEndpoint(judge) as at:
        return await at.ask(question)


async def test_each_transcript_gets_its_own_score() -> None:
    with judging(shorter) as server:
        scores = await ask(server, fields={"temperature": 0.0})
    assert [one.score for one in scores] == pytest.approx([1, 1 / 3, 1 / 2])
    [body] = server.asked
    assert (body["model"], body["temperature"], server.keys) == ("large", 0.0, ["Bearer sk-secret"])
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["scores"]


async def test_half_a_character_in_a_transcript_is_sent_like_any_other() -> None:
    with judging(lambda lines: 0.5) as server:
        judge = Judge(model="m", base_url=server.url)
        dialogues = [(Line("writer", "assistant", text),) for text in ("half a parrot \ud83e", "whole")]
        async with JudgeEndpoint(judge) as at:
            scores = await at.ask(make_question(judge, Task(input={}), dialogues))
    assert [one.score for one in scores] == [0.5, 0.5]


async def test_without_structure_no_schema_is_asked_for() -> None:
    with judging(shorter) as server:
        await ask(server, fields={"response_format": None})
    assert "response_format" not in server.asked[0]


def cut(body: dict[str, Any]) -> str:
    return ReadingJudge(shorter).judge(body)[:-20]


def forgets(body: dict[str, Any]) -> str:
    return json.dumps({"scores": json.loads(ReadingJudge(shorter).judge(body))["scores"][1:]})


def no_chat(body: dict[str, Any]) -> PlainTextResponse:
    return PlainTextResponse("<html>maintenance</html>", headers={"retry-after": "0"})


@pytest.mark.parametrize("fault", [status(429), status(500), status(503), status(408), cut, forgets, no_chat])
async def test_what_may_pass_is_asked_again(fault: Fault) -> None:
    with judging(shorter, fault, fault) as server:
        scores = await ask(server)
    assert [one.score for one in scores] == pytest.approx([1, 1 / 3, 1 / 2])
    assert len(server.asked) == 3


async def test_an_answer_that_can_not_be_used_is_named_in_the_next_question() -> None:
    with judging(shorter, forgets, cut) as server:
        await ask(server)
    first, second, third = (body["messages"] for body in server.asked)
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert "That can't be used: it scores the ids ['2', '3']" in second[-1]["content"]
    assert (second[:2], third[:2], len(third)) == (first, first, 4)


async def test_the_tries_are_bounded_and_the_last_failure_is_told() -> None:
    with judging(shorter, *[status(503, "overloaded")] * 9) as server:
        with pytest.raises(JudgeError, match=r"after 6 tries, the last time: it answered 503: .*overloaded"):
            await ask(server)
        assert len(server.asked) == 6


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (status(401, "wrong key sk-secret"), r"answered 401: .*wrong key \*\*\*.*check api_key"),
        (status(404, "no such model"), "no such model"),
        (status(400, "response_format is not supported"), r"Judge\(fields=.*response_format.*None"),
    ],
)
async def test_what_will_not_pass_ends_the_asking_at_once(fault: Fault, words: str) -> None:
    with judging(shorter, fault, fault) as server:
        with pytest.raises(JudgeError, match=words) as refused:
            await ask(server)
        assert len(server.asked) == 1
    assert "sk-secret" not in str(refused.value)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question is asked again at once."""
    monkeypatch.setattr(asking, "FIRST_PAUSE", 0.0)


async def test_an_endpoint_that_is_not_there_is_an_error_that_says_so(no_pause: None) -> None:
    with judging(shorter) as server:
        pass
    with pytest.raises(JudgeError, match="after 6 tries, the last time: it can't be reached"):
        await ask(server)


async def test_an_answer_that_takes_too_long_is_a_failed_try(
    no_pause: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.1)
    with judging(shorter, delay=1.0) as server, pytest.raises(JudgeError, match=r"not answer within 0\.1 s"):
        await ask(server)
    assert len(server.asked) == 6


async def test_no_more_than_eight_groups_are_asked_about_at_once() -> None:
    with judging(shorter, together=8) as server:
        judge = Judge(model="large", base_url=server.url)
        question = make_question(judge, Task(input={}), [(Line("writer", "assistant", "a"),)])
        async with JudgeEndpoint(judge) as at:
            await asyncio.gather(*(at.ask(question) for _ in range(32)))
    assert (len(server.asked), server.peak) == (32, 8)


async def test_a_key_of_the_environment_goes_to_the_environment_s_endpoint_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with judging(shorter) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        await ask(server, base_url=None, api_key=None)
        await ask(server, api_key=None)
    assert server.keys == ["Bearer sk-environment", None]


@pytest.mark.parametrize(
    "url",
    ["http://host:port/v1", "http://[::1/v1", "http://", "https:///v1", "http://me:sk-secret@host:port"],
)
def test_an_address_that_can_not_be_asked_is_refused_by_name(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError, match=r"Judge\(base_url=\.\.\.\) 'http.*give .* such as http://local"
    ) as told:
        address_of(Judge(model="m", base_url=url))
    assert "sk-secret" not in str(told.value)
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL 'http"):
        address_of(Judge(model="m"))


def test_a_key_that_is_missing_or_can_not_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set OPENAI_API_KEY, or give base_url"):
        address_of(Judge(model="m"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds a line break") as told:
        address_of(Judge(model="m"))
    assert "sk-secret" not in str(told.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert str(address_of(Judge(model="m"))) == "https://api.openai.com/v1/chat/completions"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://host:8000/v1/")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert str(address_of(Judge(model="m"))) == "http://host:8000/v1/chat/completions"


async def test_the_key_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), judging(shorter, status(500, "sk-secret is overloaded")) as server:
        await ask(server)
    assert "*** is overloaded" in caplog.text
    assert "sk-secret" not in caplog.text
