"""The law of an answer: an answer at all, no failure of the server's, and an error only with its reason."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from tests.fuzz.grammar import Case
from tests.fuzz.wire import Answer

_OWN_FAILURES = ("the engine failed", "could not be recorded", "the gateway was stopped")
"""Words of errors that are the server's, not the request's: a stream that has begun has no status."""
_UNANSWERED = ("cut", "stall", "leave", "abort")
_BEFORE_HTTP = b"Invalid HTTP request received."
"""The server's answer to what is not HTTP, such as a header with bytes that no header may have."""


def find_fault(case: Case, answer: Answer) -> str | None:
    """Returns the fault of the answer; None if there is none."""
    if case.manner in _UNANSWERED:
        return None
    if answer.late:
        return "no answer in time"
    if answer.status == 0:
        return "the connection was closed without an answer"
    if not answer.whole:
        return f"the answer {answer.status} breaks off after {len(answer.body)} bytes"
    if answer.status >= 500:
        return f"{answer.status}: {answer.body[:300]!r}"
    if answer.status == 204:  # to OPTIONS, as a browser asks before it sends
        return "204 with a body" if answer.body else None
    if case.method == "HEAD" or answer.body == _BEFORE_HTTP or 300 <= answer.status < 400:
        return None
    if answer.status >= 400:
        return _refusal_fault(case, answer)
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return _stream_fault(case, answer.body)
    return _whole_fault(case, answer)


def _refusal_fault(case: Case, answer: Answer) -> str | None:
    """A refusal is an error in the form of its API, and says why."""
    if case.target == "traces" and answer.headers.get("content-type") == "application/x-protobuf":
        try:
            status = Status.FromString(answer.body)
        except DecodeError:
            return f"{answer.status} with a body that is no google.rpc.Status: {answer.body[:200]!r}"
        return None if status.code and status.message else f"{answer.status} without code or message"
    try:
        body = json.loads(answer.body)
    except ValueError:
        return f"{answer.status} with a body that is not JSON: {answer.body[:200]!r}"
    if "error" not in body and case.target == "traces":
        return None if body.get("code") and body.get("message") else f"{answer.status} without reason: {body}"
    error = body.get("error")
    if not isinstance(error, dict) or not error.get("message") or not error.get("type"):
        return f"{answer.status} without reason: {answer.body[:200]!r}"
    if (
        case.target == "anthropic"
        and answer.status != 404
        and answer.status != 405
        and body.get("type") != "error"
    ):
        return f"{answer.status} not in Anthropic's form: {answer.body[:200]!r}"
    return None


def _stream_fault(case: Case, body: bytes) -> str | None:
    """A stream comes to its end, or ends with an error that is not the server's own."""
    events = [part for part in body.decode("utf-8", "replace").split("\n\n") if part]
    if not events:
        return "an empty stream"
    data = events[-1].rpartition("data: ")[2]
    if data == "[DONE]":
        return None
    try:
        last = json.loads(data)
    except ValueError:
        return f"a stream that ends with {data[:200]!r}"
    if last.get("type") in ("message_stop", "response.completed", "response.incomplete"):
        return None
    error = last.get("error")
    if not isinstance(error, dict) or not error.get("message"):
        return f"a stream that ends with {data[:300]}"
    if any(words in error["message"] for words in _OWN_FAILURES):
        return f"a stream that fails: {error['message'][:300]}"
    return None


def _whole_fault(case: Case, answer: Answer) -> str | None:
    if case.target == "traces" and answer.headers.get("content-type") == "application/x-protobuf":
        return None
    try:
        json.loads(answer.body)
    except ValueError:
        return f"{answer.status} with a body that is not JSON: {answer.body[:200]!r}"
    return None


def reply_of(case: Case, answer: Answer) -> dict[str, Any] | None:
    """The whole reply of a chat completion that the client has seen to its end; None if it is none."""
    if case.target != "chat" or answer.status != 200 or not answer.whole or case.method != "POST":
        return None
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return None
    reply: dict[str, Any] = json.loads(answer.body)
    return reply
