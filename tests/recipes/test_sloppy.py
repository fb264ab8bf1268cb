"""The recipe of the sloppy SQL policy, run for a moment, and its slips."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.sql.databases import Column, Database, Table, create_tables
from examples.sql.names import Name
from recipes.sloppy import slips
from recipes.sloppy.__main__ import main
from recipes.sloppy.corpus import demonstrate
from recipes.sloppy.slips import REFUSED, RUNS, Slip, is_refused, slip
from recipes.tiny.corpus import Demonstration
from research.studies import STUDIES

SPEED, DEPTH, WAGE = Name("speed", "old"), Name("depth", ""), Name("wage", "")
BOATS = Table(
    Name("boats", "raw"),
    (Column(Name("name", ""), "name"), Column(SPEED, "number"), Column(DEPTH, "number")),
    (("bado", 30, 60),),
)
SHOPS = Table(Name("shops", ""), (Column(Name("name", ""), "name"), Column(WAGE, "number")), (("fika", 20),))
HARBOUR = Database("harbour", (BOATS, SHOPS), ("yes", "no"))
COUNT = "SELECT COUNT(*) FROM boats_raw WHERE speed_old > 20"


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as opened:
        create_tables(HARBOUR, opened)
        yield opened


def test_the_recipe_writes_a_folder_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "policy"
    monkeypatch.setattr(sys, "argv", ["sloppy", "--out", str(out), "--steps", "2", "--limit", "4"])
    threads = torch.get_num_threads()
    try:
        main()
    finally:
        torch.set_num_threads(threads)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.config.vocab_size == len(tokenizer)
    record = json.loads((out / "scores.json").read_text())
    assert set(record["scores"]) == set(record["refused"]) == {"greedy", "sampled"}
    assert "recipes.sloppy --seed 0" in (out / "README.md").read_text()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_the_database_refuses_the_asked_share_of_first_queries_and_no_rewrite(share: float) -> None:
    shown = list(islice(demonstrate(share, random.Random(3)), 600))
    written = [each for each in shown if _begins(each, "Write")]
    refused = sum(map(_shows_refused, written)) / len(written)
    assert refused == pytest.approx(share, abs=4 * (share * (1 - share) / len(written)) ** 0.5)
    assert not any(_shows_refused(each) for each in shown if _begins(each, "Rewrite"))


def test_demonstrations_of_two_seeds_differ_and_of_one_are_the_same() -> None:
    first, again, other = (list(islice(demonstrate(0.2, random.Random(seed)), 20)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("make", "slipped"),
    [
        (slips.leave_open, "SELECT COUNT(* FROM boats_raw WHERE speed_old > 20"),
        (slips.stray_column, "SELECT COUNT(*) FROM boats_raw WHERE wage > 20"),
        (slips.swap_column, "SELECT COUNT(*) FROM boats_raw WHERE depth > 20"),
        (slips.flip_comparison, "SELECT COUNT(*) FROM boats_raw WHERE speed_old < 20"),
        (slips.drop_quotes, None),
    ],
)
def test_a_slip_changes_one_thing(make: Slip, slipped: str | None) -> None:
    assert make(COUNT, HARBOUR, random.Random(0)) == slipped


def test_names_lose_their_suffix_or_their_underscore() -> None:
    found = {make(COUNT, HARBOUR, random.Random(seed)) for seed in range(9) for make in REFUSED[:2]}
    assert found == {
        COUNT.replace("boats_raw", "boats"),
        COUNT.replace("boats_raw", "boats raw"),
        COUNT.replace("speed_old", "speed"),
        COUNT.replace("speed_old", "speed old"),
    }


def test_text_loses_its_quotes() -> None:
    sql = "SELECT name FROM shops WHERE status = 'active'"
    assert slips.drop_quotes(sql, HARBOUR, random.Random(0)) == "SELECT name FROM shops WHERE status = active"


def test_the_database_tells_the_two_kinds_of_slips_apart(connection: sqlite3.Connection) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        assert is_refused(connection, slip(COUNT, HARBOUR, connection, rng, REFUSED))
        wrong = slip(COUNT, HARBOUR, connection, rng, RUNS)
        assert wrong != COUNT
        assert not is_refused(connection, wrong)


def test_both_variants_of_the_study_start_from_it_and_differ_in_air_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".data/sloppy").mkdir(parents=True)
    study = STUDIES["air"]
    without, with_air = (dict(variant.settings()) for variant in study.variants)
    assert with_air.pop("air") is True
    assert without == with_air
    assert study.model is not None
    assert study.model() == ".data/sloppy"


def _begins(demonstration: Demonstration, word: str) -> bool:
    return demonstration.messages[0]["content"].startswith(word)


def _shows_refused(demonstration: Demonstration) -> bool:
    """Whether the reply can't run on the tables that the prompt describes."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for line in demonstration.messages[-1]["content"].splitlines():
            if line.startswith("Table "):
                connection.execute("CREATE TABLE" + line.removeprefix("Table"))
        return is_refused(connection, demonstration.reply)
