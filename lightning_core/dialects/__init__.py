"""The APIs in which apps speak to models, one file and one class for each.

A new one is one more file and one more entry of `DIALECTS`.
"""

from __future__ import annotations

from typing import Final

from lightning_core.dialects.anthropic import Anthropic
from lightning_core.dialects.base import Dialect
from lightning_core.dialects.chat import Chat
from lightning_core.dialects.completions import Completions
from lightning_core.dialects.responses import Responses

DIALECTS: Final[tuple[type[Dialect], ...]] = (Chat, Completions, Responses, Anthropic)


def get_dialect(name: str) -> type[Dialect]:
    """The dialect of that name (`Call.dialect`). One that is not known here is read as Chat Completions."""
    return next((dialect for dialect in DIALECTS if dialect.name == name), Chat)


def find_dialect(path: str) -> type[Dialect] | None:
    """The dialect of a call by what follows `/v1` in its address; None if that is no call of a model."""
    return next((dialect for dialect in DIALECTS if dialect.path == path), None)
