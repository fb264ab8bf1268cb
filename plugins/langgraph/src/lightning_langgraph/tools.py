"""Requests for tools and their results, reported to the rollout as tool events.

A request is known by its `tool_call_id` from the reply that made it (which also says who asked, also where
the tools are a node of their own) until the outermost run ends. It is answered by a run of the tool, which
LangChain announces, or by a tool message that a node returns without one: the refusal of an unknown tool,
or what a node of the app's own found out. A node that hands a tool the bare arguments runs it without the
id; then it answers the first open request for just that, made as deep in other tools as it runs. A run that
failed waits for its node to end, because only there it shows whether the model is told of it, and what.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.messages.tool import ToolOutputMixin

from lightning_core.records.types import ToolErrorType
from lightning_core.tracing.tools import report_tool
from lightning_langgraph.outcomes import error_kind, is_unfinished, offered_in, same_arguments, tool_messages
from lightning_langgraph.runs import FRAMEWORK, Runs

_REFUSED_ARGUMENTS = "Tool input validation error"
"""LangChain's message to the model for a tool with `handle_validation_error=True`; no exception is shown."""


@dataclass(frozen=True, slots=True)
class _Model:
    agent: str
    root: UUID | None
    """The outermost run around it, if it is known."""
    within: UUID | None
    """The innermost run of a tool around it."""
    offered: frozenset[str] | None
    """The names of the tools that this request offers; None if it does not say."""


@dataclass(slots=True)
class _Asked:
    """A model's request for a tool."""

    tool_call_id: str
    agent: str
    name: str
    arguments: object
    offered: bool | None
    within: UUID | None
    """The innermost run of a tool around the model."""
    at: float = field(default_factory=time.time)
    answered: bool = False


@dataclass(slots=True)
class _Run:
    """A run of a tool."""

    agent: str
    name: str
    arguments: object
    tool_call_id: str | None
    node: UUID | None
    """The run that waits for it."""
    root: UUID | None = None
    """The outermost run around it."""
    started_at: float = field(default_factory=time.time)
    ended_at: float | None = None

    def report(
        self,
        result: object = None,
        error: BaseException | str | None = None,
        error_type: ToolErrorType | None = None,
    ) -> None:
        report_tool(
            self.name,
            agent=self.agent,
            framework=FRAMEWORK,
            arguments=self.arguments,
            result=result,
            error=error,
            error_type=error_type,
            tool_call_id=self.tool_call_id,
            started_at=self.started_at,
            ended_at=self.ended_at,
        )


class Tools:
    """The tool runs that one callback knows. It is called while `runs` has the run in question open."""

    def __init__(self, runs: Runs) -> None:
        self._open = runs
        self._taking = Lock()
        """Held while a run without an id takes its request: nodes run their tools in threads."""
        self._models: dict[UUID, _Model] = {}
        self._asked: defaultdict[UUID, dict[str, _Asked]] = defaultdict(dict)
        """Requests by the outermost run."""
        self._runs: dict[UUID, _Run] = {}
        self._failed: defaultdict[UUID, list[tuple[_Run, BaseException]]] = defaultdict(list)
        """Failed runs by the node that waits."""

    def open_count(self) -> int:
        """How much is kept of runs that have not ended."""
        return len(self._models) + len(self._asked) + len(self._runs) + len(self._failed)

    # models ---------------------------------------------------------------------------------
    def model_starts(self, run_id: UUID, parent: UUID | None, agent: str, request: Mapping[str, Any]) -> None:
        """`request` is what goes to the model beside the messages."""
        root = self._open.find_root(parent)
        self._models[run_id] = _Model(
            agent, root, self._tool_around(parent), offered_in(request.get("tools"))
        )

    def model_ends(self, run_id: UUID, generations: list[list[Any]] | None = None) -> None:
        """With its replies, or without any."""
        model = self._models.pop(run_id, None)
        if model is None:
            return
        for message in (getattr(reply, "message", None) for prompt in generations or () for reply in prompt):
            if isinstance(message, AIMessage):
                self._note_requests(model, message)

    def _note_requests(self, model: _Model, message: AIMessage) -> None:
        root = self._open.find_root(model.root)
        written = {chunk["id"]: chunk["args"] for chunk in getattr(message, "tool_call_chunks", ())}
        for call in message.tool_calls:
            tool_call_id, name = call["id"], call["name"]
            if root is not None and tool_call_id:
                offered = None if model.offered is None else name in model.offered
                arguments = written.get(tool_call_id) or call["args"]
                asked = _Asked(tool_call_id, model.agent, name, arguments, offered, model.within)
                self._asked[root][tool_call_id] = asked
        for broken in message.invalid_tool_calls:
            refused = _Run(model.agent, broken["name"] or "", broken["args"], broken["id"], None)
            refused.report(error=broken["error"] or "not valid JSON", error_type="invalid_arguments")

    # tools ----------------------------------------------------------------------------------
    def tool_starts(
        self,
        run_id: UUID,
        parent: UUID | None,
        *,
        agent: str,
        name: str,
        arguments: object,
        tool_call_id: str | None,
    ) -> None:
        """`agent` and `arguments` count if nobody is known to have asked for it."""
        root = self._open.find_root(parent)
        requests = self._asked.get(root, {}) if root is not None else {}
        with self._taking:
            asked = (
                requests.get(tool_call_id) if tool_call_id else self._find(requests, parent, name, arguments)
            )
            if asked is not None:
                asked.answered = True
                agent, arguments, tool_call_id = asked.agent, asked.arguments, asked.tool_call_id
        self._runs[run_id] = _Run(
            agent, name, arguments, tool_call_id, parent if root is not None else None, root
        )

    def _find(
        self, requests: dict[str, _Asked], parent: UUID | None, name: str, arguments: object
    ) -> _Asked | None:
        """The first request that a run without an id answers."""
        within = self._tool_around(parent)
        for asked in list(requests.values()):
            fits = not asked.answered and asked.name == name and asked.within == within
            if fits and same_arguments(asked.arguments, arguments):
                return asked
        return None

    def _tool_around(self, run_id: UUID | None) -> UUID | None:
        """The innermost run of a tool that this is or is in."""
        run = self._open.find(run_id)
        while run is not None and run_id not in self._runs:
            run_id = run.parent
            run = self._open.find(run_id)
        return run_id if run is not None else None

    def tool_ends(self, run_id: UUID, output: Any) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        told = {message.tool_call_id: message for message in tool_messages(output)}
        message = told.get(run.tool_call_id or "")
        if message is None:
            run.report(None if isinstance(output, ToolOutputMixin) else output)
        elif message.status != "error":
            run.report(message.content)
        else:
            refused = message.content == _REFUSED_ARGUMENTS
            run.report(message.content, message.text, "invalid_arguments" if refused else "raised")

    def tool_fails(self, run_id: UUID, error: BaseException) -> None:
        run = self._runs.pop(run_id, None)
        if run is None or is_unfinished(error):
            return
        run.ended_at = time.time()
        if run.node is None:
            run.report(None, error, error_kind(error))
        else:
            self._failed[run.node].append((run, error))

    # nodes ----------------------------------------------------------------------------------
    def node_ends(self, run_id: UUID, output: Any = None) -> None:
        """Any run that is neither a tool nor a model; without output it failed."""
        root = self._open.find_root(run_id)
        asked = self._asked.get(root, {}) if root is not None else {}
        failed = self._failed.pop(run_id, [])
        try:
            # A copy: other threads add requests meanwhile.
            if failed or not all(request.answered for request in list(asked.values())):
                told = {message.tool_call_id: message for message in tool_messages(output)}
                _report_failed(failed, told)
                _report_answered(asked, told)
        finally:
            if run_id == root:
                self._forget(run_id)

    def _forget(self, root: UUID) -> None:
        """Also models and tools that were cancelled: LangChain may not tell of their end."""
        self._asked.pop(root, None)
        for run_id, model in list(self._models.items()):
            if model.root == root:
                self._models.pop(run_id, None)
        for run_id, run in list(self._runs.items()):
            if run.root == root:
                self._runs.pop(run_id, None)
        for node, failed in list(self._failed.items()):
            if failed[0][0].root == root:
                self._failed.pop(node, None)


def _report_failed(failed: list[tuple[_Run, BaseException]], told: Mapping[str, ToolMessage]) -> None:
    """The last failure of a request is the one that the model is told of: before it the tool was retried."""
    last = {run.tool_call_id: run for run, _ in failed}
    for run, error in failed:
        message = told.get(run.tool_call_id or "") if last[run.tool_call_id] is run else None
        is_told = message is not None and message.status == "error"
        run.report(message.content if message is not None and is_told else None, error, error_kind(error))


def _report_answered(asked: dict[str, _Asked], told: Mapping[str, ToolMessage]) -> None:
    """Requests that a message answers though no tool ran."""
    for tool_call_id, message in told.items():
        request = asked.get(tool_call_id)
        if request is None or request.answered:
            continue
        request.answered = True
        run = _Run(request.agent, request.name, request.arguments, tool_call_id, None)
        run.started_at = request.at
        if message.status == "error":
            unknown = request.offered is False
            run.report(message.content, message.text, "unknown_tool" if unknown else "raised")
        else:
            run.report(message.content)
