"""myframework for Lightning: one added line, and every call knows which agent made it, in which rollout.

    agent = attach(build_agent())

The framework is not imported here: whoever has an agent to attach has imported it.
"""

from lightning_myframework.adapter import attach

__all__ = ["attach"]
