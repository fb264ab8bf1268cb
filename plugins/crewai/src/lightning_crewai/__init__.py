"""CrewAI for Lightning: one added line, and every call knows which agent of the crew made it.

    crew = attach(build_crew())

CrewAI is not imported by this package: whoever has a crew or an agent to attach has imported it.
"""

from __future__ import annotations

from lightning_crewai.attaching import attach, detach

__all__ = ["attach", "detach"]
