"""Which agent a LangGraph run belongs to, read from the metadata that LangGraph gives every run.

`langgraph_checkpoint_ns` is the path of nodes from the outermost graph inwards, such as
"supervisor:<uuid>|agent:<uuid>". The innermost node names the agent, unless it is one of those that
ready-made agents are built of (`model`, `tools`, middleware): then it is the agent's own name, which
`create_agent(name=...)` leaves in `lc_agent_name`, and failing that the node around it. An agent that has
neither is `agent`, unless its graph has a name (see `runs`).

A node of the app's own may be called `agent` or `model` too. LangChain's `create_agent` says in the metadata
that it made a graph, as deepagents' `create_deep_agent` does, and `create_react_agent` of LangGraph gives its
nodes the state `remaining_steps`.

A library may run a graph of its own for one call of a function. Its nodes are no agents: whoever called the
function is one (see `is_of_library`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWNER = "lc_agent_name"
"""The metadata in which a ready-made agent leaves its name."""
UNNAMED_AGENT = "agent"
"""A ready-made agent without a name, in no node."""
_MAKER, _CREATED = "ls_integration", frozenset({"langchain_create_agent", "deepagents"})
LIBRARIES = frozenset({"trustcall"})
"""Packages that run a graph inside a function: trustcall's extractor, which langmem uses too."""
_INNER = frozenset({"agent", "model", "tools", "generate_structured_response"})
_MIDDLEWARE = (".before_agent", ".before_model", ".after_model", ".after_agent")


def is_made(metadata: Mapping[str, Any], state: Any = None) -> bool:
    """Whether the run's node may be part of a ready-made agent; `state` is what the node was given.

    Without a state any node `agent` may be.
    """
    node = ["", *_nodes(metadata)][-1]
    if node == "agent" and state is not None:
        return "remaining_steps" in state if isinstance(state, Mapping) else hasattr(state, "remaining_steps")
    return metadata.get(_MAKER) in {None, *_CREATED} if node == "model" else _is_inner(node)


def is_of_library(state: Any) -> bool:
    """Whether what a node was given is a state of one of `LIBRARIES`, by the class that it is of."""
    return type(state).__module__.partition(".")[0] in LIBRARIES


def agent_name(metadata: Mapping[str, Any], made: bool | None = None) -> str | None:
    """The agent that a run with this metadata works for; None if it runs in no graph and no agent.

    `made` is what `is_made` says of its node.
    """
    nodes = _nodes(metadata)
    made = is_made(metadata) if made is None else made
    if nodes and not made:
        return nodes[-1]
    outer = next((node for node in reversed(nodes) if not _is_inner(node)), None)
    # The key is inherited by whatever an agent's tools run: it names the agent only at its own nodes, and
    # where a node further in is another agent, only the callback can tell (see `runs`).
    # A node of the app's own may be called `agent` too: then it is the outermost.
    outer = outer or next((node for node in nodes[:-1] if node in ("agent", "model")), None)
    if outer is None and nodes and (nodes[-1] != "tools" or metadata.get(_MAKER) in _CREATED):
        outer = UNNAMED_AGENT
    return metadata.get(OWNER) or outer or metadata.get("langgraph_node")


def node_around(metadata: Mapping[str, Any], made: bool) -> tuple[str, str] | None:
    """The named node around a part of a ready-made agent, and the namespace of the graph that node is in.

    None for a run in a node with a name of its own, or in an agent that is in no node.
    """
    parts = [part for part in namespace(metadata).split("|") if part and not part.isdigit()]
    nodes = [part.partition(":")[0] for part in parts]
    named = [index for index, node in enumerate(nodes) if not _is_inner(node)]
    if not made or not named or named[-1] == len(nodes) - 1:
        return None
    return nodes[named[-1]], "|".join(parts[: named[-1]])


def scope_key(metadata: Mapping[str, Any], made: bool) -> tuple[str | None, str]:
    """The same for all runs within one execution of one node, different for any other."""
    return agent_name(metadata, made), namespace(metadata)


def namespace(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("langgraph_checkpoint_ns") or "")


def _nodes(metadata: Mapping[str, Any]) -> list[str]:
    """From the outermost inwards."""
    nodes = [part.partition(":")[0] for part in namespace(metadata).split("|")]
    return [node for node in nodes if node and not node.isdigit()]  # digits count a node's subgraphs


def _is_inner(node: str) -> bool:
    return node in _INNER or node.endswith(_MIDDLEWARE)
