"""An event loop in a thread of its own, to be called from any other loop or thread.

The gateway's loop reads replies and the trainer's publishes weights; what both meet belongs to neither.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Starts when it is first needed; `stop` ends it for good."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.stopped = False

    def call(self, work: Callable[..., object], *arguments: object) -> None:
        """Have the loop do this soon, in the order asked; after `stop`, nothing."""
        with self._starting:
            if not self.stopped:
                self._started().call_soon_threadsafe(work, *arguments)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await it there."""
        with self._starting:
            if self.stopped:
                work.close()
                raise RuntimeError(f"{self._name} was stopped")
            future = asyncio.run_coroutine_threadsafe(work, self._started())
        return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the loop and wait for the thread; what is still under way there is cancelled."""
        with self._starting:
            self.stopped = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = _new_loop()
            self._thread = threading.Thread(
                target=self._serve, args=(self._loop,), name=self._name, daemon=True
            )
            self._thread.start()
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
