"""Errors as answers of the gateway, in the form that OpenAI's clients understand (see `ApiError`)."""

from __future__ import annotations

from typing import Any, Final

from lightning_core.dialects import DIALECTS
from lightning_core.dialects.chat import Chat
from lightning_core.errors import AccessError, ApiError, ContextLengthError, UnsupportedError

CONTEXT_LENGTH: Final = "context_length_exceeded"


def too_large(what: str) -> ApiError:
    """A batch of spans that is refused for its size; `what` says which limit it is over."""
    return ApiError(
        f"the batch has {what}; send fewer spans at once, see OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        status=413,
        code="batch_too_large",
    )


def refusal_of(path: str, error: ApiError) -> dict[str, Any]:
    """The answer's JSON, in the form of the API below whose address the request was sent."""
    asked = path.partition("/v1")[2]
    spoken = (dialect for dialect in DIALECTS if f"{asked}/".startswith(f"{dialect.path}/"))
    return next(spoken, Chat).error(error)


def api_error_of(error: BaseException) -> ApiError:
    """The answer to an error raised while a request was served."""
    match error:
        case ApiError():
            return error
        case AccessError():
            return ApiError(str(error), status=401, code="invalid_api_key", kind="authentication_error")
        case ContextLengthError():
            return ApiError(str(error), code=CONTEXT_LENGTH, too_long=(error.tokens, error.context))
        case UnsupportedError():
            return ApiError(str(error), code="unsupported_value")
        case _:
            message = f"the engine failed: {type(error).__name__}: {error}"
            return ApiError(message, status=500, code="engine_failed", kind="server_error")
