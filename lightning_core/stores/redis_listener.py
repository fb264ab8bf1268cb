"""Notifications from other users of a Redis store, by publish and subscribe.

A message can be missed, while the connection is down or before the server has taken a subscription. So
whenever a subscription begins, those who wait for work or for an end are woken to look for themselves; a
missed cancellation shows in the next heartbeat.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

import redis

from lightning_core.errors import StoreError
from lightning_core.stores.notifications import CANCELLED, Notifications
from lightning_core.stores.redis_connection import Connection, RedisLink

log = logging.getLogger(__name__)

ALIVE_SECONDS = 30.0
"""After so long a silence the server is asked whether it is there."""


class RedisListener:
    """Wakes those who wait in this process. It connects when the first of them comes."""

    def __init__(self, link: RedisLink, notifications: Notifications) -> None:
        self._link = link
        self._notifications = notifications
        self._lock = threading.Lock()
        self._topics: set[str] = set()
        self._connection: Connection | None = None
        """Set while it can be written to; subscriptions are sent by those who need them."""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, topic: str) -> None:
        """Hear of this topic from soon on: QUEUED, FINISHED or CANCELLED."""
        with self._lock:
            if topic in self._topics or self._closing.is_set():
                return
            self._topics.add(topic)
            if self._thread is None:
                name = f"notifications of {self._link.url.shown}"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()
            elif self._connection is not None:
                try:
                    self._connection.send_command("SUBSCRIBE", self.channel(topic))
                except Exception:  # the driver has hung up: the thread notices, and subscribes again
                    log.debug("could not subscribe to %s", topic, exc_info=True)
                    self._connection = None

    def channel(self, topic: str) -> str:
        return self._link.url.channels + topic

    def close(self) -> None:
        """End the thread; it may take until the server answers, so not on an event loop."""
        self._closing.set()
        with self._lock:
            thread, connection = self._thread, self._connection
            if connection is not None:
                with suppress(Exception):
                    connection.send_command("PING")  # its answer ends the reading
        if thread is not None:
            thread.join()

    # in the thread ------------------------------------------------------------------------
    def _work(self) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            try:
                connection = self._link.connect()
            except (redis.RedisError, StoreError):  # the operations of those who wait say it
                pause = min(2.0, max(0.05, 2 * pause))
                continue
            pause = 0.05
            try:
                self._read(connection)
            except Exception:  # the driver raises anything when its connection is closed by another thread
                log.debug("the subscriptions to %s broke off", self._link.url.shown, exc_info=True)
            with self._lock:
                self._connection = None
            connection.disconnect()

    def _read(self, connection: Connection) -> None:
        with self._lock:
            for topic in self._topics:
                connection.send_command("SUBSCRIBE", self.channel(topic))
            self._connection = connection
        silent = False
        while self._connection is connection and not self._closing.is_set():
            if connection.can_read(ALIVE_SECONDS):
                silent = False
                self._hear(connection.read_response())
            elif silent:
                return
            else:
                silent = True
                with self._lock:
                    connection.send_command("PING")

    def _hear(self, message: list[bytes] | bytes) -> None:
        if isinstance(message, bytes):  # so a PING is answered where nothing is subscribed to
            raise redis.ConnectionError("the driver has connected again by itself, without the subscriptions")
        kind, topic = message[0], message[1].decode().removeprefix(self._link.url.channels)
        if kind == b"message":
            self._notifications.tell([(topic, message[2].decode())])
        elif kind == b"subscribe" and topic != CANCELLED:
            self._notifications.wake(topic)
