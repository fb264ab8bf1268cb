"""Which tests run, and in which order: by the seconds that their files took.

`make test` leaves out the files that take long. A landing runs the short files and a part of the others
(`--part 2/4`), and `--all` runs everything. `pytest --all --write-durations` notes the seconds again.
"""

from __future__ import annotations

import gc
import json
import logging
import signal
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds of each file. Three files at once ran on two cores."""
SECONDS: dict[str, float] = json.loads(DURATIONS.read_text())
LONG = 110.0
"""Seconds from which on a file is left out of `make test`."""
SHARED = 15.0
"""Seconds from which on a file is shared out among landings."""
ALONE = "tests/tracing/test_anthropic.py"
"""It compares headers byte by byte, so no other test may have run in its process: it comes first."""
ON_RAY = "[ray"
"""Laws of workers on a Ray cluster count as a file of their own: they take ten times as long as the rest."""

settings.register_profile("change", deadline=None, max_examples=15)  # a test asserts no time
settings.register_profile("all", deadline=None, max_examples=50)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A command that is run in this process handles signals from then on, and so would a forked process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def logging_as_it_begins() -> None:
    """Some libraries, once imported, switch off the loggers that are there, raise the level of all, or
    that of root's handlers, among which is pytest's own."""
    logging.disable(logging.NOTSET)
    root = logging.getLogger()
    root.disabled = False
    root.setLevel(logging.WARNING)
    for handler in root.handlers:
        handler.setLevel(logging.NOTSET)
    for name, logger in root.manager.loggerDict.items():
        if name.startswith("lightning_") and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the long files too, with more examples for each law")
    parser.addoption("--part", metavar="I/N", help="of the long files the I-th of N parts")
    parser.addoption("--write-durations", action="store_true", help="note the seconds of each file")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("all" if config.getoption("--all") else "change")
    if config.getoption("--write-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())


class Durations:
    """Adds up the seconds of each file, and notes them in the end. A file of skipped tests is not noted."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.ran: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[file_of(report.nodeid)] += report.duration
        if report.when == "call" and not report.skipped:
            self.ran.add(file_of(report.nodeid))

    def pytest_sessionfinish(self) -> None:
        noted = SECONDS | {name: round(self.seconds[name], 1) for name in self.ran}
        DURATIONS.write_text(json.dumps(dict(sorted(noted.items())), indent=0) + "\n")


def file_of(nodeid: str) -> str:
    """Returns the name by which a test's seconds are noted."""
    return nodeid.partition("::")[0] + (ON_RAY if ON_RAY in nodeid else "")


def is_left_out(name: str, config: pytest.Config) -> bool:
    """Whether a file is not asked for."""
    seconds = SECONDS.get(name, 0.0)
    if part := config.getoption("--part"):
        place, _, parts = part.partition("/")
        shared = (each for each, taken in SECONDS.items() if taken >= SHARED)
        ordered = sorted(shared, key=lambda each: (each.rpartition("/")[0], -SECONDS[each]))
        return seconds >= SHARED and name not in ordered[int(place) % int(parts) :: int(parts)]
    return seconds >= LONG and not config.getoption("--all") and not config.getoption("file_or_dir")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freezes the modules imported here: the garbage collector need not look through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that is left out is not even imported: each worker would import what it needs."""
    return is_left_out(collection_path.relative_to(config.rootpath).as_posix(), config) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files come first, so that no worker ends with one."""
    kept = [item for item in items if not is_left_out(file_of(item.nodeid), config)]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept
    items.sort(
        key=lambda item: (
            not item.nodeid.startswith(ALONE),
            -SECONDS.get(item.nodeid.partition("::")[0], LONG),
        )
    )
