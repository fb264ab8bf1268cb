"""Reply caches of frameworks: by-passed for trained agents, inside a rollout.

A cached reply is no sample of the policy: of a group's rollouts the first asks and the others repeat what
it was told, so nothing is recorded of them and all get one reward. The law is that of the endpoint:
whatever the app has set, a trained agent's call goes to the gateway. Other agents keep their caches.
`LIGHTNING_CACHES=keep` in the environment keeps all of them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

from lightning_core.tracing.patching import patch
from lightning_core.tracing.routing import Puller
from lightning_core.tracing.scope import current_scope
from lightning_core.tracing.unseen import name_caller

log = logging.getLogger(__name__)

KEEP: Final = "LIGHTNING_CACHES"
"""The variable that says "keep"."""
Bypass = Callable[..., Any]
"""What is called instead of the method: `bypass(original, owner, *args, **kwargs)`."""


def _without_cache(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """LangChain: False switches off the model's own cache and the global one."""
    return original(model.model_copy(update={"cache": False}), *args, **kwargs)


def _create(original: Callable[..., Any], cache: Any, *args: Any, **kwargs: Any) -> Any:
    """AutoGen: the client that the cache is around."""
    return getattr(cache.client, original.__name__)(*args, **kwargs)


def _miss(original: Callable[..., Any], cache: Any, *args: Any, **kwargs: Any) -> Any:
    """LiteLLM: nothing is found."""
    return asyncio.sleep(0) if inspect.iscoroutinefunction(original) else None


CACHES: Final[Mapping[str, tuple[str, tuple[str, ...], Bypass]]] = {
    "langchain_core.language_models.chat_models": (
        "BaseChatModel",
        ("_generate_with_cache", "_agenerate_with_cache"),
        _without_cache,
    ),
    "autogen_ext.models.cache._chat_completion_cache": (
        "ChatCompletionCache",
        ("create", "create_stream"),
        _create,
    ),
    "litellm.caching.caching": ("Cache", ("get_cache", "async_get_cache"), _miss),
}
"""The module, and its class, the methods that look into the cache, and what is done instead."""


def install(module: ModuleType, user: Puller) -> list[Callable[[], None]]:
    """By-pass one of `CACHES`, until the functions returned are called."""
    owner, names, bypass = CACHES[module.__name__]
    kind = getattr(module, owner, None)
    if missing := [name for name in names if not hasattr(kind, name)]:
        log.warning(
            "%s has no %s.%s: a cache of its replies can't be by-passed; switch it off for the agents that "
            "are trained",
            module.__name__,
            owner,
            missing[0],
        )
        return []
    return [patch(kind, name, user, partial(_around, bypass)) for name in names]  # type: ignore[arg-type]


def _around(bypass: Bypass, original: Callable[..., Any], users: list[Puller]) -> Callable[..., Any]:
    def around(owner: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current_scope() if users else None
        if scope is None or os.environ.get(KEEP) == "keep" or not scope.trains(name_caller(users)):
            return original(owner, *args, **kwargs)
        return bypass(original, owner, *args, **kwargs)

    return around
