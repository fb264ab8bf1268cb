"""OpenAI Agents SDK for Lightning: one added line, and every call knows which agent made it.

    agent = attach(build_agent())       # or install(), once, anywhere before the first run

The SDK is not imported here: `install()` waits for the app to do it.
"""

from lightning_openai_agents.installing import attach, install, uninstall

__all__ = ["attach", "install", "uninstall"]
