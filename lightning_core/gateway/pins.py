"""Which version of the weights a request is for.
 A trained agent is answered by the version that its rollout is pinned to, or by the current one: its token
says which, whatever model its app names. Anybody else may ask for a version by the model's name,
`NAME@VERSION`.
"""

from __future__ import annotations

from dataclasses import replace

from lightning_core.dialects.strict import short
from lightning_core.errors import ApiError
from lightning_core.gateway.access import Caller
from lightning_core.upstream import ChatRequest
from lightning_core.versions import read_number


def version_name(model: str, version: int) -> str:
    """How a client asks for one version of a model."""
    return f"{model}@{version}"


def address(request: ChatRequest, caller: Caller, model: str, served: str) -> ChatRequest:
    """The request with the version that is to answer it and the attempt that it belongs to.

    `model` is what the client calls it, `served` the name it is served under. Raises ApiError for a version
    that is no number, and if a trained agent names another than its rollout's.
    """
    version, asked = caller.policy_version, _asked(model, served)
    if asked is not None and asked != version and caller.trained:
        pinned = "the current version" if version is None else f"version {version}"
        raise ApiError(
            f"agent {caller.agent!r} is trained, so its rollout says which weights answer it, {pinned}, and "
            f"not the model name {model!r}; name another model, or enqueue the rollout with that version",
            code="other_version",
            param="model",
        )
    if caller.rollout_id is None or caller.attempt is None:
        return replace(request, policy_version=asked)
    own = caller.rollout_id, caller.attempt
    return replace(request, policy_version=version if asked is None else asked, attempt=own)


def _asked(model: str, served: str) -> int | None:
    name, mark, version = model.rpartition("@")
    if not mark or name != served:
        return None
    number = read_number(version)
    if number is None:
        raise ApiError(
            f"{short(model)} is no version of {served!r}: give its number in the digits 0 to 9, such as "
            f"{version_name(served, 3)!r}",
            status=404,
            code="model_not_found",
            param="model",
        )
    return number
