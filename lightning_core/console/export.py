"""A console as one file of HTML, which opens from disk and holds its answers: what is attached to a report.

The page and its scripts are those that the server sends. The scripts stand in the file as `data:` addresses,
since a browser loads no modules from a disk.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

import orjson

from lightning_core.console.asking import Question
from lightning_core.console.rollouts import ORDERS, list_rollouts
from lightning_core.console.server import ANSWERS, START, asset_names, digest, page, read_asset, to_json
from lightning_core.console.shelf import Found, Shelf
from lightning_core.errors import ConfigError
from lightning_core.plugins import Plugins
from lightning_core.versions import POLICY

PER_ORDER: Final = 50
"""Rollouts that are in the file, of those that come first in each order and of the failed ones."""
_POLICY: Final = (
    "default-src 'none'; script-src data: {scripts}; style-src {styles}; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def export(what: str, plugins: Plugins, folder: Path) -> Path:
    """Write `index.html` for all runs of `what` to a new folder. ConfigError if something is in it."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{str(folder)!r} is not empty, and nothing is overwritten; give a new folder")
    written = asyncio.run(_write(what, plugins))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    file.write_text(written)
    return file


async def _write(what: str, plugins: Plugins) -> str:
    async with Shelf(what, plugins) as shelf:
        answers = {address("runs", {}): await ANSWERS["runs"](Question(shelf, []))}
        for found in await shelf.list():
            answers.update(await _of_run(shelf, found))
    return write(answers)


async def _of_run(shelf: Shelf, found: Found) -> dict[str, Any]:
    run = {"run": found.name}
    asked = [("run", run), ("models", {**run, "name": POLICY})]
    rows: dict[str, dict[str, Any]] = {}
    for wanted in (*({"order": order} for order in ORDERS), {"status": "failed"}):
        page = await list_rollouts(Question(shelf, [*run.items(), *wanted.items()]))
        rows.update({row["id"]: row for row in page["rows"][:PER_ORDER]})
    asked += [("rollout", {**run, "id": rollout_id}) for rollout_id in rows]
    answers = {address(name, given): await _ask(shelf, name, given) for name, given in asked}
    return {**answers, address("rollouts", run): {**page, "rows": list(rows.values()), "next": None}}


async def _ask(shelf: Shelf, name: str, given: dict[str, str]) -> Any:
    return await ANSWERS[name](Question(shelf, list(given.items())))


def address(name: str, given: dict[str, str]) -> str:
    """An answer's address as the page's scripts write it (`net.js`)."""
    pairs = (f"{_quote(key)}={_quote(value)}" for key, value in sorted(given.items()))
    return f"/api/{name}?{'&'.join(pairs)}"


def _quote(text: str) -> str:
    """As `URLSearchParams` does."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def write(answers: dict[str, Any]) -> str:
    """The file."""
    scripts = {
        f"console/{name}": _as_data(read_asset(name)) for name in asset_names() if name.endswith(".js")
    }
    imports = orjson.dumps({"imports": scripts}).decode()
    sheet = read_asset("uplot.css") + read_asset("style.css")
    policy = _POLICY.format(
        scripts=" ".join(f"'sha256-{digest(each)}'" for each in (imports, START)),
        styles=f"'sha256-{digest(sheet)}'",
    )
    held = to_json(answers).decode().replace("<", "\\u003c")  # no answer may end the script that it stands in
    return page(
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{sheet}</style>',
        imports,
        f'<script type="application/json" id="answers">{held}</script>',
    )


def _as_data(script: str) -> str:
    return "data:text/javascript;base64," + b64encode(script.encode()).decode()
