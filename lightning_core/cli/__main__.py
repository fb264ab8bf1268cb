"""`python -m lightning_core.cli` is the command `agentlightning`."""

from .app import main

main()
