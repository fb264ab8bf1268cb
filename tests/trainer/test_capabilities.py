"""The page of what goes together is what the code says, and every refusal says what it is about."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.algorithms.corrections import Masked, Truncated
from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.cli import main
from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.trainer.capabilities import Walk, settings_of
from lightning_core.trainer.capability_page import capability_page

NAMES = {"Truncated": Truncated, "Masked": Masked}
PAGE = Path(__file__).parents[2] / "docs" / "capabilities.md"


@pytest.fixture(scope="module", autouse=True)
def graphics():
    """As on a machine for GPUs: on a processor verl's GPUs do not serve and train in turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VERL_PLATFORM", raising=False)
        yield


@pytest.fixture(scope="module")
def walk() -> Walk:
    return Walk(load_plugins(only=()))


def test_the_page_is_what_the_code_says():
    told = capability_page(load_plugins(only=()))
    assert PAGE.read_text() == told, "write it anew: agentlightning capabilities > docs/capabilities.md"


def test_the_command_prints_the_page_as_it_is(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["agentlightning", "capabilities"])
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out == capability_page(load_plugins())


def test_every_refusal_names_what_is_refused(walk):
    refused = [*walk.credit(), *walk.options(), *walk.signals(), *(case for _, case in walk.serving())]
    refused = [case for case in refused if case.refusal is not None]
    assert len(refused) > 60
    for case in refused:
        assert case.option in (case.refusal or ""), case


def test_a_companion_named_in_the_table_is_enough(walk):
    """Made anew, as a user would write it."""
    helped = [case for case in walk.options() if case.companion and "[...]" not in case.companion]
    assert len(helped) > 20
    for case in helped:
        part = walk.part("algorithm", case.algorithm).__name__
        assert eval(f"lightning.{part}({case.asked}, {case.companion})", {"lightning": lightning, **NAMES})


def test_every_option_of_every_algorithm_is_asked(walk):
    for name in walk.algorithms:
        part = walk.part("algorithm", name)
        asked = {setting.name for setting in settings_of(part)}
        assert set(inspect.signature(part).parameters) - asked <= {"credit", "critic"}


def test_no_option_of_a_backend_is_missing_from_the_page(walk):
    page = PAGE.read_text()
    assert walk.backends == ["local", "verl"]
    for backend in walk.backends:
        for name in inspect.signature(walk.part("backend", backend)).parameters:
            assert name in {"self", "model", "seed"} or f"| `{name}` |" in page


def test_a_backend_that_can_t_be_imported_is_left_out():
    plugins = load_plugins(only=())

    class Broken:
        @lightning.hookimpl
        def lightning_register(self, register):
            register("backend", "far", "no_such_package:Far")

    plugins.add("broken", Broken())
    assert Walk(plugins).backends == ["local", "verl"]


def test_a_plugin_s_algorithm_is_asked_too():
    plugins = load_plugins(only=())

    class Mine:
        @lightning.hookimpl
        def lightning_register(self, register):
            register("algorithm", "mine", f"{__name__}:Mine")

    plugins.add("mine", Mine())
    asked = Counter(case.algorithm for case in Walk(plugins).options())
    assert asked["mine"] == asked["grpo"]


class Mine(lightning.GRPO):
    """An algorithm of a third party."""


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("credit", {"algorithm": lightning.GRPO(credit="gae")}),
        (
            "judge",
            {"algorithm": lightning.PPO(), "judge": lightning.Judge(model="m", base_url="http://h/v1")},
        ),
        ("staleness", {"algorithm": lightning.GRPO(staleness=1), "backend": VerlBackend("tiny")}),
    ],
)
def test_a_run_is_refused_at_its_start_in_the_words_of_the_page(option, settings, tmp_path):
    def solve(task: lightning.Task) -> float:
        raise AssertionError("a rollout was run")

    trainer = lightning.Trainer(folder=tmp_path / "run", progress=False, **settings)
    with pytest.raises(ConfigError, match=option) as refused:
        trainer.fit(solve, train=[{"question": "?"}], validation=[])
    assert str(refused.value) in PAGE.read_text()
