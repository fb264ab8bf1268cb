"""Errors in the form that OpenAI's clients understand: `{"error": {message, type, code, param}}`.

The SDKs raise a typed exception from the status and retry 5xx by themselves, so the status matters:
4xx for what the app must change, 5xx for what may pass.
"""

from __future__ import annotations

from typing import Any, Final

from lightning_core.errors import AccessError, ContextLengthError, GatewayError, UnsupportedError

CONTEXT_LENGTH: Final = "context_length_exceeded"


class Refusal(GatewayError):
    """A request that gets an error as its answer."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str,
        param: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.kind = kind

    def body(self) -> dict[str, Any]:
        """The reply's JSON."""
        error = {"message": str(self), "type": self.kind, "code": self.code, "param": self.param}
        return {"error": error}


def unsupported(param: str, message: str) -> Refusal:
    """A valid option that no engine here can honour: refused by name rather than ignored."""
    return Refusal(message, code="unsupported_value", param=param)


def invalid(param: str, message: str) -> Refusal:
    """A value that the API itself does not allow."""
    return Refusal(message, code="invalid_value", param=param)


def missing(param: str) -> Refusal:
    """A field that must be given."""
    return Refusal(f"{param} is missing", code="missing_required_parameter", param=param)


def too_large(what: str) -> Refusal:
    """A batch of spans that is refused for its size; `what` says which limit it is over."""
    return Refusal(
        f"the batch has {what}; send fewer spans at once, see OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        status=413,
        code="batch_too_large",
    )


def unrecorded(error: Exception) -> Refusal:
    """A reply that could not be stored, and is therefore not given."""
    return Refusal(
        f"the reply could not be recorded, so it is withheld: {error}",
        status=503,
        code="store_failed",
        kind="server_error",
    )


def refusal_of(error: BaseException) -> Refusal:
    """The answer to an error raised while a request was served."""
    match error:
        case Refusal():
            return error
        case AccessError():
            return Refusal(str(error), status=401, code="invalid_api_key", kind="authentication_error")
        case ContextLengthError():
            return Refusal(str(error), code=CONTEXT_LENGTH)
        case UnsupportedError():
            return Refusal(str(error), code="unsupported_value")
        case _:
            message = f"the engine failed: {type(error).__name__}: {error}"
            return Refusal(message, status=500, code="engine_failed", kind="server_error")
