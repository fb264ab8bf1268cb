"""Long-polls: an answer that comes when there is news, and ends when nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from fastapi import Request


async def wait_with(request: Request, news: Coroutine[Any, Any, object]) -> bool:
    """Wait for the news; False if meanwhile the client left, or the server is to stop."""
    stopping: asyncio.Event = request.app.state.stopping
    hoped = asyncio.ensure_future(news)
    ends = asyncio.ensure_future(_left(request)), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({hoped, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if hoped.done():
            hoped.result()
        return not any(end.done() for end in ends)
    finally:
        for task in (hoped, *ends):
            task.cancel()
        await asyncio.gather(hoped, *ends, return_exceptions=True)


async def _left(request: Request) -> None:
    """Return when the client has left; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
