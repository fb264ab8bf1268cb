"""A small process of its own that starts one program and ends it with everything the program has started.

    python -I -S supervisor.py CONTROL GRACE PROGRAM ARGUMENT...

CONTROL is the number of an open socket to the process that started it. The supervisor writes the program's
exit code there, or the negative number of a signal that killed it, once nothing is left. When the other side
closes its end, or dies, the program is ended: SIGTERM to all, after GRACE seconds SIGKILL, again and again
until none is there.

Why a process: on Linux a process may be made the parent of all orphans beneath it (PR_SET_CHILD_SUBREAPER),
so that daemons and sessions of their own are found as well; in the app's process that would interfere with
children of the app's. And it outlives a runner that is killed, if only to clean up after it. Elsewhere than
on Linux only the program's process group is reached. What escapes: what others start on the program's behalf
(containers, systemd units, cron). If the supervisor itself is killed by SIGKILL, only the program dies too.

Standard library only: it starts in a hundredth of a second, with `-I -S`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
AGAIN_SECONDS = 0.05
"""Between two rounds of SIGKILL."""


class Supervisor:
    """Starts a program, waits until it ends or is to end, and leaves nothing behind."""

    def __init__(self, control: int, grace: float) -> None:
        self.control = control
        self.grace = grace
        self.code: int | None = None
        self._wake = _signals_as_bytes()

    def watch(self, arguments: list[str]) -> None:
        """Run the program to its end, or until it is to end."""
        adopt_orphans()
        self.pid = _start(arguments)
        watched = [self.control, self._wake]
        while self._reap() and self.code is None:
            ready, _, _ = select.select(watched, [], [])
            if self.control in ready or (self._wake in ready and self._ending()):
                break
        self._end_all()
        with contextlib.suppress(OSError):  # the other side is gone
            os.write(self.control, b"%d\n" % (self.code or 0))

    def _ending(self) -> bool:
        """Whether a signal asked for the end; the others are about children."""
        return any(number != signal.SIGCHLD for number in os.read(self._wake, 1024))

    def _reap(self) -> bool:
        """Take note of who has ended; False if none is left."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.pid:
                    self.code = os.waitstatus_to_exitcode(status)
        return False

    def _end_all(self) -> None:
        """Terminates the processes that are left, and kills those that go on."""
        deadline = time.monotonic() + self.grace
        asked = False
        while self._reap():
            left = deadline - time.monotonic()
            if not asked or left <= 0:
                for pid in descendants(os.getpid()) or [-self.pid]:
                    _signal(pid, signal.SIGKILL if asked else signal.SIGTERM)
                asked = True
            with contextlib.suppress(BlockingIOError):
                select.select([self._wake], [], [], left if left > 0 else AGAIN_SECONDS)
                os.read(self._wake, 1024)


def descendants(ancestor: int) -> list[int]:
    """All processes beneath one, from /proc; empty where there is none."""
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                # After the name, which may hold spaces and brackets: state, parent.
                parents[int(name)] = int(stat.read().rpartition(b")")[2].split()[1])
    found: list[int] = []
    layer = {ancestor}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer and pid not in found}
        found += layer
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(-pid, number) if pid < 0 else os.kill(pid, number)


def _start(arguments: list[str]) -> int:
    """The program, in a session of its own; it dies if the supervisor does."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(arguments[0], arguments)
    except OSError as error:
        os.write(2, f"{arguments[0]!r} can't be started: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _signals_as_bytes() -> int:
    """A file descriptor from which the numbers of signals can be read as they come."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    return reading


def adopt_orphans() -> None:
    """Have what this process's descendants leave behind become its children, on Linux."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[1]), False)
    Supervisor(int(sys.argv[1]), float(sys.argv[2])).watch(sys.argv[3:])
