"""Long-polls: an answer that comes when there is news, and ends when nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")


async def wait_with(request: Request, news: Coroutine[Any, Any, T]) -> T | None:
    """The news, once they come; None if meanwhile the client left, or the server is to stop."""
    stopping: asyncio.Event = request.app.state.stopping
    hoped = asyncio.ensure_future(news)
    ends = asyncio.ensure_future(_left(request)), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({hoped, *ends}, return_when=asyncio.FIRST_COMPLETED)
        said = hoped.result() if hoped.done() else None
        return None if any(end.done() for end in ends) else said
    finally:
        for task in (hoped, *ends):
            task.cancel()
        await asyncio.gather(hoped, *ends, return_exceptions=True)


async def _left(request: Request) -> None:
    """Return when the client has left; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
