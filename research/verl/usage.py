"""The use of the machine by a run's processes, noted beside it every second.

Of the trainer's process it tells the threads apart, and of its first thread, which runs the app beside runner
and trainer, in whose code it is whenever the process has used another hundredth of a second. Everything below
that process was started for verl or vLLM, or is Ray's own. All numbers are sums from the start on, of
processor seconds or of looks.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from benchmarks.processes import TICK, children, times

LOOK_SECONDS, NOTE_SECONDS = 0.01, 1.0
OWN = "lightning-usage"
HOUSE = ("/lightning_core/", "/lightning_langgraph/")
APP = (
    "/examples/", "/langgraph/", "/langchain_core/", "/langchain_openai/", "/sqlglot/",
    "/openai/", "/httpx/", "/httpcore/", "/anyio/", "/h11/",
)  # fmt: skip
LOOP = ("asyncio/base_events.py", "asyncio/runners.py")
POOL = "the app, in a pool of threads"
"""LangGraph runs its plain nodes there. The trainer makes trajectories and credit there as well, which none
of 800 looks met."""
THREADS = {
    "MainThread": "runner, trainer and app",
    "lightning-gateway": "gateway",
    "lightning-vllm": "client of vLLM",
    "lightning-verl": "verl's caller",
    "lightning-engine": "local engine",
    "lightning-optimizer": "local optimizer",
    "store": "store",
    "asyncio": POOL,
    OWN: "this measurement",
}
"""The work of each thread of the trainer, by the beginning of its name."""
PROCESSES = {"VLLM": "vLLM", "ray::vLLM": "vLLM", "ray::IDLE": "Ray", "ray::": "verl"}
"""Whose a process is, by how its title begins; what has no such title is its parent's, or Ray's."""


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Note in the folder's `usage.jsonl` what this process and those below it use meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()
    usage = Usage(folder / "usage.jsonl")
    thread = threading.Thread(target=usage.watch, args=(ended,), name=OWN, daemon=True)
    thread.start()
    before = signal.signal(signal.SIGPROF, lambda number, frame: usage.look(frame))
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, LOOK_SECONDS, LOOK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        ended.set()
        thread.join()


class Usage:
    """The sums so far. After a stop they go on from where they were."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._before: dict[str, float] = json.loads(lines[-1])["sums"] if lines else {}
        self._threads: dict[int, tuple[str, float]] = {}
        self._processes: dict[int, tuple[str, float]] = {}
        self._looks: Counter[str] = Counter()
        self._machine = machine_seconds()

    def watch(self, ended: threading.Event) -> None:
        """Note until the event is set."""
        while not ended.wait(NOTE_SECONDS):
            self.note()

    def look(self, frame: FrameType | None) -> None:
        """Count in whose code the first thread is."""
        self._looks[whose(frame)] += 1

    def note(self) -> None:
        """Write a line."""
        now = self.read()
        sums = {name: self._before.get(name, 0.0) + now.get(name, 0.0) for name in {**self._before, **now}}
        with self._path.open("a") as file:
            file.write(json.dumps({"at": time.time(), "sums": sums}) + "\n")

    def read(self) -> dict[str, float]:
        """The sums of this process and those below it."""
        for thread in threading.enumerate():
            if thread.native_id is not None and (used := times(f"/proc/self/task/{thread.native_id}/stat")):
                name = begins(thread.name, THREADS) or "other threads"
                self._threads[thread.native_id] = name, sum(used[:2]) / TICK
        self._below(os.getpid(), "Ray")
        sums: defaultdict[str, float] = defaultdict(float)
        sums["machine"] = machine_seconds() - self._machine
        sums["process"] = time.process_time()
        for where, count in self._looks.items():
            sums[f"looks/{where}"] = count
        for name, spent in self._threads.values():
            sums[f"thread/{name}"] += spent
        for name, spent in self._processes.values():
            sums[f"process/{name}"] += spent
        return sums

    def _below(self, pid: int, whose: str) -> None:
        for child in children(pid):
            with suppress(OSError):
                title = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace")
                found = begins(title, PROCESSES) or whose
                if used := times(f"/proc/{child}/stat"):  # else it has ended meanwhile
                    self._processes[child] = found, sum(used[:2]) / TICK
                self._below(child, found)


def begins(name: str, known: dict[str, str]) -> str | None:
    """Returns the entry of a name, by its beginning."""
    return next((what for beginning, what in known.items() if name.startswith(beginning)), None)


def whose(frame: FrameType | None) -> str:
    """In whose code a frame is: that of the "app" or of the "house", or of neither, which is the "loop". What
    belongs to neither of the first two is its caller's."""
    while frame is not None and not frame.f_code.co_filename.endswith(LOOP):
        path = frame.f_code.co_filename
        if any(part in path for part in HOUSE):
            return "house"
        if any(part in path for part in APP):
            return "app"
        frame = frame.f_back
    return "loop"


def machine_seconds() -> float:
    """Processor seconds that anything on this machine has used since it was started."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / TICK
