"""The naming rule on metadata as LangGraph writes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lightning_langgraph.naming import agent_name, is_made


@pytest.mark.parametrize(
    ("namespace", "agent", "node", "expected"),
    [
        ("write:u1", None, "write", "write"),
        ("outer:u1|inner:u2", None, "inner", "inner"),
        ("agent:u1", None, "agent", "agent"),
        ("researcher:u1|agent:u2", None, "agent", "researcher"),
        ("model:u1", "sql", "model", "sql"),
        ("node:u1|model:u2", "sql", "model", "sql"),
        ("node:u1|1|model:u2", None, "model", "node"),
        ("tools:u1|look_up:u2", "sql", "look_up", "look_up"),
        ("Summary.before_model:u1", "sql", "Summary.before_model", "sql"),
        ("tools:u1|model:u2", None, "model", "agent"),
        ("model:u1", None, "model", "agent"),
        ("agent:u1|model:u2", None, "model", "agent"),
        ("", None, None, None),
        ("", "sql", None, "sql"),
    ],
)
def test_the_innermost_node_names_the_agent_unless_it_is_part_of_a_ready_made_one(
    namespace: str, agent: str | None, node: str | None, expected: str | None
) -> None:
    metadata = {"langgraph_checkpoint_ns": namespace, "lc_agent_name": agent, "langgraph_node": node}
    assert agent_name(metadata) == expected
    assert agent_name({key: value for key, value in metadata.items() if value}) == expected


@pytest.mark.parametrize(
    ("namespace", "maker", "state", "expected"),
    [
        ("researcher:u1|agent:u2", "langgraph", {"messages": [], "remaining_steps": 9}, "researcher"),
        (
            "researcher:u1|agent:u2",
            "langgraph",
            SimpleNamespace(messages=[], remaining_steps=9),
            "researcher",
        ),
        ("researcher:u1|agent:u2", "langgraph", {"messages": []}, "agent"),
        ("researcher:u1|agent:u2", "langgraph", SimpleNamespace(messages=[]), "agent"),
        ("researcher:u1|agent:u2", "langchain_create_agent", {"messages": []}, "agent"),
        ("researcher:u1|model:u2", "langchain_create_agent", {"messages": []}, "researcher"),
        ("researcher:u1|model:u2", "deepagents", {"messages": []}, "researcher"),
        ("researcher:u1|model:u2", "langgraph", {"messages": []}, "model"),
        ("researcher:u1|tools:u2", "langgraph", {"messages": []}, "researcher"),
        ("researcher:u1|generate_structured_response:u2", "langgraph", {"messages": []}, "researcher"),
    ],
)
def test_a_node_of_the_apps_own_keeps_its_name(namespace: str, maker: str, state: Any, expected: str) -> None:
    metadata = {"langgraph_checkpoint_ns": namespace, "ls_integration": maker}
    assert agent_name(metadata, is_made(metadata, state)) == expected
