"""Links that leave the folder of pages lead to the repository: a hook of mkdocs."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(!?\[[^\]]*\]\()((?:\.\./)+[^)\s]+)(\))")
_REPOSITORY = "https://github.com/agent-lightning-core/agent-lightning-core/blob/main/"


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """The page's text, in which `../examples/sql/train.py` is an address that a browser can open."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def outside(link: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[0] if place.startswith("docs/") else f"{link[1]}{_REPOSITORY}{place}{link[3]}"

    return _LINK.sub(outside, markdown)
