"""The address and key of a rollout as environment variables: for programs that can't be touched.

A subprocess shares no context variable with us and may be written in any language. What it does share is
its environment, and nearly every client of OpenAI's API, or of Anthropic's, reads the same two names from
there. The address carries the rollout and the agent in its path, the key is the token of this rollout alone.
OpenTelemetry's exporters read their address, headers and protocol from there as well.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from lightning_core.errors import ConfigError
from lightning_core.records.types import UNNAMED
from lightning_core.tracing.headers import encode_name
from lightning_core.tracing.scope import current_agent, current_scope

REWARD_URL: Final = "LIGHTNING_REWARD_URL"


def environment(agent: str | None = None) -> dict[str, str]:
    """Where a program that the running rollout starts is to send its calls and its spans.

    `OPENAI_BASE_URL` and `OPENAI_API_KEY` are for the calls of OpenAI's clients, `ANTHROPIC_BASE_URL` and
    `ANTHROPIC_API_KEY` for those of Anthropic's. `OTEL_EXPORTER_OTLP_ENDPOINT`, `_PROTOCOL` and `_HEADERS`
    are for the spans, if it makes any: those in no agent's span are `agent`'s. `LIGHTNING_REWARD_URL` takes
    rewards, as JSON, with the same key as bearer token.

    Every call that the program makes with them is recorded as a call of `agent`, without a name as one of
    the `agent(...)` block around. It is served by the policy, and trained on if the trainer trains an agent
    of that name. A program with several roles takes several addresses: one `environment(...)` for each.
    Raises ConfigError outside a rollout, where there is no address to give.
    """
    scope = current_scope()
    if scope is None:
        raise ConfigError(
            "environment() was called outside a rollout, where there is no gateway to point a program at; "
            "call it inside the function that is given to Trainer.fit, each time the program is started"
        )
    who = current_agent()
    name = agent if agent is not None else who.agent if who is not None else UNNAMED
    if not name:
        raise ConfigError("environment(agent='') names no agent; give its name, or leave the argument out")
    return variables(scope.gateway_url, scope.rollout_id, scope.token, name)


def variables(gateway_url: str, rollout_id: str, token: str, agent: str) -> dict[str, str]:
    """The environment of a program that calls as `agent` in that rollout."""
    base = f"{_rollout_url(gateway_url, rollout_id)}/agents/{encode_name(agent)}"
    return {
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_KEY": token,
        "ANTHROPIC_BASE_URL": base,  # its clients add /v1
        "ANTHROPIC_API_KEY": token,
        REWARD_URL: rewards_url(gateway_url, rollout_id),
        "OTEL_EXPORTER_OTLP_ENDPOINT": base,  # exporters add /v1/traces
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization={quote(f'Bearer {token}', safe='')}",
    }


def rewards_url(gateway_url: str, rollout_id: str) -> str:
    """Where rewards of that rollout are sent."""
    return f"{_rollout_url(gateway_url, rollout_id)}/rewards"


def _rollout_url(gateway_url: str, rollout_id: str) -> str:
    return f"{gateway_url.rstrip('/')}/rollouts/{encode_name(rollout_id)}"
