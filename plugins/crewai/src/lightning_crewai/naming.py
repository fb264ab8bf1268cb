"""The name of a crew's agent: its role, as the user wrote it.

A role may be a template, "{topic} researcher", that every kickoff fills in. The name is the
template: it is what the user reads in the code, and it stays the same from task to task, so that
all calls made in that role train one agent. Roles from YAML often end in a line break, hence the strip.
"""

from __future__ import annotations

from typing import Any

FRAMEWORK = "crewai"


def agent_name(agent: Any) -> str:
    """The name of an `Agent`, of any other `BaseAgent`, or of a `LiteAgent`."""
    template = getattr(agent, "_original_role", None)  # set by CrewAI when it fills in the role
    return str(template or agent.role).strip()
