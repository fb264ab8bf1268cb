"""OpenAI's SDK, truly bare again after OpenTelemetry: its `uninstrument` leaves methods wrapped."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager

import openai.resources
from opentelemetry.instrumentation.openai import OpenAIInstrumentor


@contextmanager
def bare_afterwards() -> Iterator[None]:
    """Whatever is instrumented inside, the SDK's classes are afterwards as they were."""
    before = {owner: dict(vars(owner)) for owner in _classes()}
    try:
        yield
    finally:
        if OpenAIInstrumentor().is_instrumented_by_opentelemetry:
            OpenAIInstrumentor().uninstrument()
        for owner, methods in before.items():
            for name, method in methods.items():
                if vars(owner).get(name) is not method and callable(method):
                    setattr(owner, name, method)


def _classes() -> set[type]:
    """All that the SDK has, those too that it would import only when they are asked for."""
    package = openai.resources.__name__
    found = pkgutil.walk_packages(openai.resources.__path__, f"{package}.")
    modules = [importlib.import_module(module.name) for module in found]
    return {
        owner
        for module in modules
        for owner in vars(module).values()
        if isinstance(owner, type) and owner.__module__.startswith(package)
    }
