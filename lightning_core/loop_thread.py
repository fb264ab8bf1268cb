"""An event loop in a thread of its own, for what callers on several loops share: connections, mostly."""

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
        """Have the loop do this soon, in the order of the calls; after `stop`, nothing."""
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
        """End the loop and wait for the thread; what is still in flight there is cancelled."""
        with self._starting:
            self.stopped = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            runner = asyncio.Runner(loop_factory=_new_loop)
            self._loop = runner.get_loop()
            self._thread = threading.Thread(target=_serve, args=(runner,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop


def _serve(runner: asyncio.Runner) -> None:
    with runner:
        runner.get_loop().run_forever()


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
