"""The runs of a graph that are going on, and when each entered its node.

LangGraph leaves the current run's metadata in a context variable, which says *who* is calling. It does
not say *since when*, and with `agent(...)` blocks or other frameworks around and inside nodes the
innermost scope must win. So the callback notes an order when a run starts: a run in the same execution
of the same node as its parent has its parent's order, any other has just entered a scope of its own.
A request finds its order by the run id in the context: exact, whatever runs beside it.

Without the callback the order is unknown (0): the name is right, but a block around the graph would
win over the nodes in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from lightning_core.records.types import Who
from lightning_core.tracing.scope import enter_order
from lightning_langgraph.naming import (
    OWNER,
    UNNAMED_AGENT,
    agent_name,
    is_made,
    is_of_library,
    namespace,
    node_around,
    scope_key,
)

FRAMEWORK = "langgraph"
_DEFAULT = "LangGraph"
"""The name of a graph that was compiled without one."""
_NAME = re.compile(r"[^\s<|\\/>]+")
"""Names that OpenAI takes for a message's author, as which an agent signs."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a node, a chain or a tool that has started and not ended."""

    key: tuple[str | None, str]
    """Its agent and its namespace."""
    owner: str | None
    """`lc_agent_name`: of the ready-made agent it is in, or of one further out."""
    parent: UUID | None
    entered: int
    root: UUID
    """The outermost run around it, or its own id."""
    made: bool
    """Whether its node may be part of a ready-made agent."""
    name: str = ""
    """LangChain's name for it: a graph has the name that it was compiled with."""
    in_library: bool = False
    """Whether it is in a graph of a library's own."""


class Runs:
    """The runs that one callback knows."""

    def __init__(self) -> None:
        self._open: dict[UUID, Run] = {}
        self._calling: dict[UUID, UUID | None] = {}
        """Model runs that have not ended, and the outermost run around each. The context may outlive them,
        so it is checked against this."""

    def enter(
        self,
        run_id: UUID,
        parent: UUID | None,
        metadata: Mapping[str, Any] | None,
        state: Any = None,
        name: str = "",
    ) -> None:
        """A graph, node, chain or tool starts; `state` is what it was given."""
        metadata = metadata or {}
        made = self._made(parent, metadata, state)
        key = self._key(parent, metadata, made, state)
        around = self.find(parent)
        root = run_id if around is None else around.root
        in_library, order = self._in_library(parent, state), self._order(key, parent, state)
        self._open[run_id] = Run(key, metadata.get(OWNER), parent, order, root, made, name, in_library)

    def leave(self, run_id: UUID) -> None:
        """It has ended, well or not, and with an outermost run all that is in it: nobody tells the end of
        a model or a tool that was cancelled."""
        run = self._open.pop(run_id, None)
        if run is None or run.root != run_id:
            return
        for inner, around in list(self._open.items()):
            if around.root == run_id:
                self._open.pop(inner, None)
        for model, root in list(self._calling.items()):
            if root == run_id:
                self._calling.pop(model, None)

    def call(self, run_id: UUID, parent: UUID | None, metadata: Mapping[str, Any] | None) -> Who | None:
        """A model is about to be called, in this very context; returns for whom."""
        who = self.find_who(parent, metadata)
        if who is not None:
            self._calling[run_id] = self.find_root(parent)
            _calling.set(_ModelRun(self, run_id, enter_order(), who))
        return who

    def find_who(self, parent: UUID | None, metadata: Mapping[str, Any] | None) -> Who | None:
        """The agent that a run with this metadata, started by `parent`, works for; None outside any."""
        metadata = metadata or {}
        key = self._key(parent, metadata, self._made(parent, metadata))
        return Who(key[0], self._order(key, parent), FRAMEWORK) if key[0] is not None else None

    def end_call(self, run_id: UUID) -> None:
        """The model has answered or failed."""
        self._calling.pop(run_id, None)

    def is_calling(self, run_id: UUID) -> bool:
        """Whether a model run is still going on."""
        return run_id in self._calling

    def open_count(self) -> int:
        """How many runs of any kind have started and not ended."""
        return len(self._open) + len(self._calling)

    def find_root(self, run_id: UUID | None) -> UUID | None:
        """The outermost run around an open run, which may be itself; None if it is not open here."""
        run = self._open.get(run_id) if run_id is not None else None
        return run.root if run is not None else None

    def find(self, run_id: UUID | None) -> Run | None:
        """An open run; None if it is not open here."""
        return self._open.get(run_id) if run_id is not None else None

    def _made(self, parent: UUID | None, metadata: Mapping[str, Any], state: Any = None) -> bool:
        """All that runs in a node is part of what the node is part of."""
        run = self.find(parent)
        if run is not None and (self._in_library(parent, state) or run.key[1] == namespace(metadata)):
            return run.made
        return is_made(metadata, state)

    def _in_library(self, parent: UUID | None, state: Any = None) -> bool:
        """Whether a run that is given this state is in a graph of a library's own."""
        run = self.find(parent)
        return is_of_library(state) or (run is not None and run.in_library)

    def _key(
        self, parent: UUID | None, metadata: Mapping[str, Any], made: bool, state: Any = None
    ) -> tuple[str | None, str]:
        """The run's agent and namespace.

        A ready-made agent that is a node of a graph gets the name of the agent whose tool runs that graph:
        LangGraph hands the metadata down, and what is handed down wins. Then the node is the name. All in a
        library's graph is of the agent that called the library.
        """
        run = self.find(parent)
        if run is not None and run.key[0] is not None and self._in_library(parent, state):
            return run.key
        agent, path = scope_key(metadata, made)
        around = node_around(metadata, made)
        if around is not None and agent == metadata.get(OWNER) == self._owner_of_graph(parent, around[1]):
            return around[0], path
        if made and agent == UNNAMED_AGENT:
            return self._name_of_graph(parent, path) or agent, path
        return agent, path

    def _name_of_graph(self, run_id: UUID | None, path: str) -> str | None:
        """The name of the graph that has the node with this namespace; None if it has none.

        `create_react_agent(name=...)` leaves its name there and nowhere else. A run's own `run_name` stands
        in the same place, so what can't be an agent's name is not taken for one.
        """
        run = self.find(run_id)
        while run is not None and run.key[1] == path:
            run = self.find(run.parent)
        named = run is not None and run.name != _DEFAULT and _NAME.fullmatch(run.name)
        return run.name if run is not None and named else None

    def _owner_of_graph(self, run_id: UUID | None, path: str) -> str | None:
        """`lc_agent_name` of the nearest open run around that has this namespace."""
        run = self.find(run_id)
        while run is not None and _without_counters(run.key[1]) != path:
            run = self.find(run.parent)
        return run.owner if run is not None else None

    def _order(self, key: tuple[str | None, str], parent: UUID | None, state: Any = None) -> int:
        run = self.find(parent)
        if run is not None and run.key == key:
            return run.entered
        return 0 if run is not None and self._in_library(parent, state) else enter_order()


@dataclass(frozen=True, slots=True)
class _ModelRun:
    runs: Runs
    run_id: UUID
    started: int
    who: Who


_calling: ContextVar[_ModelRun | None] = ContextVar("lightning_langgraph_calling", default=None)


def innermost(config: Mapping[str, Any]) -> Who | None:
    """Who calls, from the run's config in this context and the model run that was announced in it.

    The model run decides when it started after the config's node was entered: then it is the request's
    own run, also where an app handed a config from another context. A node entered since, while an
    announced stream was still open, is further in.
    """
    pulled = _pull(config)
    model_run = _calling.get()
    if model_run is None or not model_run.runs.is_calling(model_run.run_id):
        return pulled
    return model_run.who if pulled is None or model_run.started > pulled.entered else pulled


def _pull(config: Mapping[str, Any]) -> Who | None:
    run = _open_run(config.get("callbacks"))
    agent = agent_name(config.get("metadata") or {}) if run is None else run.key[0]
    return Who(agent, 0 if run is None else run.entered, FRAMEWORK) if agent is not None else None


def _open_run(callbacks: Any) -> Run | None:
    run_id = getattr(callbacks, "parent_run_id", None)
    for handler in getattr(callbacks, "handlers", ()):
        runs = getattr(handler, "lightning_runs", None)
        if isinstance(runs, Runs) and (run := runs.find(run_id)) is not None:
            return run
    return None


def _without_counters(path: str) -> str:
    return "|".join(part for part in path.split("|") if not part.isdigit())
