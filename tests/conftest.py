"""Which tests `make test` leaves to `make test-all`, and the order of files."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

FIRST = (
    "tests/tracing/test_anthropic.py",  # compares headers byte by byte: no other test ran in its process
    "tests/packaging/test_first_hour.py",
    "tests/packaging/test_replace_hosted.py",
    "tests/trainer/test_crash.py",
    "tests/apps/",
    "tests/roles/",
    "tests/cli/test_cli.py",
    "tests/test_readme.py",
    "tests/testing/",
    "tests/trainer/",
    "tests/examples/",
    "tests/recipes/",
    "tests/runner/",
    "tests/stores/",
    "tests/fuzz/",
    "tests/benchmarks/",
    "tests/cli/",
    "tests/air/",
    "tests/backends/",
)
"""In this order, then all others. What trains and starts processes comes first: no worker ends with it."""

LONG = (
    "tests/apps/",
    "tests/benchmarks/",
    "tests/cli/test_init.py",
    "tests/cli/test_workers.py",
    "tests/console/test_hostile.py",
    "tests/console/test_live.py",
    "tests/console/test_pages.py",
    "tests/console/test_sandbox.py",
    "tests/examples/",
    "tests/fuzz/",
    "tests/harnesses/",
    "tests/packaging/test_first_hour.py",
    "tests/packaging/test_replace_hosted.py",
    "tests/recipes/",
    "tests/backends/test_smollm2.py",
    "tests/deploy/test_commands.py",
    "tests/deploy/test_helm.py",
    "tests/packaging/",
    "tests/roles/test_network.py",
    "tests/roles/test_page.py",
    "tests/roles/test_processes.py",
    "tests/stores/test_pages.py",
    "tests/test_telemetry.py",
    "tests/testing/test_template.py",
    "tests/testing/test_write_an_adapter.py",
    "tests/tracing/test_concurrency.py",
    "tests/tracing/test_through_gateway.py",
    "tests/trainer/test_crash.py",
    "tests/trainer/test_private.py",
    "tests/trainer/test_reproducible.py",
    "tests/trainer/test_address.py",
    "tests/trainer/test_killed_evaluation.py",
    "tests/trainer/test_serving.py",
    "tests/tinker/",
    "tests/vllm/",
    "tests/verl/",
)
"""Left out unless `--all` is given, or files are named: a third of the time, for what changes rarely."""

ON_RAY = "[ray"
"""Left out too: the laws of workers on a Ray cluster take ten times as long as those of processes."""

settings.register_profile("change", deadline=None, max_examples=15)  # a test asserts no time
settings.register_profile("all", deadline=None, max_examples=50)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A command that is run in this process handles signals from then on, and so would a forked process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the long tests too, with more examples for each law")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("all" if config.getoption("--all") else "change")


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
    """A long file is not even imported: each worker would import what it needs."""
    if config.getoption("--all") or config.getoption("file_or_dir"):
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    return f"{path}/".startswith(LONG) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all") and not config.getoption("file_or_dir"):
        config.hook.pytest_deselected(items=[item for item in items if ON_RAY in item.nodeid])
        items[:] = [item for item in items if ON_RAY not in item.nodeid]
    items.sort(
        key=lambda item: next((i for i, p in enumerate(FIRST) if item.nodeid.startswith(p)), len(FIRST))
    )
