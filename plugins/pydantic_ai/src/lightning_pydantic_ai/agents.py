"""The capability that names an agent's requests and reports its tools, added to every run of every agent."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel

from lightning_core.tracing.patching import patch
from lightning_core.tracing.tools import report_tool
from lightning_core.types import UNNAMED
from lightning_pydantic_ai import FRAMEWORK, working

_UNDO = "_lightning_pydantic_ai_undo"


def install() -> None:
    """Every way to run an agent passes `Agent.iter`, which takes capabilities for one run."""
    if _UNDO not in vars(Agent):
        setattr(Agent, _UNDO, patch(Agent, "iter", FRAMEWORK, _with_naming))


def uninstall() -> None:
    if _UNDO in vars(Agent):
        vars(Agent)[_UNDO]()
        delattr(Agent, _UNDO)


def _with_naming(original: Callable[..., Any], users: list[str]) -> Callable[..., Any]:
    # `*args`: Pydantic AI would name an agent after a variable that holds it here.
    def iter(*args: Any, capabilities: Any = None, **kwargs: Any) -> Any:
        if users:
            capabilities = [*(capabilities or ()), Naming()]
        return original(*args, capabilities=capabilities, **kwargs)

    return iter


class Naming(AbstractCapability[Any]):
    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        request_context.model = Named(request_context.model, ctx.agent.name)
        return await handler(request_context)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        name = ctx.agent.name or UNNAMED
        run = {"agent": name, "framework": FRAMEWORK, "arguments": args, "started_at": time.time()}
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
