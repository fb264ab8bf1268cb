"""The tables of docs/results.md are what the runs' records say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.examples import EXAMPLES
from benchmarks.results import RUNS, insert, make_runs, render
from benchmarks.tables import agent_table, part_table, seed_table, spread
from lightning_core.trainer.summary import AgentScore, AgentSummary, Evaluation, Score, Summary

ROOT = Path(__file__).parents[2]
PUBLISHED = [name for name in EXAMPLES if (ROOT / f"benchmarks/results/{name}.json").exists()]


def test_the_main_result_is_published() -> None:
    assert "sql" in PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_table_is_what_its_record_says(name: str) -> None:
    record = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    page = (ROOT / "docs/results.md").read_text()
    assert insert(page, EXAMPLES[name], render(EXAMPLES[name], record)) == page


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_a_section_with_its_command(name: str) -> None:
    page = insert((ROOT / "docs/results.md").read_text(), EXAMPLES[name], "")
    section = page.partition(f"<!-- {name} table -->")[0].rpartition("\n## ")[2]
    assert f"\n    make results EXAMPLE={name}\n" in section


def test_a_section_is_made_once_and_then_filled_in_place() -> None:
    page = "# Results\n\n## Benchmarks\n\nThe end.\n"
    once = insert(page, EXAMPLES["calc"], "first")
    twice = insert(once, EXAMPLES["calc"], "second")
    assert twice == once.replace("first", "second")
    assert twice.count("## The calculator agent") == 1
    assert twice.startswith("# Results\n\n## The calculator agent")
    assert twice.endswith("\n\n## Benchmarks\n\nThe end.\n")


def summary(before: float, after: float, seconds: float, by: bool = True) -> Summary:
    """A run with these successes, sampled, and 0.1 less of each greedy."""

    def evaluation(step: int, sampled: float) -> Evaluation:
        parts = {"easy": sampled, "hard": sampled / 2} if by else {}
        score = Score(success=sampled, tasks=4, failures=0, by=parts)
        acted = score.model_copy(update={"agents": {"writer": AgentScore(calls=6, rollouts=4, success=0.5)}})
        detail = {"sampled": acted, "greedy": score}
        return Evaluation(step=step, sampled=sampled, greedy=sampled - 0.1, detail=detail)

    return Summary(
        run="seed0",
        folder="runs/seed0",
        steps=3,
        seed=0,
        model="tiny",
        before=evaluation(0, before),
        after=evaluation(3, after),
        train_seconds=seconds,
        rollouts=12,
        failures=0,
        zero_variance_groups=0,
        skipped_updates=0,
        agents={
            "writer": AgentSummary(trained=True, calls=9, completion_tokens=9),
            "late": AgentSummary(trained=False, calls=1, completion_tokens=1),
        },
        settings={},
        versions={},
    )


def test_the_table_of_runs_ends_with_mean_and_sample_deviation() -> None:
    lines = seed_table("seed", {"seed0": summary(0.4, 0.8, 99.6), "seed1": summary(0.6, 0.9, 120)})
    assert lines.splitlines()[2:] == [
        "| seed0 | 0.400 | 0.800 | 0.400 | 0.300 | 0.700 | 0.400 | 100 s |",
        "| seed1 | 0.600 | 0.900 | 0.300 | 0.500 | 0.800 | 0.300 | 120 s |",
        "| **mean ± sd** | 0.500 ± 0.141 | 0.850 ± 0.071 | 0.350 ± 0.071 "
        "| 0.400 ± 0.141 | 0.750 ± 0.071 | 0.350 ± 0.071 | 110 ± 14 s |",
    ]


def test_success_is_shown_by_part_where_the_run_has_parts() -> None:
    lines = part_table("form", [summary(0.4, 0.8, 1), summary(0.6, 0.8, 1)]).splitlines()
    assert lines[0].startswith("| form |")
    assert lines[-1] == "| hard | 0.250 ± 0.071 | 0.400 ± 0.000 | 0.250 ± 0.071 | 0.400 ± 0.000 |"
    assert part_table("form", [summary(0.4, 0.8, 1, by=False)]) == ""


def test_an_agent_that_did_not_act_made_no_calls_and_has_no_success() -> None:
    lines = agent_table([summary(0.4, 0.8, 1), summary(0.4, 0.8, 1)]).splitlines()
    assert lines[2] == "| late | no | 0.000 ± 0.000 | 0.000 ± 0.000 | – | – |"
    assert lines[3] == "| writer | yes | 1.500 ± 0.000 | 1.500 ± 0.000 | 0.500 ± 0.000 | 0.500 ± 0.000 |"


def test_a_run_without_evaluations_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'seed0'"):
        seed_table("seed", {"seed0": summary(0.4, 0.8, 1).model_copy(update={"after": None})})


def test_one_run_has_no_deviation() -> None:
    assert spread([0.5]) == "0.500"


def test_runs_that_are_there_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        (RUNS / f"plain/seed{seed}").mkdir(parents=True)
        (RUNS / f"plain/seed{seed}/summary.json").touch()
    assert make_runs(EXAMPLES["plain"], seeds=2, tasks=5) == [RUNS / "plain/seed0", RUNS / "plain/seed1"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_s_script_is_where_the_command_looks(name: str) -> None:
    assert (ROOT / EXAMPLES[name].script).is_file()
