"""A machine apart: a network namespace at the end of a link that can be cut, and made slow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Between this machine and the one apart."""

    name: str
    here: str
    """Address of this machine, as the other sees it."""

    @property
    def there(self) -> Sequence[str]:
        """The words before a command that is to run there."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told."""
        _ip("-n", self.name, "link", "set", f"{self.name}b", "down")

    def mend(self) -> None:
        """As before."""
        _ip("-n", self.name, "link", "set", f"{self.name}b", "up")

    def slow_down(self) -> bool:
        """Delay each packet by 20 ms, and lose one of fifty; False if this kernel can't."""
        rule = ("qdisc", "add", "dev", f"{self.name}a", "root", "netem", "delay", "20ms", "loss", "2%")
        return subprocess.run(["tc", *rule], capture_output=True, check=False).returncode == 0


@contextmanager
def link() -> Iterator[Link]:
    """A link, and a namespace at its end. Raises OSError where that is not allowed."""
    number = os.getpid()
    name, net = f"lc{number}", f"10.213.{number % 250}"
    made = Link(name, f"{net}.1")
    _ip("netns", "add", name)
    try:
        _ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        _ip("addr", "add", f"{net}.1/30", "dev", f"{name}a")
        _ip("link", "set", f"{name}a", "up")
        _ip("-n", name, "addr", "add", f"{net}.2/30", "dev", f"{name}b")
        made.mend()
        yield made
    finally:
        _ip("netns", "del", name)  # and the link with it


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
