"""The pages render: links lead somewhere, code blocks and tables are whole, and no merge is unfinished."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

import lightning_core
from lightning_core.backends.local.versions import LocalSettings
from lightning_core.backends.verl.settings import VerlSettings

ROOT = Path(__file__).parent.parent
LISTED = subprocess.run(
    ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout
FILES = {ROOT / name for name in LISTED.split("\0") if name}
"""Files of a clone; ignored ones, such as fetched data, are in no clone."""
PAGES = sorted(path for path in FILES if path.suffix == ".md" and path.exists())
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LANGUAGES = {"bash", "conf", "console", "diff", "javascript", "json", "python", "sh", "text", "toml", "yaml"}
MARKDOWN = MarkdownIt("commonmark").enable("table")
ABSOLUTE = re.compile(
    r"https://(?:github\.com|raw\.githubusercontent\.com)/agent-lightning-core/agent-lightning-core/"
    r"(?:(?:blob|tree)/)?main/"
)
ATTRIBUTE = re.compile(r"""\s(href|src|id|name)=["']([^"']*)["']""")

each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def flat(text: str) -> list[Token]:
    """All tokens of a page, those inside of paragraphs too."""
    return [token for block in MARKDOWN.parse(text) for token in (block, *(block.children or ()))]


def written_in_html(text: str, *names: str) -> list[str]:
    html = [token.content for token in flat(text) if token.type in ("html_block", "html_inline")]
    return [value for part in html for name, value in ATTRIBUTE.findall(part) if name in names]


def links(text: str) -> list[str]:
    """Where the page's links and images lead."""
    found = [token.attrGet("href") or token.attrGet("src") for token in flat(text)]
    return [str(link) for link in found if link is not None] + written_in_html(text, "href", "src")


def anchors(text: str) -> set[str]:
    """The headings as GitHub names them, and what is named in HTML."""
    found: Counter[str] = Counter()
    names = set(written_in_html(text, "id", "name"))
    tokens = MARKDOWN.parse(text)
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            said = "".join(part.content for part in token.children or ())
            name = re.sub(r"[^\w\- ]", "", said.lower()).replace(" ", "-")
            names.add(f"{name}-{found[name]}" if found[name] else name)
            found[name] += 1
    return names


def dead_links(page: Path, text: str, files: set[Path]) -> list[str]:
    """The page's links within the project that lead nowhere."""
    dead = []
    for link in links(text):
        if at := ABSOLUTE.match(link):  # a package index shows these pages too
            parts, place = urlsplit(link[at.end() :]), ROOT
        else:
            parts, place = urlsplit(link), page.parent
        if parts.scheme or parts.netloc:
            continue
        target = (place / unquote(parts.path)).resolve() if parts.path else page
        there = target in files or any(target in file.parents for file in files)
        if there and parts.fragment and target.suffix == ".md":
            there = parts.fragment in anchors(text if target == page else target.read_text())
        if not there:
            dead.append(link)
    return dead


def bad_blocks(text: str) -> list[str]:
    """Code blocks that no fence ends, or in no language that we know."""
    lines, bad = text.splitlines(), []
    for token in MARKDOWN.parse(text):
        if token.type == "fence" and token.map is not None:
            first, end = token.map
            closed = end - first > 1 and re.fullmatch(rf"[ >]*{token.markup}+", lines[end - 1])
            if not closed or token.info not in LANGUAGES:
                bad.append(f"line {first + 1}: {token.markup}{token.info}")
    return bad


def bad_tables(text: str) -> list[str]:
    """Rows with more or fewer cells than their table's first, and rows that are part of no table."""
    lines, bad = text.splitlines(), []
    for token in MARKDOWN.parse(text):
        if token.type == "table_open" and token.map is not None:
            rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines[slice(*token.map)]]
            bad += ["|".join(row) for row in rows if len(row) != len(rows[0])]
        if token.type == "inline":
            bad += [line for line in token.content.splitlines() if re.match(r"\|.*\|$", line)]
    return bad


@each_page
def test_every_link_and_image_leads_to_what_is_there(page: Path) -> None:
    assert dead_links(page, page.read_text(), FILES) == []


@each_page
def test_every_code_block_is_closed_and_names_its_language(page: Path) -> None:
    assert bad_blocks(page.read_text()) == []


@each_page
def test_every_row_of_a_table_has_as_many_cells_as_its_heading(page: Path) -> None:
    assert bad_tables(page.read_text()) == []


COMMAND = re.compile(r"python -m ((?:benchmarks|research|recipes|tests)\.[a-z0-9_.]*[a-z0-9_])")
SAYING = sorted(path for path in FILES if path.suffix in {".md", ".py"} or path.name == "Makefile")


def test_every_module_that_a_command_names_is_there() -> None:
    """In pages, docstrings and the Makefile alike."""
    named = {name: path for path in SAYING if path.exists() for name in COMMAND.findall(path.read_text())}
    assert len(named) > 30
    places = {name: ROOT / name.replace(".", "/") for name in named}
    missing = [
        f"{named[name]}: {name}"
        for name, place in places.items()
        if not place.with_suffix(".py").is_file() and not (place / "__main__.py").is_file()
    ]
    assert missing == []


FIRST = ("README.md", "docs/first-hour.md", "docs/credit.md", "docs/metrics.md")
"""Pages that a first user reads from beginning to end."""


def prose(text: str) -> list[str]:
    """The page's sentences, without code, headings, tables and the targets of links."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("    ", "#", "|", "!", "["))]
    text = re.sub(r"\[([^\]]*)\][(\[][^)\]]*[)\]]", r"\1", "\n".join(lines))
    blocks = re.split(r"\n\s*\n|\n(?=[-*] |\d\. |> )", text)
    return [said for block in blocks for said in re.split(r"(?<=[.!?:])\s+", " ".join(block.split()))]


@pytest.mark.parametrize("name", FIRST)
def test_no_sentence_of_a_first_page_is_long(name: str) -> None:
    assert [said for said in prose((ROOT / name).read_text()) if len(said.split()) > 30] == []


def test_the_readme_says_who_it_is_for_what_it_takes_and_shows_a_reply_before_and_after() -> None:
    text = (ROOT / "README.md").read_text()
    places = [
        text.index(f"\n{each}") for each in ("**For you**", "## Install", "## What you write", "## Result")
    ]
    assert places == sorted(places)
    assert "**Not for you**" in text[places[0] : places[1]]
    install = " ".join(text[places[1] : places[2]].split())
    for what in ("make test", "Python 3.11", "of memory", "of disk", "in minutes"):
        assert what in install
    before, after = (
        line for line in text[places[3] :].splitlines() if re.match(" +(before|after) \\(", line)
    )
    assert before.split()[:3] == ["before", "(reward", "0)"]
    assert after.split()[:3] == ["after", "(reward", "1)"]
    assert "agentlightning init" in install.partition("For your own app")[2]


def test_the_readme_says_what_a_word_means_where_it_comes_first() -> None:
    text = " ".join(prose((ROOT / "README.md").read_text()))
    words = ("rollout", "gateway", "policy", "step")
    assert [word for word in words if text.find(word) != text.find(f"*{word}*") + 1] == []
    for name in ("advantage", "logprob", "on-policy", "baseline", "entropy"):  # words that need a page
        assert name not in text


PIP = re.compile(r"pip install (?P<what>[^`#\n]+)")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
STARTING = {
    "plain",
    "local",
    "smollm2",
    *(name for name, wants in EXTRAS.items() if "lightning-" in str(wants[1:])),
}
"""Extras that a first install names. The others are added to a core that is there, which pip then takes."""


def failing_installs(text: str) -> list[str]:
    """The page's pip commands that fail as pasted while the packages are on no index."""
    failing = []
    for said in (found["what"] for found in PIP.finditer(text)):
        parts = [part.strip("\"'.") for part in said.split()]
        if "--find-links" in parts:
            continue
        for part in parts:
            name, _, extras = part.partition("[")
            wanted = set(extras.rstrip("]").split(",")) if extras else set()
            if name.startswith("lightning-") or (name == "agent-lightning-core" and wanted & STARTING):
                failing.append(f"pip install {said}")
            elif wanted and "/" in name:  # from a clone: with the plugins that the extras require
                plugins = {re.split("[=<>]", each)[0] for extra in wanted for each in EXTRAS[extra]}
                given = {
                    "lightning-" + each.rpartition("/")[2].replace("_", "-")
                    for each in parts
                    if "plugins/" in each
                }
                if {each for each in plugins if each.startswith("lightning-")} - given:
                    failing.append(f"pip install {said}")
    return failing


@each_page
def test_the_first_install_command_of_a_page_works_while_nothing_is_released(page: Path) -> None:
    commands = [f"pip install {found['what']}" for found in PIP.finditer(page.read_text())]
    ours = [said for said in commands if "lightning" in said]
    assert failing_installs("\n".join(ours[:1])) == []


def test_an_install_command_that_fails_is_found() -> None:
    fails = [
        'pip install "agent-lightning-core[langgraph,smollm2]"',
        "pip install lightning-crewai",
        'pip install "./agent-lightning-core[crewai]" ./agent-lightning-core/plugins/langgraph',
    ]
    works = [
        'pip install "./agent-lightning-core[crewai]" ./agent-lightning-core/plugins/crewai',
        'pip install --find-links dist "agent-lightning-core[langgraph]"',
        "pip install 'agent-lightning-core[postgres]'",
    ]
    assert failing_installs("\n".join([*works, *fails])) == fails


def test_what_does_not_render_is_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# A `thing`, and more\n\n## Twice\n\n## Twice\n")
    text = (
        "[a](other.md#a-thing-and-more) [b](other.md#twice-1) [c](#here) [d](http://example.org/x)\n"
        "[i](https://github.com/agent-lightning-core/agent-lightning-core/blob/main/docs/gone.md)\n"
        "[e](gone.md) [f](other.md#gone) [g](#gone) ![h](gone.png) <img src='gone2.png'>\n\n# Here\n"
    )
    found = dead_links(page, text, {page, other})
    assert found[0].endswith("main/docs/gone.md")
    assert found[1:] == ["gone.md", "other.md#gone", "#gone", "gone.png", "gone2.png"]
    assert bad_blocks("```python\na\n```\n\n```\nb\n```\n\n```sh\nc\n") == ["line 5: ```", "line 9: ```sh"]
    assert bad_tables("| a | b |\n|---|---|\n| 1 | 2 |\n| 3 |\n") == [" 3 "]
    assert bad_tables("| a | b |\n|---|\n| 1 | 2 |\n") == ["| a | b |", "|---|", "| 1 | 2 |"]


def test_the_reference_has_every_name_of_the_package() -> None:
    named = set(re.findall(r"^::: [\w.]+\.(\w+)$", (ROOT / "docs/reference.md").read_text(), re.M))
    assert set(lightning_core.__all__) <= named


def test_the_backends_settings_are_all_in_a_table() -> None:
    rows = {
        page: set(re.findall(r"^\| `(\w+)` \|", (ROOT / f"docs/{page}.md").read_text(), re.M))
        for page in ("training", "verl")
    }
    local, verl = (
        {each.name for each in fields(of) if each.init} - {"model"} for of in (LocalSettings, VerlSettings)
    )
    assert local <= rows["training"]
    assert verl <= rows["training"] | rows["verl"]


def test_no_file_holds_what_a_merge_left_behind() -> None:
    found = subprocess.run(["make", "-s", "markers"], cwd=ROOT, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("marker", ["<<<<<<< HEAD", "=======", ">>>>>>> 1e9a8f2 (Another)", "||||||| base"])
def test_make_check_refuses_what_a_merge_left_behind(marker: str, tmp_path: Path) -> None:
    assert "markers" in re.findall(r"^check:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    shutil.copy(ROOT / "Makefile", tmp_path)
    page = tmp_path / "page.md"

    def check() -> subprocess.CompletedProcess[str]:
        subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
        return subprocess.run(["make", "-s", "markers"], cwd=tmp_path, capture_output=True, text=True)

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    page.write_text("Title\n========\n\na <<<<<<< b\n")
    assert (check().returncode, check().stdout) == (0, "")
    page.write_text(f"one\n{marker}\ntwo\n")
    found = check()
    assert found.returncode != 0
    assert f"page.md:2:{marker}" in found.stdout


def check_places(names: list[str]) -> list[str]:
    """The paths among them, once they are there and hold the other names."""
    named = [name for name in names if "/" in name or name.endswith(".py")]
    paths = [ROOT / name if name.startswith("tests/") else ROOT / "lightning_core" / name for name in named]
    assert [path for path in paths if not path.exists()] == []
    text = "".join(path.read_text() for path in paths if path.is_file())
    assert [name for name in names if name not in named and name not in text] == []
    return named


def section(title: str) -> str:
    """The section of that title in the page on architecture, up to the next of its height."""
    return (ROOT / "docs/architecture.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_table_of_places_names_files_that_are_there_and_what_they_hold() -> None:
    rows = [re.findall(r"`([^`]+)`", row) for row in section("Where is it?").splitlines() if "`" in row]
    assert len(rows) > 10
    for names in rows:
        check_places(names)


def test_each_walk_passes_five_rooms_that_are_there_at_most() -> None:
    """A walk is the numbered steps under a heading, or one row of a table under it."""
    walks = section("Three walks").split("\n### ")[1:]
    assert len(walks) == 3
    for walk in walks:
        steps = [line for line in walk.splitlines() if re.match(r"\d\. ", line)]
        for way in ["\n".join(steps)] if steps else re.findall(r"^\| a .*$", walk, re.M):
            assert 1 < len(set(check_places(re.findall(r"`([^`]+)`", way)))) <= 5
        check_places([name for name in re.findall(r"`([^`]+)`", walk) if "/" in name])
