"""A console as one file of HTML, which opens from disk and holds its answers: what is attached to a report.

The page and its scripts are those that the server sends. The scripts stand in the file as `data:` addresses,
since a browser loads no modules from a disk.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

import orjson

from lightning_core.console.asking import PageRequest
from lightning_core.console.rollouts import ORDERS, list_rollouts
from lightning_core.console.server import ANSWERS, START, asset_names, digest, page, read_asset, to_json
from lightning_core.console.shelf import Found, Shelf
from lightning_core.errors import ConfigError
from lightning_core.plugins import Plugins
from lightning_core.stores.versions import POLICY
from lightning_core.trainer.folder import write_atomically

PER_ORDER: Final = 50
"""Rollouts that are in the file, of those that come first in each order and of the failed ones."""
STEPS: Final = 20
"""Steps whose groups are in the file: the first, the last, and as many between."""
COMPARED: Final = 4
"""Runs that the page compares at first (`compare.js`)."""
REPORT: Final = "report.html"
Given = Mapping[str, str | Sequence[str]]
_POLICY: Final = (
    "default-src 'none'; script-src data: {scripts}; style-src {styles}; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def save_page(what: str, plugins: Plugins, folder: Path) -> Path:
    """Write `index.html` for all runs of `what` to a new folder. ConfigError if something is in it."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{str(folder)!r} is not empty, and nothing is overwritten; give a new folder")
    written = asyncio.run(_write(what, plugins))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    file.write_text(written)
    return file


def write_report(folder: Path, plugins: Plugins) -> Path:
    """Write the page of a run as `report.html` into its folder, in place of an earlier one."""
    file = folder / REPORT
    write_atomically(file, asyncio.run(_write(str(folder), plugins)).encode())
    return file


async def _write(what: str, plugins: Plugins) -> str:
    async with Shelf(what, plugins) as shelf:
        answers = {address("runs", {}): await ANSWERS["runs"](PageRequest(shelf, []))}
        listed = [one for one in await shelf.list() if one.problem is None]
        runs = [one for one in listed if await (await shelf.read(one)).find_run(one.run_id)]
        if not runs:
            raise ConfigError(f"no run of {what!r} has begun in a store that outlives its trainer")
        for found in runs:
            answers.update(await _of_run(shelf, found))
        if len(runs) > 1:
            asked = {"with": [one.name for one in runs[:COMPARED]]}
            answers[address("compare", asked)] = await _ask(shelf, "compare", asked)
    return write(answers)


async def _of_run(shelf: Shelf, found: Found) -> dict[str, Any]:
    run = {"run": found.name}
    asked: list[tuple[str, Given]] = [("run", run), ("models", {**run, "name": POLICY}), ("time", run)]
    rows: dict[str, dict[str, Any]] = {}
    for wanted in (*({"order": order} for order in ORDERS), {"status": "failed"}):
        page = await list_rollouts(PageRequest(shelf, [*run.items(), *wanted.items()]))
        rows.update({row["id"]: row for row in page["rows"][:PER_ORDER]})
    asked += [("rollout", {**run, "id": rollout_id}) for rollout_id in rows]
    answers = {address(name, given): await _ask(shelf, name, given) for name, given in asked}
    answers.update(await _of_steps(shelf, found))
    return {**answers, address("rollouts", run): {**page, "rows": list(rows.values()), "next": None}}


async def _of_steps(shelf: Shelf, found: Found) -> dict[str, Any]:
    """Why, of some steps. A run that can't say how it was credited has none."""
    counts = await (await shelf.read(found)).count_rollouts(found.run_id)
    steps = sorted({one.step for one in counts if one.split == "train" and one.status.finished})
    kept = sorted({steps[place * (len(steps) - 1) // (STEPS - 1)] for place in range(STEPS)} if steps else ())
    answers = {}
    for step in kept:
        given = {"run": found.name, "step": str(step)}
        try:
            answers[address("step", given)] = {**await _ask(shelf, "step", given), "steps": kept}
        except ConfigError:
            return {}
    return answers


async def _ask(shelf: Shelf, name: str, given: Given) -> Any:
    return await ANSWERS[name](PageRequest(shelf, _pairs(given)))


def address(name: str, given: Given) -> str:
    """An answer's address as the page's scripts write it (`net.js`)."""
    return f"/api/{name}?{'&'.join(f'{_quote(key)}={_quote(value)}' for key, value in _pairs(given))}"


def _pairs(given: Given) -> list[tuple[str, str]]:
    """The names in order, each with its one value or with all of them."""
    values = {name: [value] if isinstance(value, str) else value for name, value in given.items()}
    return [(name, one) for name in sorted(values) for one in values[name]]


def _quote(text: str) -> str:
    """As `URLSearchParams` does."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def write(answers: dict[str, Any]) -> str:
    """The file."""
    scripts = {
        f"console/{name}": "data:text/javascript;base64," + b64encode(read_asset(name).encode()).decode()
        for name in asset_names()
        if name.endswith(".js")
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
