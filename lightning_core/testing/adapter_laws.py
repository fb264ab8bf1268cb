"""The laws of a plugin with an `Adapter`: what it wraps is taken back, and a runner needs no line of the app.

from lightning_core.testing.adapter_laws import *
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lightning_core.errors import LightningError
from lightning_core.plugins import load_plugins
from lightning_core.records.types import UNNAMED, ToolEvent
from lightning_core.testing.framework import ENTRANCES, Stage
from lightning_core.testing.naming_laws import calls, team
from lightning_core.tracing.adapter import Adapter
from lightning_core.tracing.scope import rollout_scope

__all__ = ["test_a_class_is_not_attached", "test_what_is_taken_back_names_nothing_and_a_runner_names_all"]


@pytest.mark.asyncio
async def test_what_is_taken_back_names_nothing_and_a_runner_names_all(stage: Stage) -> None:
    adapter = _adapter(stage)
    made = calls(stage)
    nameless = {UNNAMED: sum(made.values())}
    assert await _agents(stage, adapter) == nameless
    take_back = adapter.lightning_install()
    assert await _agents(stage, adapter) == made
    take_back()
    assert await _agents(stage, adapter) == nameless


def test_a_class_is_not_attached(stage: Stage) -> None:
    plugins = load_plugins([stage.framework.plugin])
    kinds = _adapter(stage).targets()
    assert kinds, "the framework is imported, and so are its classes"
    for kind in (object, *kinds):
        with pytest.raises(LightningError, match="no plugin takes"):
            plugins.attach(kind)


def _adapter(stage: Stage) -> Adapter:
    adapter: Adapter = sys.modules[f"lightning_{stage.framework.plugin}"].adapter
    return adapter


async def _agents(stage: Stage, adapter: Adapter) -> dict[str | None, int]:
    """The agents of one run, and how many calls each made, once all lines of the app are taken back."""
    entrance = next(entrance for entrance in ENTRANCES if entrance not in stage.framework.lacks)
    before = len(stage.gateway.seen)
    async with stage.opened(team(stage, "r1")) as app, stage.opened(team(stage, "r1")):
        adapter.detach()
        adapter.detach()
        with rollout_scope(stage.scope()) as scope, _without_spans():
            await stage.enter(app, entrance)
    agents: dict[str | None, int] = {}
    for request in stage.gateway.seen[before:]:
        name = request.tagged().agent
        agents[name] = agents.get(name, 0) + 1
    told = {event.agent for event in scope.seen if isinstance(event, ToolEvent)}
    assert told <= set(agents), "a tool is reported under another name"
    assert bool(told) == (set(agents) != {UNNAMED}), "tools are reported while calls are named, and only then"
    return agents


@contextmanager
def _without_spans() -> Iterator[None]:
    """The framework's own spans are not kept: if the app has a tracer provider, they name agents too."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        yield
        return
    dropped = trace.SpanContext(trace_id=1, span_id=1, is_remote=False, trace_flags=trace.TraceFlags(0))
    with trace.use_span(trace.NonRecordingSpan(dropped)):
        yield
