"""CrewAI, where an example uses it, keeps its files in the tests' own folder and sends nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

SILENT = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "CREWAI_TESTING": "true",
}


@pytest.fixture(scope="session", autouse=True)
def _crewai_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CREWAI_STORAGE_DIR", str(tmp_path_factory.mktemp("crewai")))
        for name, value in SILENT.items():
            patch.setenv(name, value)
        yield
