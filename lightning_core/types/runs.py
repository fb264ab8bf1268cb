"""Training runs: what they are, what they learn, who plays in them, and what went wrong."""

from __future__ import annotations

import time
from typing import Literal

from pydantic import Field, JsonValue

from lightning_core.types.rollouts import Record

Role = Literal["trainer", "gateway", "runner"]


class Run(Record):
    """One training run: its configuration and where its folder lies."""

    id: str
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """What may not change when the run is resumed; and under "rollouts" how every worker is to run them."""
    folder: str | None = None
    status: Literal["running", "finished", "stopped", "failed"] = "running"
    created_at: float = Field(default_factory=time.time)
    provenance: dict[str, JsonValue] = Field(default_factory=dict)
    """Where its numbers come from: versions of packages, git state, machine, command line, all settings."""
    secret: str = Field(default="", repr=False)
    """The key that signs its rollouts' tokens, in hexadecimal: whoever may read the store may have it."""


class ResourceVersion(Record):
    """One version of something an algorithm improves: model weights or a prompt template."""

    run_id: str
    name: str = "policy"
    version: int
    kind: Literal["weights", "prompt"] = "weights"
    uri: str | None
    """Where the content lies: a folder for weights, the text for a prompt. None once that was deleted."""
    parent: int | None = None
    """The version it was made from."""
    author: str = "trainer"
    """Who made it: "trainer", or a person's name."""
    metrics: dict[str, float] = Field(default_factory=dict)
    created_at: float = Field(default_factory=time.time)
    chosen_at: float | None = None
    """When it was last chosen to be served: the version chosen last is the current one. None: never."""


class Metrics(Record):
    """Numbers of one step of a run."""

    run_id: str
    step: int
    values: dict[str, float]
    created_at: float = Field(default_factory=time.time)


class Member(Record):
    """A process that plays a role in a run, as it last said of itself."""

    run_id: str
    role: Role
    name: str
    """Its own name in that role: a restarted process takes the place of the one that died."""
    url: str | None = None
    """Where it is reached: of a gateway, without `/v1`."""
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """What else it says: process id, host, slots, the policy versions it serves."""
    started_at: float = Field(default_factory=time.time)
    seen_at: float = Field(default_factory=time.time)
    """Unix seconds of its last sign of life."""


class Alert(Record):
    """Something about a run that a person should look at."""

    run_id: str
    id: str
    """Of several with one id the first counts."""
    rule: str
    """Who raised it, such as "reward_collapse"."""
    level: Literal["warning", "critical"] = "warning"
    message: str
    """What happened, to what, and what to do."""
    step: int | None = None
    created_at: float = Field(default_factory=time.time)
