"""AutoGen for Lightning: one added line, and every call knows which agent made it, in which rollout.

    team = attach(build_team())

AutoGen is not imported by this package: whoever has a team or an agent to attach has imported it.
"""

from __future__ import annotations

from lightning_autogen.attaching import attach, detach

__all__ = ["attach", "detach"]
