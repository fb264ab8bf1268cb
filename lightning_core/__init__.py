"""Train the agents you already have."""

__version__ = "0.1.0"
