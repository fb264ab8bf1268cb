"""Takes rollouts from the store and runs the user's function on them."""

from .policy import FailurePolicy
from .runner import Runner

__all__ = ["FailurePolicy", "Runner"]
