"""docs/rest.md is one session: its commands run one after the other, and its tables are the server's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core.api.app import Api
from lightning_core.stores.sqlite import MemoryStore

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/rest.md").read_text()
PORT = "8100"


def session(port: int) -> str:
    """The page's blocks as one shell script, on that port; its Python is run where it stands."""
    parts = ["set -euo pipefail", "trap 'kill $(jobs -p)' EXIT"]
    for language, code in re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL):
        if language == "bash":
            parts.append(code)
        else:
            parts.append(f"API=$API CLIENT=$CLIENT WORKER=$WORKER python3 - <<'BLOCK'\n{code}BLOCK\n")
    return (
        "\n".join(parts).replace("runs.db &", f"runs.db --listen 127.0.0.1:{port} &").replace(PORT, str(port))
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_the_page_s_commands_run_as_they_stand(tmp_path: Path, free_port: int) -> None:
    binaries = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", session(free_port)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "no_proxy": "*",
        },
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nTrue\n" in done.stdout.replace("}", "}\n"), done.stdout
    (shown,) = re.findall(r"^    (\{\"error\".*\})$", PAGE, re.MULTILINE)
    assert shown in done.stdout


def test_the_page_lists_all_addresses() -> None:
    listed = {tuple(found.split()) for found in re.findall(r"`((?:GET|POST|PUT|DELETE) /[^`]*)`", PAGE)}
    document = Api(MemoryStore()).app().openapi()
    served = {
        (method.upper(), path.removeprefix("/api/v1"))
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert listed == served
