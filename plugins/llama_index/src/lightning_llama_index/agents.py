"""The wrapped parts of LlamaIndex: the steps of each class of workflows, when one of it first runs.

Agents are workflows. A step is looked up on its class when it runs, in the context of a task of its own,
which makes the requests. It works for the agent that its event or its workflow names; a step of a workflow
that has no agents is an agent itself, as a node of a graph is.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from threading import Lock
from typing import Any

from workflows import Workflow

from lightning_core.tracing.adapter import Wrapping
from lightning_core.tracing.patching import patch
from lightning_core.tracing.tools import report_tool
from lightning_llama_index import adapter, working

_STEP = "_step_config"
"""The attribute by which LlamaIndex knows a step."""
_CHANGING = Lock()


def _wrapping_steps(original: Callable[..., Any], users: list[Wrapping]) -> Callable[..., Any]:
    def run(workflow: Any, *args: Any, **kwargs: Any) -> Any:
        for wrapping in users:
            for owner in type(workflow).__mro__:
                for name in [name for name, value in vars(owner).items() if hasattr(value, _STEP)]:
                    with _CHANGING:
                        if (owner, name) not in wrapping:
                            wrapping[owner, name] = patch(owner, name, object(), _named)
        return original(workflow, *args, **kwargs)

    return run


def _named(original: Callable[..., Any], users: list[object]) -> Callable[..., Any]:
    async def step(workflow: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        agent = await _agent(workflow, given, original.__name__)
        started_at = time.time()
        with working(agent):
            result = await original(workflow, *args, **kwargs)
        if original.__name__ == "call_tool" and hasattr(result, "tool_output"):
            _report(workflow, result, agent, started_at)
        return result

    def plain_step(workflow: Any, *args: Any, **kwargs: Any) -> Any:
        with working(original.__name__):
            return original(workflow, *args, **kwargs)

    return step if inspect.iscoroutinefunction(original) else plain_step


async def _agent(workflow: Any, given: list[Any], step: str) -> str:
    """Whose step it is: the agent's that its event names, the one at work, or the step's own."""
    if hasattr(workflow, "agents"):
        named = [name for each in given if (name := getattr(each, "current_agent_name", None))]
        stores = [each.store for each in given if hasattr(each, "store")]
        return str(named[0] if named else await stores[0].get("current_agent_name", default=step))
    return str(getattr(workflow, "name", None) or step)


def _report(workflow: Any, ended: Any, agent: str, started_at: float) -> None:
    output = ended.tool_output
    unknown = output.is_error and output.exception is None
    kind: Any = ("unknown_tool" if unknown else "raised") if output.is_error else None
    report_tool(
        ended.tool_name,
        agent=agent,
        framework=adapter.framework,
        arguments=ended.tool_kwargs,
        result=output.content,
        error=(output.exception or output.content) if output.is_error else None,
        error_type=kind,
        tool_call_id=ended.tool_id,
        started_at=started_at,
    )


WRAPPED = [(Workflow, "run", _wrapping_steps)]
