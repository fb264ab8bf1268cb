"""Every error this package raises on purpose.

    LightningError
    ├── ConfigError            an argument, option or combination that can't be honoured
    │   ├── UnsupportedError   the chosen engine, backend or algorithm can't do what was asked
    │   │   └── ConstraintError    a reply's grammar that is too much, or does not allow what came
    │   └── UnknownAgentError  an `agents` pattern that no call ever matched
    ├── DataError              what the user's data or app handed over can't be used
    │   ├── TaskError          a task or dataset row
    │   ├── RewardError        a reward that is missing, too large, no number, or about nothing
    │   └── UnseenCallsError   calls of the app that could not be recorded, where that was to be strict
    ├── ModelError             a model folder that can't be read or used
    ├── PluginError            a plugin that can't be imported or registered
    ├── StoreError             the store refused an operation
    │   ├── NotFoundError      nothing is stored under that id
    │   └── LeaseLostError     the attempt no longer belongs to this worker
    ├── GatewayError           a request the gateway can't serve
    │   ├── ApiError           the same with an HTTP status, a code and the field that it is about
    │   ├── AccessError        a token that is missing, forged or of another rollout
    │   │   └── ScopeError     a good token that does not open what was asked for
    │   ├── ContextLengthError a prompt longer than the model's context
    │   ├── TokenIdsError      an engine reply without token ids, asked for training
    │   └── EngineError        an engine's server that is away, broke or can't be used
    ├── WorkerError            a program or worker process that ran a rollout and broke
    ├── ExportError            a collector that can't be reached, or that refuses what it is sent
    ├── BackendError           a worker, server or machine behind the backend that is gone
    ├── TrainingError          an update that can't be made (no data, non-finite gradient)
    └── InstrumentationError   the OpenAI SDK offers no place to tag its requests

    KeyboardInterrupt
    └── TrainingStopped        Ctrl-C while a run was under way, which can be resumed

A message says what happened, to which thing, and what to do next.
"""

from __future__ import annotations

from pathlib import Path


class LightningError(Exception):
    """Base of all errors of this package."""


class ConfigError(LightningError):
    """An argument, option or combination that can't be honoured."""


class UnsupportedError(ConfigError):
    """The chosen engine, backend or algorithm can't do what was asked."""


class ConstraintError(UnsupportedError):
    """A reply's grammar takes too long or too much, or does not allow its next token."""


class UnknownAgentError(ConfigError):
    """An `agents` pattern that no recorded call matched."""


class DataError(LightningError):
    """The user's data, or data from the app, can't be used."""


class TaskError(DataError):
    """A task or dataset row that can't be used."""


class RewardError(DataError):
    """A reward that is missing, too large, no number, or about nothing."""


class UnseenCallsError(DataError):
    """Calls of the app could not be recorded, and `FailurePolicy(strict=True)` was asked for."""


class ModelError(LightningError):
    """A model folder that can't be read or used."""


class PluginError(LightningError):
    """A plugin that can't be imported or registered."""


class StoreError(LightningError):
    """The store refused an operation."""


class NotFoundError(StoreError):
    """Nothing is stored under that id."""


class LeaseLostError(StoreError):
    """The attempt no longer belongs to this worker."""


class GatewayError(LightningError):
    """A request the gateway can't serve."""


class ApiError(GatewayError):
    """A request that gets an error as its answer, in the form that OpenAI's clients understand.

    The SDKs raise a typed exception from the status and retry 5xx by themselves, so the status matters:
    4xx for what the app must change, 5xx for what may pass.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str,
        param: str | None = None,
        kind: str = "invalid_request_error",
        too_long: tuple[int, int] | None = None,
    ) -> None:
        """`too_long`: of a prompt that does not fit, its tokens and the model's context."""
        super().__init__(message)
        self.too_long = too_long
        self.status = status
        self.code = code
        self.param = param
        self.kind = kind

    def body(self) -> dict[str, dict[str, str | None]]:
        """The answer's JSON: `{"error": {message, type, code, param}}`."""
        error = {"message": str(self), "type": self.kind, "code": self.code, "param": self.param}
        return {"error": error}


class AccessError(GatewayError):
    """A token that is missing, forged or belongs to another rollout."""


class ScopeError(AccessError):
    """A good token that does not open what was asked for."""


class ContextLengthError(GatewayError):
    """A prompt longer than the model's context, in OpenAI's words: clients know it by them."""

    def __init__(self, tokens: int, context: int, advice: str, *, least: bool = False) -> None:
        """`least`: the prompt has at least so many tokens."""
        about = "at least " if least else ""
        super().__init__(
            f"This model's maximum context length is {context} tokens. However, your messages resulted in "
            f"{about}{tokens} tokens; {advice}"
        )
        self.tokens = tokens
        self.context = context


class TokenIdsError(GatewayError):
    """An engine reply without token ids where training needs them."""


class EngineError(GatewayError):
    """An engine's server that is away, broke, or can't be used."""


class WorkerError(LightningError):
    """A program or a worker process that ran a rollout and broke."""


class ExportError(LightningError):
    """A collector that can't be reached, or that refuses what it is sent."""


class BackendError(LightningError):
    """A worker, a server or a machine behind the backend that is gone."""


class TrainingError(LightningError):
    """An update that can't be made."""


class InstrumentationError(LightningError):
    """The OpenAI SDK offers no place to tag its requests."""


class TrainingStopped(KeyboardInterrupt):
    """Ctrl-C while a run was under way. Its `folder` is whole, and the run can be resumed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"the run in {str(folder)!r} was stopped; go on with it: resume=True and its folder")
        self.folder = folder
