"""A TCP relay that breaks connections at a chosen moment: after the server did what it was asked, and
before the client hears of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress


class Relay:
    """Passes bytes between whoever connects to `port` and the server."""

    def __init__(self, server_port: int) -> None:
        self._server = ("127.0.0.1", server_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._replies = 0
        self._open: set[socket.socket] = set()
        self.cuts = 0
        """How many connections were cut."""
        accepting = threading.Thread(target=self._accept, daemon=True)
        self._threads = [accepting]
        accepting.start()

    def cut_at_reply(self, number: int) -> None:
        """Swallow that reply of the server, counted from now on and from 1, and cut its connection."""
        with self._lock:
            self._replies = number

    def close(self) -> None:
        """End all connections; when this returns, they are closed."""
        _end(self._listener)
        self._threads[0].join()
        self._listener.close()
        with self._lock:
            for one in self._open:
                _end(one)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._open |= {client, server}
                serving = threading.Thread(target=self._serve, args=(client, server), daemon=True)
                self._threads.append(serving)
                serving.start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            asking = threading.Thread(target=self._pass, args=(client, server, False), daemon=True)
            asking.start()
            self._pass(server, client, True)
            asking.join()
        with self._lock:
            self._open -= {client, server}

    def _pass(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with suppress(OSError):
            while (some := source.recv(65536)) and not (replies and self._is_the_one()):
                sink.sendall(some)
        _end(source)
        _end(sink)

    def _is_the_one(self) -> bool:
        with self._lock:
            self._replies -= 1
            self.cuts += self._replies == 0
            return self._replies == 0


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@contextmanager
def relayed(server_port: int) -> Iterator[Relay]:
    """A relay to a server on this machine."""
    with closing(Relay(server_port)) as relay:
        yield relay
