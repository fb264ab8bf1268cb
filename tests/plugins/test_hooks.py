"""Every hook is documented, and exercised by a test that goes through it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from lightning_core import hookspecs
from lightning_core.plugins import load_plugins
from lightning_core.types import Who

PAGE = Path(__file__).parents[2] / "docs" / "plugins" / "README.md"
HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("lightning_")}
PARTS = {
    "lightning_register_stores": "store",
    "lightning_register_backends": "backend",
    "lightning_register_credit": "credit",
    "lightning_register_algorithms": "algorithm",
    "lightning_register_air": "air",
    "lightning_register_executors": "executor",
    "lightning_register_alerts": "alert",
    "lightning_register_trackers": "tracker",
}


class Answering:
    """Implements every hook."""

    @hookspecs.hookimpl
    def lightning_who(self) -> Who:
        return Who("named", 7, "answering")

    @hookspecs.hookimpl
    def lightning_attach(self, target: object) -> object:
        return ["attached", target] if target == "mine" else None

    @hookspecs.hookimpl
    def lightning_register_stores(self, register: hookspecs.Register) -> None:
        register("mine", "fractions:Fraction")

    @hookspecs.hookimpl
    def lightning_register_backends(self, register: hookspecs.Register) -> None:
        register("mine", "fractions:Fraction")

    @hookspecs.hookimpl
    def lightning_register_credit(self, register: hookspecs.Register) -> None:
        register("mine", "fractions:Fraction")

    @hookspecs.hookimpl
    def lightning_register_algorithms(self, register: hookspecs.Register) -> None:
        register("mine", "fractions:Fraction")

    @hookspecs.hookimpl
    def lightning_register_air(self, register: hookspecs.Register) -> None:
        register("mine", "fractions:Fraction")

    @hookspecs.hookimpl
    def lightning_register_executors(self, register: hookspecs.Register) -> None:
        register("mine", "fractions:Fraction")

    @hookspecs.hookimpl
    def lightning_register_alerts(self, register: hookspecs.Register) -> None:
        register("mine", "fractions:Fraction")

    @hookspecs.hookimpl
    def lightning_register_trackers(self, register: hookspecs.Register) -> None:
        register("mine", "fractions:Fraction")


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


def test_who_and_attach_are_asked() -> None:
    plugins = load_plugins([])
    plugins.add("answering", Answering())
    assert plugins.who() == Who("named", 7, "answering")
    assert plugins.attach("mine") == ["attached", "mine"]


@pytest.mark.parametrize("hook", sorted(HOOKS.keys() - {"lightning_who", "lightning_attach"}))
def test_a_registered_part_is_found_by_its_name(hook: str) -> None:
    plugins = load_plugins([])
    assert "mine" not in plugins.names(PARTS[hook])
    plugins.add("answering", Answering())
    assert "mine" in plugins.names(PARTS[hook])
    assert plugins.part(PARTS[hook], "mine").__name__ == "Fraction"
