"""Every hook is documented, and exercised by a test that goes through it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from lightning_core import hookspecs
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Who

PAGE = Path(__file__).parents[2] / "docs" / "plugins" / "README.md"
HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("lightning_")}
KINDS = get_args(hookspecs.Kind)


class Answering:
    """Implements every hook."""

    installed = False

    @hookspecs.hookimpl
    def lightning_who(self) -> Who:
        return Who("named", 7, "answering")

    @hookspecs.hookimpl
    def lightning_install(self) -> Callable[[], None]:
        self.installed = True
        return lambda: setattr(self, "installed", False)

    @hookspecs.hookimpl
    def lightning_attach(self, target: object) -> object:
        return ["attached", target] if target == "mine" else None

    @hookspecs.hookimpl
    def lightning_register(self, register: hookspecs.Register) -> None:
        for kind in KINDS:
            register(kind, "mine", "fractions:Fraction")


def test_every_hook_has_a_section_with_its_arguments_and_a_paragraph() -> None:
    sections = dict(section.split("`\n\n", 1) for section in PAGE.read_text().split("## `")[1:])
    signatures = {f"{name}({', '.join(inspect.signature(hook).parameters)})" for name, hook in HOOKS.items()}
    assert sections.keys() == signatures
    assert all(len(text.split()) > 20 for text in sections.values())


def test_one_plugin_may_implement_them_all() -> None:
    plugins = load_plugins([])
    plugins.add("answering", Answering())
    [info] = [info for info in plugins.list() if info.name == "answering"]
    assert set(info.hooks) == set(HOOKS)


def test_what_was_installed_is_taken_back() -> None:
    plugins, answering = load_plugins([]), Answering()
    plugins.add("answering", answering)
    with plugins.installed():
        assert answering.installed
    assert not answering.installed


def test_who_and_attach_are_asked() -> None:
    plugins = load_plugins([])
    plugins.add("answering", Answering())
    assert plugins.who() == Who("named", 7, "answering")
    assert plugins.attach("mine") == ["attached", "mine"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_registered_part_is_found_by_its_name(kind: hookspecs.Kind) -> None:
    plugins = load_plugins([])
    assert "mine" not in plugins.names(kind)
    plugins.add("answering", Answering())
    assert "mine" in plugins.names(kind)
    assert plugins.part(kind, "mine").__name__ == "Fraction"


def test_the_page_has_a_section_for_each_kind() -> None:
    assert all(f"\n### {kind}\n" in PAGE.read_text() for kind in KINDS)
