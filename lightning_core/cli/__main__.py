"""`python -m lightning_core.cli` is the command `agentlightning`."""

from lightning_core.cli.app import main

main()
