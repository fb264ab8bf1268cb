"""The backend's contract: an engine that serves the policy and an optimizer that improves it.

To write one, copy `backends/tinker/backend.py`, and register it in `builtins.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.preflight import RunPlan
from lightning_core.backends.settings import PolicyOptions
from lightning_core.backends.weights.sizes import TensorChange
from lightning_core.dialects.upstream import ChatRequest, Upstream
from lightning_core.errors import ConfigError, ModelError, UnsupportedError
from lightning_core.gateway.engine_cache import VersionEngine
from lightning_core.records.types import Demonstration, Key, Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """The transitions of one update, and how they are weighted."""

    step: int
    trajectories: tuple[Trajectory, ...]
    """Only transitions that are trained and have an advantage carry loss."""


class Backend(Protocol):
    """Serves the policy, takes a batch, publishes new weights."""

    policy_version: int
    seed: int
    """The run's; the trainer sets it before `start`."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str | Path:
        """The folder or name of the model it starts from."""

    @property
    def upstream(self) -> Upstream:
        """The engine, once started."""

    def check(self, algorithm: Algorithm) -> None:
        """Raise UnsupportedError, by name, for anything in the algorithm this backend can't do. What a whole
        method is missing for, `check_backend` finds."""

    def plan_run(self, algorithms: Sequence[Algorithm]) -> RunPlan:
        """Returns the plan of a run with these algorithms and what it needs, without starting the backend.
        Needed only for `--dry-run`. Raises ModelError, ConfigError."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def values(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        """The critic's V at the state of each transition of a trained agent: after its prompt, before its
        reply. Needed only by algorithms with a critic."""

    def encode(self, demonstration: Demonstration) -> tuple[list[int], list[int]]:
        """Token ids of the request and of the reply, as the engine would have recorded them. Needed only to
        learn from demonstrations.

        Raises UnsupportedError for what the model's chat template can't say, ContextLengthError for what is
        too long.
        """

    def encode_prompt(self, request: ChatRequest) -> list[int]:
        """Token ids of a request's prompt, as the engine would have recorded them. Needed only by algorithms
        with a teacher. Safe in any thread.

        Raises UnsupportedError for what the model's chat template can't say, ContextLengthError for what is
        too long, with `max_tokens` of a reply.
        """

    async def set_reference(self, folder: Path) -> None:
        """Let the reference be the policy that `export` wrote to this folder, in place of the start. Needed
        only in later phases, by algorithms with a reference."""

    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        """Improve the weights under training by one batch; requests are answered by the published ones
        meanwhile. Returns metrics.

        The algorithm's critic is fitted to the transitions with a `target`.
        Raises TrainingError, with all weights as they were, if a gradient is not finite.
        """

    async def publish(self) -> int:
        """Let the engine answer with the updated weights; returns the new policy version.

        Requests in flight are answered to their end by the version they began with; those that come before
        the weights have changed are held, not refused.
        """

    async def save(self, folder: Path) -> None:
        """Write weights, optimizer state and version; atomic: the folder appears whole or not at all.

        The weights are a transformers folder `model/` in it. What can be served is that and the folder's own
        `.json` files: the rest is needed to go on training only, and is dropped first.
        """

    async def export(self, folder: Path) -> None:
        """Write the policy as it serves, as a plain transformers folder (LoRA merged into the weights)."""

    async def load(self, folder: Path) -> None:
        """Go on from a folder written by `save`."""

    @staticmethod
    def forget_optimizer(folder: Path) -> None:
        """Delete the optimizer's state from a folder written by `save`; `load` takes it still. Needed only to
        save space once a run has finished."""

    async def open_engine(self, source: str, version: int) -> VersionEngine:
        """An engine that serves one version alone, until it is closed; also of a backend that is not started.

        `source` is what a version's record says of its content: a folder written by `save` or `export`, any
        transformers folder, or the name of a model. Raises ModelError if that can't be read from here.
        """

    async def export_version(self, source: str, folder: Path) -> None:
        """Write a version as a plain transformers folder (LoRA merged); also of a backend not started."""

    def another(self, policy: PolicyOptions) -> Backend:
        """A backend for a further policy of the run, not started: of the same settings, but for those that
        the policy has itself, such as a base model. It is started after this one. Needed only for
        `Trainer(policies=...)`. Raises UnsupportedError, by name, and ModelError for a model that is none."""

    async def compare_versions(self, before: str, after: str) -> list[TensorChange]:
        """How far each tensor moved, the farthest first; also of a backend not started."""


@runtime_checkable
class Timed(Protocol):
    """A backend whose engine and optimizer are others' programs, and that counts how long those work."""

    @property
    def busy_seconds(self) -> float:
        """Seconds so far in which a reply was being sampled, or weights were trained, moved or saved."""


@runtime_checkable
class Paid(Protocol):
    """A backend that a service computes for, by the token."""

    @property
    def spent(self) -> dict[str, float]:
        """Tokens of the whole run so far, as metrics."""

    @property
    def ceiling_reached(self) -> str | None:
        """Why no further step may begin; None while one may."""


# By name, not as a protocol each: the message names the method that a backend's author has to write.
OPTIONAL = (
    ("values", "has a critic", "an algorithm without one, such as GRPO"),
    ("encode", "learns from demonstrations", "SFT() on its own rollouts"),
    ("encode_prompt", "learns from itself with a longer prompt", "one without a teacher, such as GRPO"),
    ("set_reference", "takes the policy that its phase began with as its reference", "it in the first phase"),
)
"""Methods that only some algorithms need: name, which do, and what to use where there is none."""


def check_loss(algorithm: Algorithm, who: str) -> None:
    """Raise UnsupportedError, by name, for an algorithm that trains no weights; `who` would have to."""
    for part in ("weigh", "units", "loss"):
        if not callable(getattr(algorithm, part, None)):
            raise UnsupportedError(
                f"algorithm {getattr(algorithm, 'name', algorithm)!r} has no {part!r}, so {who} nothing to "
                "descend; use one that trains weights, such as GRPO"
            )


def check_backend(backend: Backend, algorithm: Algorithm, *, first_phase: bool = True) -> None:
    """Raise UnsupportedError, by name, for anything in the algorithm, or its place in the run, that the
    backend can't do."""
    backend.check(algorithm)
    needed = {
        "values": algorithm.critic is not None,
        "encode": algorithm.learns_from is not None,
        "encode_prompt": algorithm.needs_teacher,
        "set_reference": algorithm.needs_reference and not first_phase,
    }
    for method, why, instead in OPTIONAL:
        if needed[method] and not callable(getattr(backend, method, None)):
            raise UnsupportedError(
                f"algorithm {algorithm.name!r} {why}, and backend {backend.name!r} has no {method!r} for "
                f"that; use {instead}, or the local backend"
            )


def check_policies(backend: Backend, policies: Sequence[PolicyOptions]) -> None:
    """Raise UnsupportedError, by name, if the backend can't train these policies beside the run's own."""
    if not callable(getattr(backend, "another", None)):
        names = ", ".join(repr(each.name) for each in policies)
        raise UnsupportedError(
            f"policies={{...}} names {names}, and backend {backend.name!r} trains one policy: leave policies "
            "out, or use the local backend"
        )
    for each in policies:
        with naming(each):
            backend.another(each)


@contextmanager
def naming(policy: PolicyOptions) -> Iterator[None]:
    """Name the policy in an error about its options or its model."""
    try:
        yield
    except (ConfigError, ModelError) as error:
        raise type(error)(f"policy {policy.name!r}: {error}") from error


def check_versions(backend: Backend, method: str) -> None:
    """Raise UnsupportedError, by name, if the backend can't do with single versions what `method` does."""
    if not callable(getattr(backend, method, None)):
        raise UnsupportedError(
            f"backend {backend.name!r} has no {method!r}, so only the weights in its own engine can be used; "
            "use the local backend to serve, compare or export other versions"
        )
