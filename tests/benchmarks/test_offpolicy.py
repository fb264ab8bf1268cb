"""The off-policy studies: equal waiting for all variants, and staleness that is really there."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import pytest

from benchmarks.offpolicy.behind import Behind
from benchmarks.offpolicy.slow_tools import MEDIAN, latency
from benchmarks.offpolicy.studies import STUDIES
from benchmarks.study import main
from tests.trainer.watching import fit, grpo, records

ROOT = Path(__file__).parents[2]


def test_a_query_takes_equally_long_in_all_runs_that_are_compared():
    waits = [latency(f"one-run-t{step}-3-5", 0) for step in range(1001)]
    assert waits == [latency(f"another-t{step}-3-5", 0) for step in range(1001)]
    assert len(set(waits)) == 1001
    assert latency("run-t1-3-5", 0) != latency("run-t1-3-5", 1)
    # the deviation of a median of 1001 such draws is 4 % of it
    assert median(waits) == pytest.approx(MEDIAN, rel=0.2)
    assert latency("run-e24-sampled-7", 0) == 0


def test_a_backend_that_stays_behind_makes_batches_as_stale_as_they_may_be(tmp_path: Path):
    fit(tmp_path / "run", grpo(staleness=2), backend=Behind("tiny", threads=1))
    most = {step: m.values["staleness_max"] for step, m in records(tmp_path / "run").metrics.items()}
    assert all(age <= min(step, 2) for step, age in most.items())
    assert max(most.values()) == 2


@pytest.mark.parametrize("name", STUDIES)
def test_every_variant_has_settings_a_folder_of_its_own_and_a_script(name: str):
    study = STUDIES[name]
    assert len({variant.key for variant in study.variants}) == len(study.variants)
    for variant in study.variants:
        variant.settings()
        assert (ROOT / (variant.script or f"examples/{study.example}/train.py")).is_file()
    assert study.command.startswith("python -m benchmarks.offpolicy ")


def test_an_unknown_study_is_refused_with_the_names_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["offpolicy", "repaly"])
    with pytest.raises(SystemExit) as ended:
        main(STUDIES, "benchmarks.offpolicy")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "'repaly'" in said
    assert "replay, async, staleness" in said
