"""The last of what a program writes: read all the time, so that it never waits for a reader, and bounded."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TextIO

MOST_BYTES = 64 * 1024
"""That are kept of a stream."""
PIECE = 64 * 1024
CLOSE_SECONDS = 10.0
"""For what is still in the pipe when the program has ended."""


class Tail:
    """Reads a stream to its end and keeps the last of it."""

    def __init__(
        self, stream: asyncio.StreamReader | None, *, forward: TextIO | None = None, most: int = MOST_BYTES
    ) -> None:
        """`forward`: where everything is shown as well."""
        self._stream = stream
        self._forward = forward
        self._most = most
        self._kept = b""
        self.left_out = 0
        """Bytes that came before those kept."""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while self._stream is not None and (piece := await self._stream.read(PIECE)):
            whole = self._kept + piece
            self._kept = whole[-self._most :]
            self.left_out += len(whole) - len(self._kept)
            if self._forward is not None:
                with suppress(OSError, ValueError):  # whoever looked on has gone
                    self._forward.write(piece.decode(errors="replace"))
                    self._forward.flush()

    def text(self, most: int = MOST_BYTES) -> str:
        """The last characters, without white space around; what no store can hold is replaced."""
        return self._kept.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()[-most:]

    async def close(self) -> None:
        """Read what is left of an ended program's stream."""
        await asyncio.wait({self._reading}, timeout=CLOSE_SECONDS)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
