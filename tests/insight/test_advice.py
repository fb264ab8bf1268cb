"""The first advice when nothing was earned, and advice on replies that were cut."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from lightning_core.insight.advice import TINY_KNOWS, nothing_earned
from lightning_core.insight.failures import group_failures, reason_of, with_hint
from lightning_core.records.types import Call, Choice, Status
from tests.insight.records import call, rollout


def cut(of: int, content: str = '{"total": 1') -> Call:
    choice = Choice(completion_ids=[1], logprobs=[-0.5], message={"content": content}, finish_reason="length")
    return call(of, 0, choices=[choice], request={"messages": [], "max_tokens": 16 + of})


def test_a_reply_and_what_to_try_are_shown_where_nothing_was_earned() -> None:
    rollouts = [rollout(number, 0.0) for number in range(4)]
    calls = {one.id: [call(number, 0)] for number, one in enumerate(rollouts)}
    said = nothing_earned(rollouts, calls) or ""
    assert said.startswith("None of 4 rollouts earned anything")
    assert "agent 'writer':\n  asked    question 0\n  replied  boats\n" in said
    assert "response_format" in said
    assert "part of the reward" in said
    assert "larger model" in said
    assert TINY_KNOWS not in said
    assert "max_tokens" not in said
    assert TINY_KNOWS in (nothing_earned(rollouts, calls, tiny=[None]) or "")
    calls["r1"] = [cut(1)]
    assert "1 of 4 replies were cut at max_tokens" in (nothing_earned(rollouts, calls) or "")


def test_nothing_is_said_where_something_was_earned() -> None:
    some = [*(rollout(number, 0.0) for number in range(7)), rollout(7, 0.25)]
    assert nothing_earned(some, {}) is None
    assert nothing_earned([rollout(0, 0.0)], {}) is None, "one rollout says little"
    broken = [rollout(number, None, status=Status.FAILED, error="KeyError: 'x'") for number in range(8)]
    assert nothing_earned(broken, {}) is None, "its error says more"


def test_failures_after_a_reply_that_was_cut_are_one_kind_with_a_hint() -> None:
    errors = [
        f"JSONDecodeError: Expecting value: line 1 column {n}\n  at /home/me/app.py:{10 + n} in read"
        for n in (1, 2)
    ]
    failed = [
        rollout(n, None, status=Status.FAILED, error=with_hint(error, [cut(n)]))
        for n, error in enumerate(errors)
    ]
    [reason] = group_failures(failed)
    assert reason.count == 2
    assert reason.text == (
        "the reply of agent 'writer' was cut at max_tokens=16 in the middle of its JSON: raise max_tokens, "
        "or ask for less; if what it says has no end, bound it in the schema (maxLength, or {1,3} in a "
        "pattern); the app ended with JSONDecodeError: Expecting value: "
        "line 1 column 1 (at /home/me/app.py:11 in read)"
    )
    long = reason.model_copy(update={"error": "x" * 500, "place": None})
    assert long.text.endswith("; the app ended with " + "x" * 80 + "…")
    whole = with_hint(errors[0], [cut(0), call(0, 1)])
    assert whole == errors[0], "its last reply was whole"
    assert reason_of(rollout(0, None, status=Status.FAILED, error=whole)).hint is None


def test_a_client_without_a_key_is_told_that_any_value_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(openai.OpenAIError) as of_openai:
        openai.OpenAI()
    said: Any = [{"role": "user", "content": "hi"}]
    with anthropic.Anthropic() as client, pytest.raises(TypeError) as of_anthropic:
        client.messages.create(model="m", max_tokens=5, messages=said)
    for problem, name in ((of_openai.value, "OPENAI_API_KEY"), (of_anthropic.value, "ANTHROPIC_API_KEY")):
        error = with_hint(f"{type(problem).__name__}: {problem}\n  at app.py:3 in solve", [])
        reason = reason_of(rollout(0, None, status=Status.FAILED, error=error))
        assert reason.hint is not None
        assert reason.hint.endswith(f"export {name}=none")
        assert reason.place == "app.py:3 in solve"
