"""The engine behind the proof's gateway: it does what the marks in a prompt say.

`fail=2` breaks down twice before it answers that nonce, `slow=0.2` waits, `stuck=1` answers the first try
only after a minute, `endless=1` never stops talking, `calls=a,b+c` asks for tool a, then for b and c at once,
then answers in words.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from lightning_core.dialects.chat import Chat
from lightning_core.dialects.upstream import ChatRequest, Delta
from lightning_core.testing.server import compose
from lightning_core.testing.truth import read_marks
from tests.gateway.scripted import Line, ScriptedEngine, ScriptedGeneration

STUCK_SECONDS = 60.0


def _line(request: ChatRequest, choice: int) -> Line:
    marks = read_marks({"messages": request.messages})
    said = compose(Chat, {"messages": request.messages, "tools": request.tools}, marks)
    calls = [part for part in said if not isinstance(part, str)]
    return Line("".join(part for part in said if isinstance(part, str)), tool_calls=calls or None)


class EndlessGeneration(ScriptedGeneration):
    """A reply that only its reader can end."""

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for position in itertools.count():
            await asyncio.sleep(0.02)
            yield Delta(0, [1], [-1.0], " on" if position else "on")


@dataclass
class ProofEngine(ScriptedEngine):
    """A scripted engine that reads its script from each prompt."""

    says: object = _line  # type: ignore[assignment]
    _tries: Counter[str] = field(default_factory=Counter)

    async def chat(self, request: ChatRequest) -> ScriptedGeneration:
        marks = read_marks({"messages": request.messages})
        nonce = marks.get("key") or marks.get("nonce", "")
        self._tries[nonce] += 1
        if self._tries[nonce] <= int(marks.get("fail", 0)):
            raise RuntimeError("injected")
        if self._tries[nonce] <= int(marks.get("stuck", 0)):
            await asyncio.sleep(STUCK_SECONDS)
        await asyncio.sleep(float(marks.get("slow", 0)))
        if "endless" in marks:
            return EndlessGeneration(self, request, self.prompt_ids(request))
        return ScriptedGeneration(self, request, self.prompt_ids(request))

    def prompt_ids(self, request: ChatRequest) -> list[int]:
        """Always the same: what is proven here is who called, not what was read."""
        return [1, 2, 3]
