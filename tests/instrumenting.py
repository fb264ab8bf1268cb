"""OpenAI's SDK, truly bare again after OpenTelemetry: its `uninstrument` leaves methods wrapped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import openai.resources.beta
import openai.resources.chat.completions
import openai.resources.completions
import openai.resources.embeddings
import openai.resources.images
import openai.resources.responses
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
    package = openai.resources.__name__
    modules = [module for name, module in sys.modules.items() if name.startswith(package)]
    return {
        owner
        for module in modules
        for owner in vars(module).values()
        if isinstance(owner, type) and owner.__module__.startswith(package)
    }
