"""The proof can fail: each kind of mistake is counted as what it is."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lightning_core.records.types import Call
from lightning_core.testing.truth import mark
from lightning_core.tracing.scope import Scope, Unseen
from tests.build import make_call
from tests.proof import run
from tests.proof.play import Play
from tests.proof.report import show
from tests.proof.run import Proof, Tally, prove


async def _nothing(rollout: str) -> None:
    """A play that is only judged here, not run."""


def call(name: str, agent: str = "a", **fields: Any) -> Call:
    truth = mark(rollout="r", agent=agent, nonce=name)
    return make_call(name, agent=agent, request={"input": [{"role": "user", "content": truth}]}, **fields)


def tally(*calls: Call) -> Tally:
    """Two agents are expected to have called twice each, and one of them to have left once."""
    judged = Tally(Play("f", "t", "w", _nothing, {"a": 1, "b": 1}, {"b": 1}))
    judged.add(calls, repeats=2)
    return judged


RIGHT = [
    call("1"),
    call("2"),
    *(call(name, "b") for name in "34"),
    *(call(name, "b", status="cancelled") for name in "56"),
]


def test_what_is_right_is_no_mistake() -> None:
    judged = tally(*RIGHT)
    assert (judged.calls, judged.mistakes) == (6, 0)


@pytest.mark.parametrize(
    ("wrong", "counted"),
    [
        (call("1", rollout_id="other"), {"wrong_rollout": 1}),
        (call("1").model_copy(update={"agent": "b"}), {"wrong_agent": 1, "missing": 1, "surplus": 1}),
        (call("1", status="cancelled"), {"missing": 1, "surplus": 1}),
        (call("2").model_copy(update={"id": "7"}), {"wrong_call": 1}),
    ],
)
def test_a_wrong_call_is_counted(wrong: Call, counted: dict[str, int]) -> None:
    judged = tally(wrong, *RIGHT[1:])
    kinds = ("wrong_rollout", "wrong_agent", "wrong_call", "missing", "surplus")
    assert {kind: getattr(judged, kind) for kind in kinds if getattr(judged, kind)} == counted


def test_a_call_under_another_version_of_its_prompt_is_counted() -> None:
    judged = Tally(Play("f", "t", "w", _nothing, {"a": 3}))
    told = [mark(prompt=1), mark(prompt=2), ""]  # the last one was told none
    calls = [call(str(place)) for place in range(3)]
    for one, text in zip(calls, told, strict=True):
        one.request["input"].insert(0, {"role": "system", "content": text})  # type: ignore[union-attr,arg-type]
    judged.add(calls, 1, prompts={"a": 1})
    assert (judged.wrong_prompt, judged.mistakes) == (2, 2)


def test_a_call_that_is_not_there_is_missing_and_one_too_many_is_surplus() -> None:
    assert tally(*RIGHT[1:]).missing == 1
    assert tally(*RIGHT, call("8")).surplus == 1


def test_a_call_of_which_nothing_is_known_is_silent_and_one_that_was_noticed_is_not() -> None:
    scope = Scope("r", 1, "http://gateway", "token")
    play = Play("f", "t", "w", _nothing, {}, noticed=1)
    silent, noticed, surplus = Tally(play), Tally(play), Tally(play)
    silent.add([], 1, scope.noticed()[1])
    scope.notice(Unseen("host", "requests", "a", "/v1/chat/completions"))
    noticed.add([], 1, scope.noticed()[1])
    scope.notice(Unseen("host", "requests", "b", "/v1/chat/completions"))
    surplus.add([], 1, scope.noticed()[1])
    assert [(one.silent, one.surplus) for one in (silent, noticed, surplus)] == [(1, 0), (0, 0), (0, 1)]
    lost = tally(*RIGHT[1:])
    assert (lost.missing, lost.silent) == (1, 1)


def test_a_rollout_that_timed_out_misses_nothing_and_what_it_asked_is_judged() -> None:
    judged = Tally(Play("f", "t", "w", _nothing, {"a": 1, "b": 1}, noticed=2))
    judged.add([call("1", rollout_id="other")], 1, error="ConnectionTimeoutError: Connection timeout to host")
    assert (judged.timed_out, judged.missing, judged.silent, judged.wrong_rollout) == (1, 0, 0, 1)
    judged.add([], 1, error="ConnectionError: a time-out is no excuse here")
    assert (judged.timed_out, judged.missing, judged.silent) == (1, 2, 4)


def test_what_the_store_says_of_a_call_with_two_ids_is_printed() -> None:
    wrong = call("2").model_copy(update={"id": "7", "status": "cancelled", "error": "the attempt has ended"})
    assert "r: call 7 cancelled the attempt has ended" in report(Proof([tally(*RIGHT, wrong)]))


def report(proof: Proof) -> str:
    """Returns the printed text of a proof."""
    printed = StringIO()
    show(proof, 1.0, Console(file=printed, width=160))
    return printed.getvalue()


async def test_a_framework_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "FRAMEWORKS", {"bare": "openai", "crewai": "not_installed_anywhere"})
    said = report(await prove(tmp_path, calls=1, rollouts=1))
    assert "Not installed here: crewai\n" in said
    assert "The proof holds" in said


def test_where_all_are_installed_none_is_named() -> None:
    assert "Not installed" not in report(Proof([tally(*RIGHT)]))
