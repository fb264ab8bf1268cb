"""Microsoft Agent Framework for Lightning: one added line, and every call knows which agent made it.

    agent = attach(build_agent())

The framework is not imported here: whoever has an agent to attach has imported it.
"""

from __future__ import annotations

from lightning_core.tracing.adapter import Adapter

adapter = Adapter(
    "agent_framework",
    "lightning_agent_framework.agents",
    "agent_framework:BaseAgent",
    "agent_framework:Workflow",
)
attach, detach, working = adapter.attach, adapter.detach, adapter.working
lightning_who, lightning_install, lightning_attach = adapter.hooks
