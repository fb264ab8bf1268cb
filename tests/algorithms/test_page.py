"""docs/algorithms.md says what there is."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.plugins import load_plugins

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table that follows."""
    table = re.search(r"\n\|.*?\n\|[-|]+\n(.*?)\n\n", PAGE[PAGE.index(heading) :], re.DOTALL)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def test_every_algorithm_has_a_row_with_its_class():
    plugins = load_plugins([])
    listed = {name.strip("`"): kind.strip("`") for name, kind, *_ in rows("# Algorithms")}
    assert listed == {name: plugins.part("algorithm", name).__name__ for name in plugins.names("algorithm")}


@pytest.mark.parametrize(
    ("heading", "algorithm"),
    [("## The policy gradient", GRPO), ("## DPO", lightning.DPO), ("## SFT", lightning.SFT)],
)
def test_every_option_has_a_row_with_its_default(heading, algorithm):
    defaults = {}
    for cell, default, _ in rows(heading):
        names = re.findall(r"`(\w+)`", cell)
        for name, value in zip(names, default.split(", ") if len(names) > 1 else [default], strict=True):
            value = value.split("; ")[0]  # the others' after it
            defaults[name] = None if value == "none" else eval(value.strip("`"), vars(_corrections()))
    assert defaults == {each.name: each.default for each in fields(algorithm)}


def _corrections():
    from lightning_core.algorithms import policy_gradient

    return policy_gradient


def test_every_variant_is_accepted_as_it_stands():
    for variant, options, _ in rows("## Variants of GRPO"):
        made = eval(f"lightning.GRPO({options.split('`')[1]})", {"lightning": lightning})
        assert made != lightning.GRPO(), variant
