"""The words of this project as values: what is stored, sent and trained on.

Stored or sent values are frozen pydantic models; values that live only inside a training step are
frozen slotted dataclasses. `None` always means "not yet" or "not given", never a number in disguise.
"""

from lightning_core.types.calls import (
    UNNAMED,
    Call,
    CallStatus,
    Choice,
    Event,
    Span,
    ToolErrorType,
    ToolEvent,
    Who,
)
from lightning_core.types.rollouts import (
    LARGEST_REWARD,
    REWARD_RANGE,
    Attempt,
    Demonstration,
    Record,
    Reward,
    Rollout,
    RolloutCount,
    Sampling,
    Split,
    Status,
    Task,
    is_reward,
)
from lightning_core.types.runs import Alert, Member, Metrics, ResourceVersion, Role, Run
from lightning_core.types.training import Key, Trajectory, Transition

__all__ = [
    "LARGEST_REWARD",
    "REWARD_RANGE",
    "UNNAMED",
    "Alert",
    "Attempt",
    "Call",
    "CallStatus",
    "Choice",
    "Demonstration",
    "Event",
    "Key",
    "Member",
    "Metrics",
    "Record",
    "ResourceVersion",
    "Reward",
    "Role",
    "Rollout",
    "RolloutCount",
    "Run",
    "Sampling",
    "Span",
    "Split",
    "Status",
    "Task",
    "ToolErrorType",
    "ToolEvent",
    "Trajectory",
    "Transition",
    "Who",
    "is_reward",
]
