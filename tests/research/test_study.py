"""Runs of studies are made where they are missing, found where they are, and published when all are there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from research.examples import EXAMPLES
from research.offpolicy.studies import STUDIES as OFF_POLICY
from research.studies import STUDIES
from research.study import folder_of, main, make_run


def test_a_run_lies_in_a_folder_of_its_example_key_steps_and_seed() -> None:
    study = STUDIES["algorithms"]
    assert folder_of(study, study.variant("GRPO"), 2) == Path("runs/studies/sql/grpo-24-seed2")
    replay = OFF_POLICY["replay"]
    assert folder_of(replay, replay.variant("on-policy"), 2) == folder_of(study, study.variant("GRPO"), 2)


def test_a_run_that_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = EXAMPLES["plain"]
    folder = folder_of(study, study.variants[0], 0)
    folder.mkdir(parents=True)
    (folder / "summary.json").touch()
    make_run(study, study.variants[0], 0, "no.such.module")
    with pytest.raises(subprocess.CalledProcessError):
        make_run(study, study.variants[0], 1, "no.such.module")


@pytest.mark.parametrize("name", STUDIES)
def test_every_variant_has_settings_at_once_and_a_folder_of_its_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no start is
    study = STUDIES[name]
    assert len({variant.key for variant in study.variants}) == len(study.variants)
    for variant in study.variants:
        variant.settings()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["aire"], "'aire'; there are algorithms, air"),
        (["air", "--variants", "AIR"], "'AIR'; it has without"),
    ],
)
def test_an_unknown_name_is_refused_with_those_there_are(
    arguments: list[str],
    names: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["study", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert names in capsys.readouterr().err
