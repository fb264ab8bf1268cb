"""Rules about tools: each signal by hand, and none where ids do not tell whose it is."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.air import tools
from lightning_core.dialects import DIALECTS
from lightning_core.records.types import Choice
from tests.air.records import SCHEMA, TOOLS, asks, call, recorded, run, span, told, where

MINE = [("c1", "t1")]
RULES = {
    rule.__name__: rule
    for rule in (
        tools.tool_raised,
        tools.timed_out,
        tools.unknown_tool,
        tools.invalid_arguments,
        tools.empty_result,
    )
}


def spoke(*items: Any) -> dict[str, list[tuple[str, str | None]]]:
    """Returns each rule's signals, without the rules that have none."""
    records = recorded(*items)
    found = {name: where(rule(records)) for name, rule in RULES.items()}
    return {name: signals for name, signals in found.items() if signals}


def test_a_tool_that_ran_well_gives_no_signal() -> None:
    assert spoke(call(1, asks()), run()) == {}
    assert spoke(call(1, asks()), call(2, text="done", prompt=told("t1", "a boat floats"))) == {}
    assert spoke(call(1, text="no tool at all")) == {}


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        (run(error="KeyError: 'boat'", error_type="raised", result=None), "tool_raised"),
        (run(error="TimeoutError: after 5 s", error_type="raised", result=None), "timed_out"),
        (run(error="gave up", error_type="timed_out", result=None), "timed_out"),
        (run(error="no such tool", error_type="unknown_tool", result=None), "unknown_tool"),
        (run(error="word is missing", error_type="invalid_arguments", result=None), "invalid_arguments"),
        (run(result="[]"), "empty_result"),
    ],
)
def test_a_plugin_s_report_is_a_signal_of_the_call_that_asked(event: Any, rule: str) -> None:
    other = call(2, asks("t2", arguments={"word": "oar"}))
    assert spoke(call(1, asks()), other, event, run("t2")) == {rule: MINE}


FAILURES = [
    "Error: KeyError('boat')\n Please fix your mistakes.",
    "\n  Error: no boat",
    "Error: 1 validation error for look_up\nword\n  Field required [type=missing]",
    "Error executing tool: boat",
    "Error executing tool 'look_up' with kwargs {} with error:\n no boat",
    "Error invoking tool 'look_up' with kwargs {} with error:\n word: Field required",
    "Error calling tool 'look_up': no boat",
    "An error occurred while running the tool. Please try again. Error: 'boat'",
    "An error occurred while parsing tool arguments. Please try again with valid JSON.",
    "I encountered an error while trying to use the tool. This was the error: boat.",
    'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: boat',
    "sqlite3.OperationalError: no such table: boats",
    'ToolException("boat")',
    '{"error": "no boat"}',
    '{"error": {"code": 404, "message": "no boat"}}',
    '{"error": true, "message": "no boat"}',
    '{"isError": true, "content": "no boat"}',
    '{"ok": false, "reason": "no boat"}',
    '{"success": false}',
    '{"status": "error", "message": "no boat"}',
    [{"type": "text", "text": "Error: no boat"}],
]
NO_FAILURES = [
    "Errors are common in old maps.",
    "Error handling in Python: a guide",
    "Error while away: a novel",
    "An error occurred in the survey of 1912.",
    "I encountered an error of judgement in chapter two.",
    "No error: the boat floats",
    "The KeyError: class is built in",
    "ERROR: disk full\nINFO: retried",
    "error: unused variable",
    "INFO: started\nError: disk full\nINFO: retried",
    "Error: disk full\nError: disk full\nINFO: retried",
    "Error: disk full\n2026-01-02 10:00:00 retried",
    "boat\nTraceback (most recent call last):",
    "Exceptional boats (a list)",
    "Tool sharpening timed out the smith",
    '{"error": 0.03}',
    '{"error": 0, "fit": [1]}',
    '{"error": null, "rows": [1]}',
    '{"error": "", "rows": [1]}',
    '{"error": {}, "rows": [1]}',
    '{"error": false}',
    '{"errors_found": 3}',
    '{"ok": true, "success": true, "is_error": false, "status": "done"}',
    '{"ok": 0, "status": 500}',
    '{"text": "Error: no boat"}',
    '[{"error": "no boat"}]',
    "{not JSON",
    "null",
    "None",
]
EMPTY = [
    "[]",
    " [ ]\n",
    "{ }",
    "()",
    "set()",
    [{"type": "text", "text": "[]"}],
    '{"rows": []}',
    '{"columns": ["name"], "rows": [], "count": 0}',
    '{"results": [], "query": "boat"}',
]
NOT_EMPTY = [
    "",
    "  \n",
    None,
    [],
    [{"type": "text", "text": ""}],
    '""',
    "0",
    "false",
    "no boats",
    "[[]]",
    '{"rows": [[]]}',
    '{"rows": [], "items": [1]}',
    '{"errors": []}',
    '{"rows": null}',
    '{"ok": true}',
]


@pytest.mark.parametrize("content", FAILURES)
def test_the_wire_alone_tells_of_a_tool_that_failed(content: object) -> None:
    assert spoke(call(1, asks()), call(2, text="sorry", prompt=told("t1", content))) == {"tool_raised": MINE}


@pytest.mark.parametrize("content", NO_FAILURES)
def test_a_result_that_only_speaks_of_errors_is_none(content: str) -> None:
    assert spoke(call(1, asks()), call(2, text="well", prompt=told("t1", content))) == {}


@pytest.mark.parametrize("content", EMPTY)
def test_the_wire_alone_tells_of_an_empty_result(content: object) -> None:
    assert spoke(call(1, asks()), call(2, text="hm", prompt=told("t1", content))) == {"empty_result": MINE}


@pytest.mark.parametrize("content", NOT_EMPTY)
def test_a_result_is_empty_only_if_it_says_so(content: object) -> None:
    assert spoke(call(1, asks()), call(2, text="hm", prompt=told("t1", content))) == {}
    if content is None or isinstance(content, str):
        assert spoke(call(1, asks()), run(result=content)) == {}


def test_the_wire_alone_tells_of_a_time_out() -> None:
    slow = call(2, text="sorry", prompt=told("t1", "Error: the request timed out"))
    assert spoke(call(1, asks()), slow) == {"timed_out": MINE}
    slow = call(2, text="sorry", prompt=told("t1", "Tool 'look_up' timed out after 5 seconds."))
    assert spoke(call(1, asks()), slow) == {"timed_out": MINE}


def test_responses_and_anthropic_tell_it_in_their_own_forms() -> None:
    output = {"type": "function_call_output", "call_id": "t1", "output": "Error: no boat"}
    body: dict[str, Any] = {"input": [output], "previous_response_id": "resp_c1"}
    responses = call(2, text="sorry", request=body, dialect="responses")
    assert spoke(call(1, asks()), responses) == {"tool_raised": MINE}
    for flag, content, expected in (
        (True, "no boat", {"tool_raised": MINE}),
        (True, "", {"tool_raised": MINE}),
        (False, "Error: is the title of a book", {}),
        (None, "Error: no boat", {"tool_raised": MINE}),
    ):
        block = {"type": "tool_result", "tool_use_id": "t1", "content": content}
        block |= {} if flag is None else {"is_error": flag}
        request = {"messages": [{"role": "user", "content": [block]}]}
        answer = call(2, text="sorry", request=request, dialect="anthropic")
        assert spoke(call(1, asks()), answer) == expected, flag


def test_a_plugin_s_report_is_believed_and_the_wire_is_not_asked_as_well() -> None:
    wire = call(2, text="hm", prompt=told("t1", "Error: no boat"))
    assert spoke(call(1, asks()), wire, run()) == {}
    unknown = run(error="no such tool", error_type="unknown_tool", result=None)
    assert spoke(call(1, asks()), wire, unknown) == {"unknown_tool": MINE}


def test_a_failed_span_of_a_tool_is_believed_where_no_plugin_reports() -> None:
    failed = span("ValueError: no boat", gen_ai__tool__call__id="t1")
    assert spoke(call(1, asks()), failed) == {"tool_raised": MINE}
    assert spoke(call(1, asks()), failed, run()) == {}
    fine = span(None, gen_ai__tool__call__id="t1")
    wire = call(2, text="hm", prompt=told("t1", "Error: no boat"))
    assert spoke(call(1, asks()), fine, wire) == {"tool_raised": MINE}


def test_a_tool_that_a_framework_ran_again_failed_only_if_every_try_did() -> None:
    failed = run(error="ConnectionError: reset", error_type="raised", result=None)
    assert spoke(call(1, asks()), failed, failed.model_copy(update={"id": "e2"})) == {"tool_raised": MINE}
    assert spoke(call(1, asks()), failed, run(id="e2")) == {}


def test_what_can_not_be_linked_is_no_signal() -> None:
    failed = run(error="KeyError: 'boat'", error_type="raised", result=None)
    assert spoke(call(1, asks("t9")), failed) == {}
    assert spoke(call(1, asks(None)), failed.model_copy(update={"tool_call_id": None})) == {}
    # one id for two requests: of one reply, or of two replies by the same agent
    assert spoke(call(1, asks(), asks(arguments={"word": "oar"})), failed) == {}
    assert spoke(call(1, asks()), call(2, asks(arguments={"word": "oar"})), failed) == {}
    wire = call(3, text="hm", prompt=told("t1", "Error: no boat"))
    assert spoke(call(1, asks()), call(2, asks(arguments={"word": "oar"})), wire) == {}
    assert spoke(call(1, asks(), status="cancelled"), failed) == {}


class Watched(dict[str, Any]):
    """Counts how often it is looked into."""

    looks = 0

    def get(self, *given: Any) -> Any:
        self.looks += 1
        return super().get(*given)


def test_what_was_told_is_read_once_however_long_the_conversation_grows() -> None:
    history: list[Any] = [Watched(role="user", content="Go.")]
    calls = []
    for number in range(50):
        asking = call(number, asks(f"t{number}", arguments={"word": str(number)}))
        calls.append(asking.model_copy(update={"request": {"messages": [*history], "tools": TOOLS}}))
        history.append(Watched(role="assistant", content=None))
        history.append(Watched(role="tool", tool_call_id=f"t{number}", content="[]"))
    assert len(spoke(*calls)["empty_result"]) == 49  # what came of the last nobody was told
    assert max(item.looks for item in history) <= 10 * len(RULES)  # not growing with the number of calls


def test_a_conversation_that_was_begun_anew_is_read_anew() -> None:
    first, second = call(1, asks()), call(2, asks("t2"), prompt=told("t1", "[]"))
    other = call(3, text="so", prompt=[{"role": "user", "content": "Sum up."}, *told("t2", "[]")[1:]])
    assert spoke(first, second, other) == {"empty_result": [("c1", "t1"), ("c2", "t2")]}


def test_one_id_in_the_replies_of_two_agents_is_the_one_s_who_asked() -> None:
    failed = run(error="KeyError: 'boat'", error_type="raised", result=None, agent="reader")
    assert spoke(call(1, asks()), call(2, asks(), agent="reader"), failed) == {"tool_raised": [("c2", "t1")]}


def test_a_tool_that_was_not_offered_is_unknown_unless_it_ran() -> None:
    ghost = call(1, asks(name="ghost"))
    assert spoke(ghost) == {"unknown_tool": MINE}
    assert spoke(ghost, run(name="ghost")) == {}
    assert spoke(call(1, asks(name="ghost"), request={"messages": []})) == {}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"word": ', "not JSON"),
        ('["boat"]', "not a JSON object"),
        ("", "'word' is a required property"),
        ({}, "'word' is a required property"),
        ({"word": 3}, "word: 3 is not of type 'string'"),
        ({"word": "boat", "page": "two"}, "page: 'two' is not of type 'integer'"),
        ("[" * 10_000, "not JSON"),
    ],
)
def test_arguments_that_do_not_fit_the_schema_are_a_signal(arguments: object, problem: str) -> None:
    records = recorded(call(1, asks(arguments=arguments)))
    (signal,) = tools.invalid_arguments(records)
    assert (signal.call_id, signal.tool_call_id) == ("c1", "t1")
    assert problem in signal.detail


@pytest.mark.parametrize(
    "schema",
    [
        *(
            {"type": "boat"},
            {"required": 3},
            {"$ref": "http://127.0.0.1:9/s"},
            {"properties": 3},
            {"$schema": 3},
        ),
        {"properties": {"word": {"multipleOf": 0}}},
    ],
)
def test_a_schema_that_is_none_finds_nothing_wrong(schema: dict[str, Any]) -> None:
    odd = [{"type": "function", "function": {"name": "look_up", "parameters": schema}}]
    asked = asks(arguments={"word": 3})
    assert spoke(call(1, asked, request={"messages": [], "tools": odd})) == {}


@pytest.mark.parametrize("number", ["1e999", "-Infinity", "1" + "0" * 400])
def test_a_number_too_large_to_be_checked_does_not_fit(number: str) -> None:
    schema = {"type": "object", "properties": {"price": {"type": "number", "multipleOf": 0.01}}}
    offered = [{"type": "function", "function": {"name": "look_up", "parameters": schema}}]
    asked = asks(arguments=f'{{"price": {number}}}')
    found = spoke(call(1, asked, request={"messages": [], "tools": offered}))
    assert found == {"invalid_arguments": MINE}


@pytest.mark.parametrize(
    ("dialect", "tool"),
    [
        ("responses", {"type": "function", "name": "look_up", "parameters": SCHEMA}),
        ("anthropic", {"name": "look_up", "input_schema": SCHEMA}),
    ],
)
def test_responses_and_anthropic_offer_tools_in_their_own_forms(dialect: str, tool: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"dialect": dialect, "request": {"tools": [tool]}}
    assert spoke(call(1, asks(arguments={}), **asked)) == {"invalid_arguments": MINE}
    assert spoke(call(1, asks(name="ghost"), **asked)) == {"unknown_tool": MINE}


@pytest.mark.parametrize("dialect", [dialect.name for dialect in DIALECTS])
@pytest.mark.parametrize("odd", [None, 3, ["x", {}, {"function": 3}], {"function": {"name": "f"}}])
def test_records_that_are_not_well_formed_are_read_as_far_as_they_go(odd: Any, dialect: str) -> None:
    message = {"role": "assistant", "content": odd, "tool_calls": odd}
    request = {"messages": odd, "tools": odd, "input": odd}
    strange = call(1, request=request, choices=[Choice(message=message)], dialect=dialect)
    assert spoke(strange, run(error="KeyError: 1", error_type="raised")) == {}
