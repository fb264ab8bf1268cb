"""Where measurements go: a page, its plots, and the records that both are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

RECORDS = Path("benchmarks/results")
PAGE = RECORDS / "README.md"


class Section(Protocol):
    """A section of the page."""

    @property
    def name(self) -> str:
        """Name of its marks and its plot."""

    @property
    def title(self) -> str: ...
    @property
    def command(self) -> str:
        """Makes it again."""


def insert(page: str, section: Section, text: str) -> str:
    """The page with the text between the section's marks; a page without the section gets it at its end."""
    begin, end = f"<!-- {section.name} table -->", f"<!-- end of {section.name} table -->"
    if begin not in page:
        plot = f"![training reward of every run](results-{section.name}.png)"
        command = f"    {section.command}"
        written = "\n\n".join((f"## {section.title}", command, f"{begin}\n{end}", f"{plot}\n"))
        page = f"{page}\n{written}"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"
