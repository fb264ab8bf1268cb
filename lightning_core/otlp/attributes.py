"""What a rollout's records say in the words of the GenAI conventions, as attributes of spans and events.

What the conventions have no word for is under `lightning.`. An attribute that is not known is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from lightning_core import transcript
from lightning_core.dialects import get_dialect
from lightning_core.linking import AGENT_NAME, RESPONSE_ID, TOOL_CALL_ID
from lightning_core.types import Call, Reward, Rollout, ToolEvent

Attributes = dict[str, Any]
SERVICE_NAME = "service.name"
"""The attribute in which a span that came from the app keeps its program's name, that of its resource."""
SCOPE_NAME = "otel.scope.name"
"""The attribute in which it keeps the name of its instrumentation."""
_INT64 = 2**63


def origin(service: Any, scope: Any) -> Attributes:
    """What a stored span keeps of where it came from, among its attributes; what has no name is left out."""
    named = ((SERVICE_NAME, service), (SCOPE_NAME, scope))
    return {name: str(value) for name, value in named if value}


def rollout_attributes(rollout: Rollout) -> Attributes:
    return _known(
        {
            "lightning.run.id": rollout.run_id,
            "lightning.rollout.id": rollout.id,
            "lightning.rollout.status": str(rollout.status),
            "lightning.rollout.attempt": rollout.attempts,
            "lightning.rollout.reward": rollout.reward,
            "lightning.group.id": rollout.group_id,
            "lightning.step": rollout.step,
            "lightning.split": rollout.split,
            "lightning.task.id": rollout.task.id,
            "lightning.task.input": json.dumps(rollout.task.input),
        }
    )


def call_attributes(call: Call) -> Attributes:
    here = call.endpoint is None
    return _known(
        {
            "gen_ai.operation.name": get_dialect(call.dialect).operation,
            "gen_ai.provider.name": "lightning" if here else None,
            "server.address": None if here else urlsplit(str(call.endpoint)).hostname,
            "gen_ai.request.model": call.model or None,
            "gen_ai.request.temperature": call.temperature if here else None,
            RESPONSE_ID: call.response_id,
            "gen_ai.response.finish_reasons": [choice.finish_reason or "" for choice in call.choices] or None,
            "gen_ai.usage.input_tokens": transcript.tokens_read(call),
            "gen_ai.usage.output_tokens": transcript.tokens_written(call),
            "gen_ai.input.messages": json.dumps(transcript.prompt(call)),
            "gen_ai.output.messages": json.dumps(transcript.replies(call)),
            AGENT_NAME: call.agent,
            "error.type": None if call.status == "completed" else call.status,
            "lightning.call.id": call.id,
            "lightning.call.trained": call.trained,
            "lightning.policy_version": call.policy_version,
            "lightning.endpoint": call.endpoint,
        }
    )


def tool_attributes(event: ToolEvent) -> Attributes:
    return _known(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event.name,
            TOOL_CALL_ID: event.tool_call_id,
            "gen_ai.tool.call.arguments": event.arguments,
            "gen_ai.tool.call.result": event.result,
            AGENT_NAME: event.agent,
            "error.type": event.error_type,
            "lightning.framework": event.framework or None,
        }
    )


def reward_attributes(reward: Reward) -> Attributes:
    return _known(
        {
            "gen_ai.evaluation.name": f"{reward.kind} reward",
            "gen_ai.evaluation.score.value": reward.value,
            "gen_ai.evaluation.explanation": reward.reason,
            AGENT_NAME: reward.agent,
            "lightning.reward.kind": reward.kind,
            "lightning.reward.source": reward.source,
        }
    )


def plain(value: Any) -> Any:
    """A value that protobuf takes: whole characters, and integers of 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return str(value)
    if isinstance(value, Mapping):
        return {plain(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return value


def _known(attributes: Attributes) -> Attributes:
    return {name: plain(value) for name, value in attributes.items() if value is not None}
