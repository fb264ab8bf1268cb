"""The benchmark of searches for prompts: what it proposes, which rewards it changes, and its table."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_core.records.types import Task
from lightning_core.trainer.report import SearchSummary
from recipes.promptable.sentences import TOPICS
from research import prompts
from research.prompts import POOL, SQL, WRITER, blind, draw_sql, judged, publish, searches_table


def test_the_proposer_draws_one_sentence_at_a_time_from_the_pool() -> None:
    propose, text = blind(3), WRITER
    for _ in range(25):
        before = {each for each in POOL if each in text}
        text = propose(f"the prompt:\n```\n{text}\n```").strip("`\n")
        told = {each for each in POOL if each in text}
        assert len(told - before) == 1
        assert len(before - told) <= 1
        assert len(text) == len(WRITER) + sum(len(each) + 1 for each in told)


def test_rewards_of_tasks_that_report_are_never_changed() -> None:
    async def solve(task: Task) -> float:
        return 0.25

    app = replace(SQL, solve=solve)
    train, chose, reports = (
        [Task(id=f"{kind}{n}", input={}, split=split) for n in range(20)]
        for kind, split in (("t", "train"), ("c", "validation"), ("r", "validation"))
    )

    def rewards(kind: str, tasks: list[Task]) -> set[float]:
        run: Any = judged(app, kind, 0, {task.id for task in chose})
        return {asyncio.run(run(task)) for task in tasks}

    for kind in ("true", "tossed", "turned"):
        assert rewards(kind, reports) == {0.25}
    assert rewards("tossed", train) == rewards("tossed", chose) == {0.0, 1.0}
    assert (rewards("turned", train), rewards("turned", chose)) == ({0.75}, {0.25})


def test_a_seed_draws_its_own_tasks_of_forms_that_a_sentence_may_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, again, other = (draw_sql("test", 48, seed) for seed in (0, 0, 1))
    assert [task.id for task in first] == [task.id for task in again]
    assert {task.id for task in first} != {task.id for task in other}
    assert len(first) == 48
    assert {str(task.input["form"]) for task in first} == set(TOPICS)


def test_the_table_compares_seed_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "gepa": [_summary(0.1, 0.5), _summary(0.2, 0.8)],
        "random": [_summary(0.1, 0.2), _summary(0.2, 0.3)],
        "placebo": [_summary(0.1, 0.1), _summary(0.2, 0.2)],
    }
    made = searches_table(found)
    # gains .4 and .6: mean .5, half of the interval 12.71 * .1414 / sqrt(2) = 1.271
    assert "| gepa | .10 to .90 | .15 to .65 | .50 (-.77 to 1.77) | 2 of 2 | .50 (-.77 to 1.77) |" in made
    # beyond random .3 and .5
    assert made.splitlines()[2].endswith("| .40 (-.87 to 1.67) |")
    assert made.splitlines()[4].endswith("| .00 (.00 to .00) | 0 of 2 |  | -.10 (-.10 to -.10) |")
    page = tmp_path / "page.md"
    monkeypatch.setattr(prompts, "PAGE", page)
    for before in ("", "old\n"):
        page.write_text(f"above\n<!-- searches -->\n{before}<!-- end of searches -->\nbelow\n")
        publish("searches", made)
        assert page.read_text() == f"above\n<!-- searches -->\n{made}\n<!-- end of searches -->\nbelow\n"


def _summary(before: float, after: float) -> SearchSummary:
    return SearchSummary(
        step=0,
        search="gepa",
        rollouts=1,
        candidates=2,
        refused=0,
        reflections=1,
        tokens=1,
        tasks=24,
        choosing=(0.1, 0.9),
        reporting=(before, after),
        interval=(after - before - 0.1, after - before + 0.1),
        versions={"write_query": (0, 1)},
        prompts={"write_query": ("a", "b")},
        won=[],
        lost=[],
    )
