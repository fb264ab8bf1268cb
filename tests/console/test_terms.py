"""The words of the console are those of the docs: one sentence each, from one place."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from tests.console.conftest import STEPS, opening
from tests.console.test_pages import at

ROOT = Path(__file__).parents[2]
ASSETS = files("lightning_core.console") / "assets"


def terms() -> dict[str, str]:
    text = (ASSETS / "terms.js").read_text(encoding="utf-8")
    return json.loads(re.sub(r",\s*}$", "}", text.partition("TERMS = ")[2].partition(";\n")[0]))


def test_the_glossary_has_the_words_of_the_console() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE))
    assert {name: rows.get(name) for name in terms()} == terms()


def test_every_word_that_a_script_explains_is_a_word() -> None:
    used = set()
    for script in ASSETS.iterdir():
        if script.name.endswith(".js") and script.name not in ("uplot.js", "terms.js"):
            text = script.read_text(encoding="utf-8")
            used |= {*re.findall(r'\bterm\("([^"]+)"', text), *re.findall(r'\bword: "([^"]+)"', text)}
    assert used
    assert used - terms().keys() == set()


def test_a_word_says_what_it_means_on_the_page(browser: Any, address: str) -> None:
    with opening(browser, at(address, "finished")) as page:
        word = page.locator("abbr.term", has_text="held-out reward").first
        word.wait_for()
        assert word.get_attribute("title") == terms()["held-out reward"]
        page.goto(at(address.partition("?")[0], "finished/words"))
        page.locator("dl.words dt").first.wait_for()
        assert page.locator("dl.words dt").all_inner_texts() == list(terms())


def test_the_legend_shows_the_last_step_until_one_points_at_another(browser: Any, address: str) -> None:
    with opening(browser, at(address, "finished")) as page:
        shown = page.locator("figure.chart", has_text="Reward").first.locator(".u-series").first
        shown.wait_for()
        while "–" in shown.inner_text():
            page.wait_for_timeout(50)
        assert "".join(shown.inner_text().split()) == f"step{STEPS}"


def test_the_evaluation_before_training_stands_at_step_0(browser: Any, address: str, finished: Path) -> None:
    """Where `curve.png` has it: before the first step, not at it."""
    before = json.loads((finished / "summary.json").read_text())["before"]["greedy"]
    with opening(browser, at(address, "finished")) as page:
        reward = page.locator("figure.chart", has_text="Reward").first
        reward.locator(".u-over").hover(position={"x": 1, "y": 20})
        shown = reward.locator(".u-series")
        while "".join(shown.first.inner_text().split()) != "step0":
            page.wait_for_timeout(50)
        greedy = reward.locator(".u-series", has_text="held-out, greedy").locator(".u-value").inner_text()
        assert float(greedy.replace("−", "-")) == round(before, 3)
