"""The published tables are what the runs' records say, and ± means one thing in all of them."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

from benchmarks.intervals import mean_of
from benchmarks.page import insert
from lightning_core.trainer.summary import AgentScore, AgentSummary, Evaluation, EvaluationScore, Summary
from research.design import Variant
from research.examples import EXAMPLES, Example
from research.offpolicy.studies import STUDIES as OFF_POLICY
from research.outcomes import Outcome, Published
from research.plots import plot
from research.policies.studies import STUDIES as POLICIES
from research.rewriting import Rewriting
from research.studies import STUDIES, Study
from research.tables import (
    MEANING,
    agent_table,
    interval,
    part_table,
    run_table,
    spread,
    study_table,
    worst_table,
)
from research.tinker.study import STUDIES as SERVICES
from research.verl.study import STUDIES as BACKENDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "research/results/README.md"
ALL = {**EXAMPLES, **STUDIES, **OFF_POLICY, **BACKENDS, **SERVICES, **POLICIES}
NUMBERS = {3: "three", 5: "five"}
PUBLISHED = [name for name in ALL if (ROOT / f"research/results/{name}.json").exists()]


def test_the_results_of_all_examples_are_published() -> None:
    assert set(EXAMPLES) <= set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_table_is_what_its_record_says(name: str) -> None:
    published = Published.read(ROOT / f"research/results/{name}.json")
    page = PAGE.read_text()
    assert insert(page, ALL[name], ALL[name].render(published.variants)) == page


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_section_has_its_command_its_plot_and_the_meaning_of_its_signs(name: str) -> None:
    page = PAGE.read_text()
    before, _, after = page.partition(f"<!-- {name} table -->")
    table, _, rest = after.partition(f"<!-- end of {name} table -->")
    assert f"\n    {ALL[name].command}\n" in before.rpartition("\n## ")[2]
    assert MEANING in table
    assert rest.lstrip().startswith("![")
    assert f"](results-{name}.png)" in rest
    assert (ROOT / f"research/results/results-{name}.png").is_file()


def test_a_record_names_no_folder_of_the_machine_that_made_it() -> None:
    records = [*(ROOT / "research/results").glob("*.json")]
    assert len(records) > 20
    assert [path.name for path in records if '": "/' in path.read_text()] == []


def test_the_figures_of_the_summary_are_those_of_the_tables() -> None:
    summary, tables = (ROOT / "docs/results.md").read_text(), PAGE.read_text()
    figures = re.findall(r"\d\.\d+ ± \d\.\d+|\d\.\d+ \(\d\.\d+ to \d\.\d+\)", summary)
    assert len(figures) > 20
    assert [figure for figure in figures if figure not in tables] == []


@pytest.mark.parametrize("name", [name for name, each in EXAMPLES.items() if each.backend])
def test_the_figures_of_the_real_model_are_those_of_its_records(name: str) -> None:
    runs = list(Published.read(ROOT / f"research/results/{name}.json").variants["as it is"].values())
    of = {kind: zip(*(run.success(kind) for run in runs), strict=True) for kind in ("sampled", "greedy")}
    said = {
        kind: [f"{fmean(each):.2f} ± {stdev(each):.2f}".replace("0.", ".") for each in pair]
        for kind, pair in of.items()
    }
    page = (ROOT / "docs/results.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| ") and f"(../examples/{name})" in line)
    cells = [" → ".join(pair) for pair in said.values()]
    assert row.split(" | ")[2:4] == cells
    if name == "words":
        readme = " ".join((ROOT / "README.md").read_text().split())
        (before, after), steps = (
            zip(*(run.success("sampled") for run in runs), strict=True),
            runs[0].summary.steps,
        )
        means, spreads = ([f"{of(each):.0%}"[:-1] for each in (before, after)] for of in (fmean, stdev))
        assert (
            f"{means[0]} % of its answers are right before training, and {means[1]} % after {steps} updates"
            in readme
        )
        assert f"(sampled, {NUMBERS[len(runs)]} seeds; ± {spreads[0]} and ± {spreads[1]})" in readme
        assert f"worst seed reached {min(after):.0%}".replace("%", " %") in readme


def summary(before: float, after: float, seconds: float = 1, by: bool = True) -> Summary:
    """A run with these successes, sampled, and 0.1 less of each greedy."""

    def evaluation(step: int, sampled: float) -> Evaluation:
        parts = {"easy": sampled, "hard": sampled / 2} if by else {}
        score = EvaluationScore(success=sampled, tasks=4, failures=0, by=parts)
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


def outcome(after: float, step: int, steps: int = 20, seconds: float = 2.0) -> Outcome:
    """A run whose reward is 0 before a step and 1 from then on: its mean of five is .8 three steps later."""
    return Outcome(
        summary=summary(0.4, after, steps * seconds),
        rewards=[float(i >= step) for i in range(steps)],
        rollouts=[64 * (i + 1) for i in range(steps)],
        seconds=[seconds * (i + 1) for i in range(steps)],
        measured=float(step),
    )


def some_study(**about: object) -> Study:
    variants = (Variant("first"), Variant("second"))
    return Study(name="some", title="Some", example="calc", variants=variants, **about)  # type: ignore[arg-type]


def test_the_table_of_runs_ends_with_mean_deviation_and_interval() -> None:
    runs = {"seed0": summary(0.4, 0.8, 99.6), "seed1": summary(0.6, 0.92, 120)}
    lines = run_table("seed", {name: Outcome(summary=each) for name, each in runs.items()})
    # two values d apart: deviation d / sqrt 2, half an interval 12.71 × d / 2
    assert lines.splitlines()[2:] == [
        "| seed0 | 0.400 | 0.800 | 0.400 | 0.300 | 0.700 | 0.400 | 100 s |",
        "| seed1 | 0.600 | 0.920 | 0.320 | 0.500 | 0.820 | 0.320 | 120 s |",
        "| **mean ± sd** | 0.500 ± 0.141 | 0.860 ± 0.085 | 0.360 ± 0.057 "
        "| 0.400 ± 0.141 | 0.760 ± 0.085 | 0.360 ± 0.057 | 110 ± 14 s |",
        "| **95 % interval** | -0.771 to 1.771 | 0.097 to 1.623 | -0.148 to 0.868 "
        "| -0.871 to 1.671 | -0.003 to 1.523 | -0.148 to 0.868 | -20 to 239 s |",
    ]


def test_success_is_shown_by_part_where_the_run_has_parts() -> None:
    lines = part_table("form", [summary(0.4, 0.8), summary(0.6, 0.8)]).splitlines()
    assert lines[0].startswith("| form |")
    assert lines[-1] == "| hard | 0.250 ± 0.071 | 0.400 ± 0.000 | 0.250 ± 0.071 | 0.400 ± 0.000 |"
    assert part_table("form", [summary(0.4, 0.8, by=False)]) == ""


def test_an_agent_that_did_not_act_made_no_calls_and_has_no_success() -> None:
    lines = agent_table([summary(0.4, 0.8), summary(0.4, 0.8)]).splitlines()
    assert lines[2] == "| late | no | 0.000 ± 0.000 | 0.000 ± 0.000 | – | – |"
    assert lines[3] == "| writer | yes | 1.500 ± 0.000 | 1.500 ± 0.000 | 0.500 ± 0.000 | 0.500 ± 0.000 |"


def test_the_example_s_own_table_is_of_all_its_runs() -> None:
    shares = [
        {when: {"first query": s, "after rewriting": s} for when in ("before", "after")} for s in (0, 1)
    ]
    example = Example("x", "X", "x", (Variant("as it is"),), extra=Rewriting("writer"))
    runs = {str(i): Outcome(summary=summary(0.4, 0.8), extra=each) for i, each in enumerate(shares)}
    assert "| after rewriting | 0.500 ± 0.707 | 0.500 ± 0.707 |" in example.render({"as it is": runs})


def test_a_study_shows_change_arrival_and_ratio_of_what_it_compares() -> None:
    first = {f"seed{i}": outcome(after, 7) for i, after in enumerate((0.7, 0.8, 0.9))}
    second = {f"seed{i}": outcome(after, 1, seconds=8.0) for i, after in enumerate((0.7, 0.8, 0.9))}
    # arrival at the 11th step after 7 failures, at the 5th after 1; half an interval is 4.30 × 0.1 / sqrt 3
    success = "0.400 → 0.800 (0.552 to 1.048) | 0.300 → 0.700 (0.452 to 0.948) | 3 of 3"
    for compared, ratio in (("rollouts", "0.45"), ("seconds", "1.82")):
        lines = study_table(some_study(compared=compared), {"first": first, "second": second}).splitlines()
        assert lines[0].endswith(f"| training | ratio of {compared} |")
        assert lines[2] == f"| first | {success} | 704 | 22 | 40 ± 0 s | 1 |"
        assert lines[3] == (f"| second | {success} | 320 | 40 | 160 ± 0 s | {ratio} ({ratio} to {ratio}) |")


def test_a_study_can_compare_its_own_number() -> None:
    async def steps(store: object, run: str) -> float:
        raise AssertionError("measured before")

    study = some_study(compared="measured", measure=steps, measured="steps")
    variants = {"first": {"seed0": outcome(0.8, 8)}, "second": {"seed0": outcome(0.8, 2)}}
    head, _, first, second, _, legend = study_table(study, variants).splitlines()
    assert "ratio is of the means" in legend
    assert head.endswith("| training | steps | ratio of these |")
    assert first.endswith("| 40 s | 8.000 | 1 |")
    assert second.endswith("| 40 s | 2.000 | 0.25 |")


def test_runs_that_do_not_arrive_count_with_all_they_had() -> None:
    arrived, late = {"seed0": outcome(0.8, 7)}, {"seed0": outcome(0.8, 19)}
    assert "| 0 of 1 | – | – | 40 s | ≥ 1.82 |" in study_table(
        some_study(), {"first": arrived, "second": late}
    )
    assert "| 1 of 1 | 704 | 22 | 40 s | – |" in study_table(some_study(), {"first": late, "second": arrived})


def test_a_study_is_not_compared_with_what_was_not_run() -> None:
    assert "| 1 of 1 | 704 | 22 | 40 s | – |" in study_table(
        some_study(), {"second": {"seed0": outcome(0.8, 7)}}
    )


def test_the_worst_runs_are_shown_with_the_kinds_that_they_did_not_learn() -> None:
    # success is .1 less when greedy, and its parts are as sampled: easy as the whole, hard one half of it
    runs = {f"seed{i}": Outcome(summary=summary(0.1, after)) for i, after in enumerate((0.9, 0.4, 1.0))}
    assert worst_table({"one": runs}).splitlines()[2] == "| one | 0.400 | 0.300 | easy 1, hard 2 |"
    plain = {"seed0": Outcome(summary=summary(0.1, 0.4, by=False))}
    assert worst_table({"two": plain}).splitlines()[2] == "| two | 0.400 | 0.300 | – |"


def test_a_run_without_evaluations_is_refused_by_name() -> None:
    unfinished = summary(0.4, 0.8).model_copy(update={"after": None})
    with pytest.raises(ValueError, match="'seed0'"):
        run_table("seed", {"seed0": Outcome(summary=unfinished)})


def test_one_run_has_no_deviation_and_no_interval() -> None:
    assert spread([0.5]) == interval([0.5]) == "0.500"


def test_an_interval_is_student_s() -> None:
    found = mean_of([1.0, 2.0, 3.0, 4.0, 5.0])  # deviation sqrt 2.5, 4 degrees of freedom: 2.776
    assert found.value == 3
    assert found.high - found.value == pytest.approx(2.776 * (2.5 / 5) ** 0.5, rel=2e-3)
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    published = Published(variants={"first": {"seed0": outcome(0.8, 7)}})
    published.write(tmp_path / "deep/some.json")
    assert Published.read(tmp_path / "deep/some.json") == published


@pytest.mark.parametrize("compared", ["rollouts", "seconds"])
def test_a_plot_is_made_of_runs_of_unequal_length_and_of_none(tmp_path: Path, compared: str) -> None:
    runs = {"seed0": outcome(0.8, 7), "seed1": outcome(0.8, 7, steps=12), "seed2": outcome(0.8, 7, steps=0)}
    plot(some_study(compared=compared), {"first": runs, "second": runs}, tmp_path / "some.png")
    assert (tmp_path / "some.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_s_script_is_where_the_command_looks(name: str) -> None:
    assert (ROOT / f"examples/{EXAMPLES[name].example}/train.py").is_file()
