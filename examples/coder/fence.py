"""Runs a program that can write below one folder only: `python fence.py FOLDER PROGRAM ARGUMENT...`

A policy explores, and a coding harness runs its commands without asking. Landlock, a part of Linux since
5.13, lets a process give up rights for itself and all that it starts, without root or containers.

What holds: no file outside FOLDER is written, made, renamed or deleted, also by programs that the program
starts. What does not: files can be read, and the network is open. Without Landlock it refuses to run.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, the same on all machines."""
NO_NEW_PRIVILEGES = 38
WRITE, MOST = 1 << 1, 15
"""Rights on files, by bit: to write into one; how many there are."""
READS = (1 << 0) | (1 << 2) | (1 << 3)
"""To execute, to read a file, to list a folder."""
KNOWN = (13, 14, 15)
"""Rights that the first three versions of Landlock know; later ones are about devices and the network."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/tty", "/dev/ptmx", "/dev/pts")


def fenced(folder: str, arguments: list[str]) -> list[str]:
    """The command that runs a program so."""
    return [sys.executable, __file__, folder, *arguments]


def fence(folder: str) -> None:
    """From now on, this process writes below `folder` only. Raises OSError where that can't be had."""
    version = call(CREATE_RULESET, None, 0, 1)
    rights = ((1 << KNOWN[min(version, 3) - 1]) - 1) & ~READS
    rules = call(CREATE_RULESET, struct.pack("Q", rights), 8, 0)
    for path in (folder, *filter(os.path.exists, DEVICES)):
        held = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = rights if os.path.isdir(path) else rights & (WRITE | 1 << 14)
        call(ADD_RULE, rules, 1, struct.pack("=Qi", allowed, held), 0)
        os.close(held)
    libc().prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call(RESTRICT_SELF, rules, 0)
    os.close(rules)


def call(number: int, *arguments: object) -> int:
    result = int(libc().syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock is not to be had here: {os.strerror(code)}; it needs Linux 5.13")
    return result


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    where, *program = sys.argv[1:]
    fence(where)
    os.execvp(program[0], program)
