"""A gateway over SQLite and the tiny model, in a process of its own, for whoever measures or attacks it.

python -m benchmarks.tiny_server FOLDER serves the store in that folder until its input ends. The store is
used by its starter too: rollouts are enqueued, leased and finished from outside, as a runner does it.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from benchmarks.processes import rss_bytes
from lightning_core.gateway.tokens import Tokens
from lightning_core.records.types import ResourceVersion, Run

if TYPE_CHECKING:
    from lightning_core.backends.serving.encoding import Encoder

RUN = Run(id="run", config={"model": "tiny"})
TRAINED = ("writer",)
"""The agents whose calls are trained on."""
TOKENS = Tokens(b"of a server that is only measured")
TEXTS = 130_000
"""More pieces of a message's length than the tokenizer remembers."""


class TinyServer:
    """The process, seen from outside. Leaving its block ends it."""

    def __init__(self, folder: Path, *, memory_gib: int | None = None) -> None:
        """`memory_gib`: how much address space it may have; an attack shall not take the machine's."""
        self.folder, self.store_url = folder, store_url(folder)
        self._memory_gib = memory_gib
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self.pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.__exit__(kind, error, trace)  # closes its input, which ends it, and waits

    def start(self) -> None:
        """Start the process; returns when it listens."""
        command = [sys.executable, "-m", "benchmarks.tiny_server", str(self.folder)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *([] if self._memory_gib is None else [str(self._memory_gib)])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        hello = self._process.stdout.readline()
        if not hello:
            raise RuntimeError(f"the server did not start:\n{self.log.read_text()[-4000:]}")
        self.url, self.pid = json.loads(hello)["url"], self._process.pid

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """File with its standard error."""
        return self.folder / "server.log"

    def rss_bytes(self) -> int:
        """Its resident memory."""
        return rss_bytes(self.pid)

    def descriptors(self) -> int:
        """Files and sockets that it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def wal_bytes(self) -> int:
        """Length of the store's write-ahead log."""
        wal = self.folder / "store.db-wal"
        return wal.stat().st_size if wal.exists() else 0


def store_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


async def serve(folder: Path) -> None:
    """Serve until the input ends."""
    from lightning_core.backends.local import LocalBackend
    from lightning_core.gateway.app import Gateway
    from lightning_core.gateway.server import GatewayServer
    from lightning_core.plugins import load_plugins
    from lightning_core.trainer.parts import open_store
    from lightning_core.trainer.roles.gateway import make_upstream

    # threads are measured otherwise; here equal requests must get equal replies on any machine
    os.environ["OMP_NUM_THREADS"] = "1"
    backend = LocalBackend("tiny", dtype="float32")
    await backend.start()
    fill(backend.upstream.prompts.encoder)
    try:
        async with open_store(store_url(folder), load_plugins()) as store:
            await store.put_run(RUN)
            await store.put_resource(ResourceVersion(run_id=RUN.id, name="policy", version=0, uri="tiny"))
            upstream = make_upstream(store, RUN.id, backend, name="tiny", embedded=True)
            async with GatewayServer(Gateway(upstream, store, TOKENS, agents=TRAINED)) as server:
                print(json.dumps({"url": server.url}), flush=True)
                await asyncio.to_thread(sys.stdin.readline)
            await upstream.close()
    finally:
        await backend.close()


def fill(encoder: Encoder) -> None:
    """Give the tokenizer as many pieces of text as it remembers: that memory is then taken, once."""
    for first in range(0, TEXTS, 10_000):
        encoder.encode([f"<|im_start|>user\nwarm {first + n} {'x ' * 20}" for n in range(10_000)])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        room = int(sys.argv[2]) << 30
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
    asyncio.run(serve(Path(sys.argv[1])))
