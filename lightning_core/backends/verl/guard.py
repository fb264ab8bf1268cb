"""A small process beside a vLLM server that ends the server's engines if the server is killed.

    python -I -S guard.py PIPE PID...

The engines are processes that the server starts. Ray ends a worker's children when the worker ends by itself,
but where the worker is killed they would stay, with the GPU's memory, and another server could not begin.
PIPE is the reading end of a pipe whose other end only the server has: it closes when the server is no more,
however that came about. Standard library only, so that it starts in a hundredth of a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys


def set_guard(server: object) -> None:
    """Start a guard over all processes beneath this one, which is the server's (`server.__ray_call__`). The
    writing end stays open as long as it lives."""
    from lightning_core.runner.supervisor import descendants

    beneath = descendants(os.getpid())
    reading, _ = os.pipe()  # not inheritable, so the writing end is this process's alone
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(reading), *map(str, beneath)],
        pass_fds=(reading,),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)


def guard(pipe: int, pids: list[int]) -> None:
    """Wait for the pipe's end, then kill those of the processes that are still the same."""
    held = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            held.append(os.pidfd_open(pid))
    os.read(pipe, 1)
    for process in held:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)


if __name__ == "__main__":
    guard(int(sys.argv[1]), [int(pid) for pid in sys.argv[2:]])
