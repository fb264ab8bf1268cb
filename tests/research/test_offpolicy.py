"""The off-policy studies: equal waiting for all variants, and staleness that is really there."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import pytest

from research.offpolicy.behind import staying_behind
from research.offpolicy.slow_tools import MEDIAN, latency
from research.offpolicy.studies import STUDIES
from research.study import main
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


def test_updates_that_wait_make_every_batch_exactly_as_stale_as_it_may_be(tmp_path: Path):
    with staying_behind():
        fit(tmp_path / "run", grpo(staleness=2))
    found = {step: m.values for step, m in records(tmp_path / "run").metrics.items()}
    assert {step: values["staleness_max"] for step, values in found.items()} == {0: 0, 1: 1, 2: 2, 3: 2, 4: 2}
    assert all(values["staleness_mean"] == values["staleness_max"] for values in found.values())


def test_the_variants_of_the_staleness_study_differ_in_their_algorithm_alone():
    """The seed and the model, and with them the weights at the start, are the example's for all of them."""
    for variant in STUDIES["staleness"].variants:
        assert set(variant.settings()) == {"algorithm"}
        assert variant.settings()["algorithm"].staleness == (0 if variant.name == "on-policy" else 4)


@pytest.mark.parametrize("name", STUDIES)
def test_every_variant_has_settings_a_folder_of_its_own_and_a_script(name: str):
    study = STUDIES[name]
    assert len({variant.key for variant in study.variants}) == len(study.variants)
    for variant in study.variants:
        variant.settings()
        assert (ROOT / (variant.script or f"examples/{study.example}/train.py")).is_file()
    assert study.command.startswith("python -m research.offpolicy ")


def test_an_unknown_study_is_refused_with_the_names_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["offpolicy", "repaly"])
    with pytest.raises(SystemExit) as ended:
        main(STUDIES, "research.offpolicy")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "'repaly'" in said
    assert "replay, async, staleness" in said
