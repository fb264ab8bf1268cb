"""The `agentlightning` command."""

from lightning_core.cli.app import main as main
