"""Telemetry of the libraries that run here, which DO_NOT_TRACK=1 turns off for all of them.

This project sends nothing to anybody. Some libraries that it starts, or that an app uses, do unless a
variable of their own forbids it. They read it at their first use, so it is set before; processes that are
started later inherit it. docs/telemetry.md says what each of them sends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SWITCH: Final = "DO_NOT_TRACK"
"""The variable by which a user says so; see https://donottrack.sh."""
VARIABLES: Final = MappingProxyType(
    {
        "CREWAI_DISABLE_TELEMETRY": "true",
        "CREWAI_DISABLE_VERSION_CHECK": "true",
        "CREWAI_TRACING_ENABLED": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TINKER_TELEMETRY": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "WANDB_ERROR_REPORTING": "false",
    }
)
"""Variables that turn off the telemetry of each library."""


def switches(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the environment should have besides: none without DO_NOT_TRACK, and none that is in
    it already, whatever it says."""
    asked = environment.get(SWITCH, "").strip().lower() not in ("", "0", "false", "no", "off")
    return {name: value for name, value in VARIABLES.items() if asked and name not in environment}


def obey() -> None:
    """Turn off telemetry in this process and in those it starts, if the environment asks for that."""
    os.environ.update(switches(os.environ))
