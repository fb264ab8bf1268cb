"""Which agent a LangGraph run belongs to, read from the metadata that LangGraph gives every run.

`langgraph_checkpoint_ns` is the path of nodes from the outermost graph inwards, such as
"supervisor:<uuid>|agent:<uuid>". The innermost node names the agent, unless it is one of those that
ready-made agents are built of (`model`, `tools`, middleware): then it is the agent's own name, which
`create_agent(name=...)` leaves in `lc_agent_name`, and failing that the node around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_INNER = frozenset({"agent", "model", "tools"})
_MIDDLEWARE = (".before_agent", ".before_model", ".after_model", ".after_agent")


def agent_name(metadata: Mapping[str, Any]) -> str | None:
    """The agent that a run with this metadata works for; None if it runs in no graph and no agent."""
    nodes = [part.partition(":")[0] for part in _namespace(metadata).split("|")]
    nodes = [node for node in nodes if node and not node.isdigit()]  # digits count a node's subgraphs
    if nodes and not _is_inner(nodes[-1]):
        return nodes[-1]
    outer = next((node for node in reversed(nodes) if not _is_inner(node)), None)
    # The key is inherited by whatever an agent's tools run: it names the agent only at its own nodes.
    return metadata.get("lc_agent_name") or outer or metadata.get("langgraph_node")


def scope_key(metadata: Mapping[str, Any]) -> tuple[str | None, str]:
    """The same for all runs within one execution of one node, different for any other."""
    return agent_name(metadata), _namespace(metadata)


def _namespace(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("langgraph_checkpoint_ns") or "")


def _is_inner(node: str) -> bool:
    return node in _INNER or node.endswith(_MIDDLEWARE)
