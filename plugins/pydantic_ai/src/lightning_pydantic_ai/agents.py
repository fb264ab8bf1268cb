"""The capability that names an agent's requests and reports its tools, added to every run of every agent."""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel

from lightning_core.records.types import UNNAMED
from lightning_core.tracing.tools import report_tool
from lightning_pydantic_ai import adapter, working


def _with_naming(original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    # `*args`: Pydantic AI would name an agent after a variable that holds it here.
    def iter(*args: Any, capabilities: Any = None, **kwargs: Any) -> Any:
        if users:
            capabilities = [*(capabilities or ()), Naming()]
        return original(*args, capabilities=capabilities, **kwargs)

    return iter


def _with_keys(original: Callable[..., None], users: list[object]) -> Callable[..., None]:
    # Pydantic AI looks for a variable that holds the agent, and does not look into mappings.
    def _infer_name(agent: Any, *frame: Any) -> None:
        original(agent, *frame)
        if users and agent.name is None:
            agent.name = _key_of(agent)

    return _infer_name


def _key_of(agent: Any) -> str | None:
    """The key under which a mapping of agents holds this one; None if none does, or two differ."""
    keys = {
        key
        for held in gc.get_referrers(agent)
        if isinstance(held, Mapping) and all(isinstance(each, AbstractAgent) for each in held.values())
        for key, each in held.items()
        if each is agent and isinstance(key, str)
    }
    return str(keys.pop()) if len(keys) == 1 else None


class Naming(AbstractCapability[Any]):
    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        request_context.model = Named(request_context.model, ctx.agent.name)
        return await handler(request_context)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        name = ctx.agent.name or UNNAMED
        run = {"agent": name, "framework": adapter.framework, "arguments": args, "started_at": time.time()}
        run["tool_call_id"] = call.tool_call_id
        try:
            with working(name):
                result = await handler(args)
        except (ApprovalRequired, CallDeferred):  # it has not run yet
            raise
        except Exception as error:
            report_tool(call.tool_name, error=error, **run)
            raise
        report_tool(call.tool_name, result=result, **run)
        return result


class Named(WrapperModel):
    """The agent's own model. A stream's request is made by its reader, hence named here, and not above."""

    def __init__(self, model: Model, agent: str | None) -> None:
        super().__init__(model)
        self._agent = agent

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        with working(self._agent):
            return await super().request(*args, **kwargs)

    @asynccontextmanager
    async def request_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            with working(self._agent):
                stream = await stack.enter_async_context(super().request_stream(*args, **kwargs))
            yield stream


WRAPPED = [(Agent, "iter", _with_naming), (AbstractAgent, "_infer_name", _with_keys)]
