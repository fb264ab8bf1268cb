"""`LightningCallback`: the one line a LangGraph app adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from lightning_core.records.types import UNNAMED, Who
from lightning_core.tracing.routing import innermost
from lightning_core.tracing.scope import current_agent
from lightning_langgraph.runs import Runs
from lightning_langgraph.tools import Tools


class LightningCallback(BaseCallbackHandler):
    """Tells Lightning where each run of a graph starts and ends, and what became of its tools:
    `graph.with_config(callbacks=[...])`.

    Inherited by subgraphs, chains, tools and models. Changes nothing that the app sees. May be shared
    by graphs and by any number of concurrent runs.
    """

    run_inline = True
    """In the caller's own context. LangChain runs other handlers in an executor, where a context
    variable set by one is lost to the request."""

    def __init__(self) -> None:
        self.lightning_runs = Runs()
        self.lightning_tools = Tools(self.lightning_runs)

    def __eq__(self, other: object) -> bool:
        """Each is as good as the other: LangChain adds no handler that it has, so runs are counted once where
        a graph with the callback is called within another."""
        return isinstance(other, LightningCallback)

    def __hash__(self) -> int:
        return hash(LightningCallback)

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        name = str(kwargs.get("name") or "")
        self.lightning_runs.enter(run_id, parent_run_id, metadata, inputs, name)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        tool_call_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.lightning_runs.enter(run_id, parent_run_id, metadata)
        self.lightning_tools.tool_starts(
            run_id,
            parent_run_id,
            agent=_named(self.lightning_runs.find_who(parent_run_id, metadata)),
            name=str(serialized.get("name") or kwargs.get("name") or ""),
            arguments=input_str if inputs is None else inputs,
            tool_call_id=tool_call_id,
        )

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[Any]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        who = self.lightning_runs.call(run_id, parent_run_id, metadata)
        request = kwargs.get("invocation_params") or {}
        self.lightning_tools.model_starts(run_id, parent_run_id, _named(who), request)

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.lightning_runs.call(run_id, parent_run_id, metadata)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        try:
            self.lightning_tools.node_ends(run_id, outputs)
        finally:
            self.lightning_runs.leave(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        try:
            self.lightning_tools.node_ends(run_id)
        finally:
            self.lightning_runs.leave(run_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        try:
            self.lightning_tools.tool_ends(run_id, output)
        finally:
            self.lightning_runs.leave(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        try:
            self.lightning_tools.tool_fails(run_id, error)
        finally:
            self.lightning_runs.leave(run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        try:
            self.lightning_tools.model_ends(run_id, response.generations)
        finally:
            self.lightning_runs.end_call(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        try:
            self.lightning_tools.model_ends(run_id)
        finally:
            self.lightning_runs.end_call(run_id)


def _named(who: Who | None) -> str:
    """Who calls here: a node or agent, or the `agent(...)` block that is further in."""
    inner = innermost([current_agent(), who])
    return inner.agent if inner is not None else UNNAMED
