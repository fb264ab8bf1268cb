"""Takes rollouts from the store and runs the user's function on them."""

from lightning_core.runner.config import FailurePolicy
from lightning_core.runner.runner import Runner

__all__ = ["FailurePolicy", "Runner"]
