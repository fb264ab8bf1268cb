"""Who may go in: at most so many replies at one server, in the order in which they came.

While weights are about to change nothing new goes in. A request of which a choice is being answered goes on:
its choices are answered by one version.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from lightning_core.backends.chat.completion import Request
from lightning_core.backends.vllm.routing import Replica


class Door:
    """Open until it is held. Belongs to one event loop."""

    def __init__(self, version: int, most: int) -> None:
        """`most`: replies under way at one server."""
        self.version = version
        """Of the weights that answer what goes in."""
        self.last = False
        """Whether it is held and the present weights will be nowhere again but where they are now."""
        self._most = most
        self._open = asyncio.Event()
        self._open.set()

    @property
    def held(self) -> bool:
        """Whether new requests wait."""
        return not self._open.is_set()

    async def enter(self, replica: Replica, request: Request) -> bool:
        """Wait for a turn at a server, which then has one more reply under way. False: it was lost before."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        replica.waiting[turn] = request
        self.admit(replica)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():  # its turn came at the same moment
                self.leave(replica)
            raise
        finally:
            replica.waiting.pop(turn, None)

    def leave(self, replica: Replica) -> None:
        """A reply has ended there, or was broken off: the next one has its turn."""
        replica.running -= 1
        self.admit(replica)

    def admit(self, replica: Replica) -> None:
        """Give a turn to those that may go in now."""
        room = max(0, self._most - replica.running)
        ready = (turn for turn, request in replica.waiting.items() if self._may(turn, request))
        for turn in [*islice(ready, room)]:
            request = replica.waiting.pop(turn)
            if not request.begun:
                request.policy_version = self.version
            if not replica.running:
                replica.heard = asyncio.get_running_loop().time()
            replica.running += 1
            turn.set_result(True)

    def turn_away(self, replica: Replica) -> None:
        """It is lost: who waits there is to choose another one."""
        for turn in replica.waiting:
            if not turn.done():
                turn.set_result(False)
        replica.waiting.clear()

    def _may(self, turn: asyncio.Future[bool], request: Request) -> bool:
        return not turn.done() and (not self.held or request.policy_version is not None)

    def hold(self, *, last: bool = False) -> None:
        """Let nothing new in."""
        self.last = last
        self._open.clear()

    async def opened(self) -> None:
        """Wait until it is open."""
        await self._open.wait()

    def release(self) -> None:
        """Open it; `admit` then gives turns to those that wait."""
        self.last = False
        self._open.set()
