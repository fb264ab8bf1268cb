"""Put the naming trace provider in place once the app has the SDK, and take it out again.

What is installed is the SDK's own provider slot (or a finder in `sys.meta_path` that waits for the
SDK), so nothing here can fall out of step with it. An app may put a provider of its own in the slot since,
also one around ours; so the providers that were placed are kept on the SDK's module until they are taken out.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from lightning_core.errors import InstrumentationError
from lightning_core.tracing.importing import WhenImported

if TYPE_CHECKING:
    from agents import Agent

T = TypeVar("T", bound="Agent[Any]")

_MODULE = "agents.tracing"
_PLACED = "_lightning_providers"
_NEEDED = ("AgentSpanData", "TraceProvider", "get_current_span", "get_trace_provider", "set_trace_provider")


def attach(agent: T) -> T:
    """Name the calls of this agent and of all others in the process; returns the agent unchanged."""
    install()
    return agent


def install() -> None:
    """Name the calls of every agent from now on; if the SDK is not imported yet, from its import on.

    A second time does nothing, unless the app has set a trace provider since: then that one is used
    from now on. Raises InstrumentationError if the SDK offers no place for it.
    """
    if not _waiting():
        _Waiting().start()


def uninstall() -> None:
    """Give the SDK its provider back, and leave one that the app has set since; a second time does nothing.

    A provider of ours that the app has kept passes everything through from now on.
    """
    for finder in _waiting():
        finder.stop()
    sdk = find_sdk()
    if sdk is not None:
        from lightning_openai_agents.provider import NamingProvider

        provider = sdk.get_trace_provider()
        if isinstance(provider, NamingProvider):
            sdk.set_trace_provider(provider.inner)
        for placed in vars(sdk).pop(_PLACED, ()):
            placed.stopped = True


def is_installed() -> bool:
    """Whether calls are named already, or will be once the SDK is imported."""
    sdk = find_sdk()
    return bool(_waiting()) or (sdk is not None and bool(vars(sdk).get(_PLACED)))


def find_sdk() -> Any:
    """`agents.tracing` if the app has imported the SDK; None otherwise, also for an app's own `agents`."""
    module = sys.modules.get(_MODULE)
    return module if module is not None and not _missing(module) else None


class _Waiting(WhenImported):
    """Waits for the SDK's import, once."""

    def __init__(self) -> None:
        super().__init__(_MODULE, self._place)

    def _place(self, module: ModuleType) -> None:
        self.stop()
        if missing := _missing(module):
            raise InstrumentationError(
                f"{module.__name__!r} of {module.__file__!r} has no {missing[0]!r}, which tells agents "
                "apart. Install openai-agents>=0.20,<0.25 (a module of your own called 'agents' hides "
                "it), or name the calls yourself: with lightning.agent(...)"
            )
        from lightning_openai_agents.provider import NamingProvider

        sdk: Any = module
        provider = sdk.get_trace_provider()
        if not isinstance(provider, NamingProvider) or provider.stopped:
            placed = NamingProvider(provider)
            vars(sdk).setdefault(_PLACED, []).append(placed)
            sdk.set_trace_provider(placed)


def _waiting() -> list[_Waiting]:
    return [finder for finder in sys.meta_path if isinstance(finder, _Waiting)]


def _missing(module: ModuleType) -> list[str]:
    return [name for name in _NEEDED if not hasattr(module, name)]
