"""The `agentlightning` command."""

from .app import main as main
