"""A grammar is prepared in a process that may die before it is prepared here.

The library recurses natively, and some small grammars take it hours or all memory: no bound on their text
tells which. What a trial has prepared within its time, memory and stack is safe to prepare again.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightning_core.backends.serving import trial_process
from lightning_core.errors import EngineError

LINES: Final = 2
"""Trials at the same time; more wait."""
_REMEMBERED: Final = 1_024
"""Verdicts that are kept."""
_LOOK_SECONDS: Final = 0.05
"""From one look whether a trial is still wanted to the next."""


class StoppedError(Exception):
    """The trial's request has gone."""


class GrammarVerdict(NamedTuple):
    """How a trial ended."""

    reason: str
    """Why no reply can be held to the grammar; "" if replies can."""
    grown: int = 0
    """Bytes that preparing it took."""


class Trials:
    """Trials for one model, in processes that start with the first. Methods may be called from any thread."""

    def __init__(self, settings: Callable[[], dict[str, Any]]) -> None:
        """`settings` has the `tokenizer` as text, the `size` of its vocabulary and the id of its `end`."""
        self._settings = settings
        self._lock = threading.Lock()
        self._running: _Processes | None = None
        self._known: OrderedDict[bytes, GrammarVerdict] = OrderedDict()

    def begin(self) -> _Processes | None:
        """Start the processes, which then read the vocabulary. None on a system that has no fork."""
        if os.name != "posix":
            return None
        with self._lock:
            if self._running is None or self._running.broken:
                self._running = _Processes(self._settings())
            return self._running

    def run(self, grammar: str, stop: threading.Event | None = None) -> GrammarVerdict:
        """Try a grammar. Raises StoppedError once `stop` is set, EngineError if the processes have ended."""
        key = blake2b(grammar.encode(errors="surrogatepass"), digest_size=16).digest()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        processes = self.begin()
        if processes is None:
            return GrammarVerdict("")
        verdict = processes.run(grammar, stop or threading.Event())
        with self._lock:
            self._known[key] = verdict
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return verdict


class _Processes:
    """The processes, and the sockets to those of them that are free."""

    def __init__(self, settings: dict[str, Any]) -> None:
        pairs = [socket.socketpair() for _ in range(LINES)]
        theirs = [their.fileno() for _, their in pairs]
        self._process = subprocess.Popen(
            [sys.executable, "-P", trial_process.__file__, *map(str, theirs)],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=Path(trial_process.__file__).parent,
            start_new_session=True,
        )
        for _, their in pairs:
            their.close()
        ours = [our for our, _ in pairs]
        self.pid = self._process.pid
        """The first process's id, and that of the group all are in."""
        self.broken = False
        self._free: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self.close = weakref.finalize(self, _end, self._process, ours)
        with suppress(OSError):  # it has ended: the first trial says so
            ours[0].sendall(trial_process.frame({"path": [*map(os.path.abspath, sys.path)], **settings}))
        for our in ours:
            self._free.put(our)

    def run(self, grammar: str, stop: threading.Event) -> GrammarVerdict:
        connection = self._free.get()
        try:
            return _run(connection, grammar, stop)
        except (EOFError, OSError) as error:
            self.broken = True
            raise EngineError(
                "the process that tries constraints has ended; send the request again, or ask without one"
            ) from error
        finally:
            self._free.put(connection)


def _run(connection: socket.socket, grammar: str, stop: threading.Event) -> GrammarVerdict:
    if stop.is_set():
        raise StoppedError
    connection.sendall(trial_process.frame(grammar))
    child = trial_process.read(connection)
    while not select.select([connection], [], [], _LOOK_SECONDS)[0]:
        if stop.is_set():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            break
    found = trial_process.read(connection)
    if found["signal"] == signal.SIGKILL and stop.is_set():
        raise StoppedError
    return _verdict(found["words"], found["signal"])


def _verdict(words: str, killed_by: int) -> GrammarVerdict:
    if killed_by == signal.SIGPROF:
        return GrammarVerdict(
            f"it takes more than {trial_process.SECONDS:g} s to prepare; make it smaller, with fewer patterns"
        )
    if "memory allocation" in words or "MemoryError" in words:
        return GrammarVerdict(
            f"it takes more than {trial_process.MEMORY >> 20} MB to prepare; make it smaller"
        )
    if killed_by:
        return GrammarVerdict(
            "its references, rules or patterns are nested too deeply; use fewer within one another"
        )
    try:
        found = json.loads(words.rpartition("\n")[2])
    except ValueError:
        return GrammarVerdict(f"the library failed on it: {words[-200:].strip()}")
    return GrammarVerdict(found["reason"], found["grown"])


def _end(process: subprocess.Popen[bytes], connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
