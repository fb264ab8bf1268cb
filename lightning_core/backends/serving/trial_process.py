"""The process in which grammars are tried: run as a file, with the standard library and llguidance alone.

    python -P trial_process.py SOCKET SOCKET

It reads a model's vocabulary once. Each socket is served by a process of its own, which forks another for
every grammar: that one may crash, spin or fill its memory, and only it ends. A fork is safe here, as nothing
else runs in these processes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

SECONDS = 1.0
"""Processor time that preparing a grammar may take. 30,000 texts to choose from take 0.3."""
MEMORY = 256 << 20
"""Bytes that preparing a grammar may add."""
STACK = 1 << 20
"""Bytes of stack: enough for 90 references or 300 rules within one another. Other threads have eight times as
much, and the update prepares the grammar in one of them."""
NICE = 5
"""How far these processes stand back for others."""


def limits(grammar: str) -> LLParserLimits:
    """Limits the library's work on one token to at most about 0.3 s, for grammars made to be slow.

    Its defaults allow 2 s, and 500 MB for each reply. A long grammar needs more fuel than a short one.
    """
    from llguidance import LLParserLimits

    fuel = min(1_000_000, 100_000 + 3 * len(grammar))
    return LLParserLimits(initial_lexer_fuel=fuel, step_lexer_fuel=100_000, step_max_items=20_000)


def prepare(vocabulary: LLTokenizer, grammar: str, bounds: LLParserLimits | None) -> tuple[LLMatcher, str]:
    """The beginning of a grammar, and why no reply can be held to it; "" if replies can."""
    from llguidance import LLMatcher

    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=bounds)
    if matcher.is_error():
        return matcher, matcher.get_error()
    if warnings := matcher.get_grammar_warnings():
        return matcher, warnings[0]
    for _ in range(2):  # the library says of a second mask that the first was too much
        first = matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            return matcher, f"it has no next token: {first.get_error()}"
    return matcher, ""


def frame(message: Any) -> bytes:
    """A message on a socket: its length, then JSON."""
    written = json.dumps(message).encode()
    return struct.pack("!Q", len(written)) + written


def read(connection: socket.socket) -> Any:
    """The next message. Raises EOFError where the other end has gone."""
    (length,) = struct.unpack("!Q", _exactly(connection, 8))
    return json.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def main(descriptors: list[int]) -> None:
    """Serve each socket, until its other end is closed."""
    import resource  # not on Windows, where grammars are tried in the process itself

    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    first, *others = [socket.socket(fileno=number) for number in descriptors]
    settings = read(first)
    sys.path[:] = settings["path"]
    from llguidance import LLTokenizer

    vocabulary = LLTokenizer(settings["tokenizer"], n_vocab=settings["size"], eos_token=settings["end"])
    for other in others:
        if not os.fork():
            first.close()
            first = other
            break
        other.close()
    try:
        while True:
            _serve(first, vocabulary, read(first))
    except (EOFError, OSError):
        return


def _serve(connection: socket.socket, vocabulary: LLTokenizer, grammar: str) -> None:
    """Answer with the id of the process that tries the grammar, then with how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.dup2(writing, 2)
        _try(writing, vocabulary, grammar)
    os.close(writing)
    try:
        connection.sendall(frame(child))
        with os.fdopen(reading, "rb") as pipe:
            words = pipe.read(1 << 16).decode(errors="replace")
    finally:
        _, status = os.waitpid(child, 0)
    connection.sendall(frame({"words": words, "signal": os.WTERMSIG(status)}))


def _try(writing: int, vocabulary: LLTokenizer, grammar: str) -> None:
    """Prepare the grammar and write the verdict. Does not return."""
    import resource

    if sys.platform == "linux":  # elsewhere the system does not hold a process to it
        with open("/proc/self/statm") as status:
            now = int(status.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = now + MEMORY if hard == resource.RLIM_INFINITY else min(now + MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    threading.stack_size(STACK)

    def attempt() -> None:
        _, reason = prepare(vocabulary, grammar, limits(grammar))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        grown *= 1 if sys.platform == "darwin" else 1024
        os.write(writing, b"\n" + json.dumps({"reason": reason[:4_000], "grown": grown}).encode())
        os._exit(0)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    os._exit(1)


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
