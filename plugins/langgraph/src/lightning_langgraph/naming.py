"""Which agent a LangGraph run belongs to, read from the metadata that LangGraph gives every run.

`langgraph_checkpoint_ns` is the path of nodes from the outermost graph inwards, such as
"supervisor:<uuid>|agent:<uuid>". The innermost node names the agent, unless it is one of those that
ready-made agents are built of (`model`, `tools`, middleware): then it is the agent's own name, which
`create_agent(name=...)` leaves in `lc_agent_name`, and failing that the node around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWNER = "lc_agent_name"
"""The metadata in which a ready-made agent leaves its name."""
_INNER = frozenset({"agent", "model", "tools"})
_MIDDLEWARE = (".before_agent", ".before_model", ".after_model", ".after_agent")


def agent_name(metadata: Mapping[str, Any]) -> str | None:
    """The agent that a run with this metadata works for; None if it runs in no graph and no agent."""
    nodes = [part.partition(":")[0] for part in _namespace(metadata).split("|")]
    nodes = [node for node in nodes if node and not node.isdigit()]  # digits count a node's subgraphs
    if nodes and not _is_inner(nodes[-1]):
        return nodes[-1]
    outer = next((node for node in reversed(nodes) if not _is_inner(node)), None)
    # The key is inherited by whatever an agent's tools run: it names the agent only at its own nodes, and
    # where a node further in is another agent, only the callback can tell (see `runs`).
    # A node of the app's own may be called `agent` too: then it is the outermost.
    outer = outer or next((node for node in nodes if node in _INNER - {"tools"}), None)
    return metadata.get(OWNER) or outer or metadata.get("langgraph_node")


def node_around(metadata: Mapping[str, Any]) -> tuple[str, str] | None:
    """The named node around a part of a ready-made agent, and the namespace of the graph that node is in.

    None for a run in a node with a name of its own, or in an agent that is in no node.
    """
    parts = [part for part in _namespace(metadata).split("|") if part and not part.isdigit()]
    nodes = [part.partition(":")[0] for part in parts]
    named = [index for index, node in enumerate(nodes) if not _is_inner(node)]
    if not named or named[-1] == len(nodes) - 1:
        return None
    return nodes[named[-1]], "|".join(parts[: named[-1]])


def scope_key(metadata: Mapping[str, Any]) -> tuple[str | None, str]:
    """The same for all runs within one execution of one node, different for any other."""
    return agent_name(metadata), _namespace(metadata)


def _namespace(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("langgraph_checkpoint_ns") or "")


def _is_inner(node: str) -> bool:
    return node in _INNER or node.endswith(_MIDDLEWARE)
