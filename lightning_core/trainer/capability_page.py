"""The answers of `capabilities` as a page in Markdown: `agentlightning capabilities` prints it.

docs/capabilities.md is that page for the parts that the core brings; with plugins installed the command also
asks theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lightning_core.plugins import Plugins
from lightning_core.trainer.capabilities import Case, Walk, settings_of

HEAD: Final = """# What goes together

Made by `agentlightning capabilities`, which asks the code: every combination below was built as a run builds
it, and checked as a run checks it at its start. What can't be done is refused there, by name, before anything
is loaded; the notes give the refusals in their own words.

**yes**: it can be done. **with X**: together with that option, or another that does the same. **no**: not
alone, nor with any one other option. Empty: there is no such option. A number leads to a note.
"""
CREDIT: Final = """
## Algorithms and credit methods

The other algorithms have a credit method of their own.
"""
OPTIONS: Final = """
## Options of the algorithms

Each with values beside the default of one of them.
"""
SIGNALS: Final = """
## Where rewards come from

Beside what `solve` returns.
"""
BACKENDS: Final = """
## Algorithms on backends

In the first phase of a run and in later ones.
"""
ELSEWHERE: Final = """
## Options on backends

Every option above that an algorithm takes was also asked of each backend. All can do all but these:
"""
SETTINGS: Final = """
## Settings of the backends

Beside `model` and `seed`, which all have. What a backend does not have it does not take.
"""


@dataclass(slots=True)
class Notes:
    """Refusals, each once, numbered as they come."""

    told: list[str] = field(default_factory=list)

    def cell(self, case: Case) -> str:
        """What stands in a table for a case."""
        if case.refusal is None:
            return "default" if case.default else "yes"
        if case.refusal not in self.told:
            self.told.append(case.refusal)
        word = f"with `{case.companion}`" if case.companion else "no"
        return f"{word} ({self.told.index(case.refusal) + 1})"


def capability_page(plugins: Plugins) -> str:
    """The whole page."""
    walk, notes = Walk(plugins), Notes()
    serving = list(walk.serving())
    whole = [(backend, case) for backend, case in serving if case.option == "algorithm"]
    single = [(backend, case) for backend, case in serving if case.option != "algorithm" and case.refusal]
    parts = [
        HEAD,
        CREDIT,
        _by_algorithm("credit", walk.credit(), notes),
        OPTIONS,
        _by_algorithm("option", walk.options(), notes),
        SIGNALS,
        _by_algorithm("setting", walk.signals(), notes),
        BACKENDS,
        _table(
            "algorithm",
            walk.backends,
            ((case.algorithm, backend, notes.cell(case)) for backend, case in whole),
        ),
        ELSEWHERE,
        _table(
            "algorithm and option",
            [backend for backend in walk.backends if any(own == backend for own, _ in single)],
            ((f"{case.algorithm}, `{case.asked}`", backend, notes.cell(case)) for backend, case in single),
        ),
        SETTINGS,
        _settings(walk),
        "\n## Notes\n\n",
        "".join(f"{place}. {told}\n" for place, told in enumerate(notes.told, 1)),
    ]
    return "".join(parts)


def _by_algorithm(kind: str, cases: Iterable[Case], notes: Notes) -> str:
    asked = list(cases)
    columns = list(dict.fromkeys(case.algorithm for case in asked))
    return _table(kind, columns, ((f"`{case.asked}`", case.algorithm, notes.cell(case)) for case in asked))


def _settings(walk: Walk) -> str:
    """Which settings each backend takes."""
    cells = (
        (f"`{setting.name}`", backend, "yes")
        for backend in walk.backends
        for setting in settings_of(walk.part("backend", backend), every=True)
    )
    return _table("setting", walk.backends, cells)


def _table(kind: str, columns: Sequence[str], cells: Iterable[tuple[str, str, str]]) -> str:
    """Markdown from (row, column, cell), rows in the order in which they come."""
    rows: dict[str, dict[str, str]] = {}
    for row, column, cell in cells:
        rows.setdefault(row, {})[column] = cell
    lines = [[kind, *columns], ["---"] * (1 + len(columns))]
    lines += [[row, *(found.get(column, "") for column in columns)] for row, found in rows.items()]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
