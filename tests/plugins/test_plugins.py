"""Plugins are distributions on disk here, found by their entry points like any other."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from lightning_core.cli.runs import plugins as list_plugins
from lightning_core.errors import ConfigError, PluginError
from lightning_core.hookspecs import Register, hookimpl
from lightning_core.plugins import Kind, Plugins, load_plugins
from lightning_core.records.types import Who

Install = Callable[..., None]
HEAD = "from lightning_core.hookspecs import hookimpl\nfrom lightning_core.records.types import Who\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a module and its entry point on the path, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(name: str, source: str, attr: str = "") -> None:
        (tmp_path / f"{name}.py").write_text(HEAD + source)
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[lightning_core]\n{name} = {name}{attr}\n")
        monkeypatch.delitem(sys.modules, name, raising=False)

    return put


GOOD = "@hookimpl\ndef lightning_who(): return Who('good', 1)\n"


def test_a_good_plugin_is_found_with_its_version_and_hooks(install: Install) -> None:
    install("lt_good", GOOD)
    plugins = load_plugins(["lt_good"])
    assert plugins.list()[-1] == ("lt_good", "1.2", ("lightning_who",))
    assert plugins.list()[0].name == "core"
    assert plugins.who() == Who("good", 1)


@pytest.mark.parametrize(
    ("source", "attr", "said"),
    [
        ("import no_such_library\n", "", "No module named 'no_such_library'"),
        ("1 / 0\n", "", "division by zero"),
        ("x = = 1\n", "", "invalid syntax"),
        (GOOD, ":gone", "gone"),
        ("class P: pass\n", ":P", "names the class"),
        ("def lightning_who(): return None\n", "", "implements no hook"),
        ("@hookimpl\ndef lightning_woh(): pass\n", "", "no hook (did you mean 'lightning_who'"),
        ("@hookimpl\ndef lightning_who(request): pass\n", "", "request"),
        ("@hookimpl\ndef lightning_register(register): 1 / 0\n", "", "division by zero"),
        (
            "@hookimpl\ndef lightning_register(register): register('store', 'paper', 'no_colon')\n",
            "",
            "store 'paper' needs a target",
        ),
        (
            "@hookimpl\ndef lightning_register(register): register('stores', 'paper', 'a:B')\n",
            "",
            "'stores' is no kind of part (did you mean 'store'?)",
        ),
        (
            "@hookimpl\ndef lightning_register(register):\n"
            "    register('store', 'paper', 'a:B')\n    register('store', 'paper', 'a:C')\n",
            "",
            "store 'paper' is registered twice",
        ),
    ],
)  # fmt: skip
def test_a_broken_plugin_is_named_and_harms_no_other(
    install: Install, caplog: pytest.LogCaptureFixture, source: str, attr: str, said: str
) -> None:
    install("lt_broken", source, attr)
    install("lt_good", GOOD)
    plugins = load_plugins(["lt_broken", "lt_good"])
    assert [*plugins.broken] == ["lt_broken"]
    assert "'lt_broken'" in str(plugins.broken["lt_broken"])
    assert said in str(plugins.broken["lt_broken"])
    assert said in caplog.text
    assert plugins.who() == Who("good", 1)
    assert [info.name for info in plugins.list()] == ["core", "lt_good"]
    assert "paper" not in plugins.names("store")


def test_what_a_broken_plugin_asks_for_is_listed_whole(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("lt_broken", "raise ImportError(\"pip install 'agent-lightning-core[otel]'\")\n")
    list_plugins()
    assert "pip install 'agent-lightning-core[otel]'" in capsys.readouterr().out


def test_only_the_named_plugins_are_loaded(install: Install) -> None:
    install("lt_good", GOOD)
    install("lt_broken", "1 / 0\n")
    plugins = load_plugins(["lt_good"])
    assert plugins.broken == {}
    assert "lt_broken" not in sys.modules
    with pytest.raises(PluginError, match=r"no plugin 'lt_absent' is installed.*'lt_broken', 'lt_good'"):
        load_plugins(["lt_absent"])


def test_two_plugins_of_one_name_are_both_accounted_for() -> None:
    plugins = Plugins()
    plugins.add("same", SimpleNamespace(lightning_who=hookimpl(lambda: None)))
    with pytest.raises(PluginError, match="a second plugin calls itself 'same'"):
        plugins.add("same", SimpleNamespace(lightning_who=hookimpl(lambda: None)))


def caller(agent: str, entered: int) -> object:
    def lightning_who() -> Who:
        return Who(agent, entered)

    return SimpleNamespace(lightning_who=hookimpl(lightning_who))


def test_the_innermost_answer_wins_in_either_order() -> None:
    for names in (("outer", "inner"), ("inner", "outer")):
        plugins = Plugins()
        for name in names:
            plugins.add(name, caller(name, 7 if name == "inner" else 3))
        assert plugins.who() == Who("inner", 7)
    assert Plugins().who() is None


def test_a_plugin_that_raises_is_ignored_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def lightning_who() -> Who:
        raise RuntimeError("changed internals")

    plugins = Plugins()
    plugins.add("shaky", SimpleNamespace(lightning_who=hookimpl(lightning_who)))
    plugins.add("steady", caller("steady", 1))
    with caplog.at_level(logging.WARNING):
        answers = [plugins.who() for _ in range(3)]
    assert answers == [Who("steady", 1)] * 3
    assert caplog.text.count("'shaky'") == 1


def test_attach_asks_the_plugins_and_says_who_is_there_if_none_takes_it() -> None:
    def lightning_attach(target: object) -> object:
        return ("attached", target) if isinstance(target, int) else None

    plugins = Plugins()
    plugins.add("ints", SimpleNamespace(lightning_attach=hookimpl(lightning_attach)))
    assert plugins.attach(7) == ("attached", 7)
    with pytest.raises(PluginError, match=r"no plugin takes a builtins\.str; installed: 'ints'"):
        plugins.attach("text")


def store_plugin(path: str) -> object:
    def lightning_register(register: Register) -> None:
        register("store", "paper", path)

    return SimpleNamespace(lightning_register=hookimpl(lightning_register))


def test_a_part_of_a_plugin_is_imported_when_asked_for(install: Install) -> None:
    install("lt_paper", "class Paper: pass\n")
    plugins = Plugins()
    plugins.add("paper", store_plugin("lt_paper:Paper"))
    assert "lt_paper" not in sys.modules
    assert plugins.names("store") == ["paper"]
    assert plugins.part("store", "paper").__module__ == "lt_paper"


def test_an_unknown_part_is_an_error_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match=r"'sqlit' \(did you mean 'sqlite'\?\); known: 'http', .*'sqlite'"):
        load_plugins([]).part("store", "sqlit")
    with pytest.raises(ConfigError, match="no kind of part is called 'stores'; kinds: 'store'"):
        load_plugins([]).part("stores", "sqlite")  # type: ignore[arg-type]


def test_a_name_that_two_plugins_claim_is_an_error_naming_both() -> None:
    plugins = Plugins()
    plugins.add("one", store_plugin("a:B"))
    plugins.add("two", store_plugin("c:D"))
    with pytest.raises(PluginError, match="store 'paper' is registered by 'one', 'two'"):
        plugins.part("store", "paper")


@pytest.mark.parametrize("path", ["lt_no_such_module:X", "json:NoSuchName"])
def test_a_part_that_cannot_be_imported_names_its_plugin(path: str) -> None:
    plugins = Plugins()
    plugins.add("paper", store_plugin(path))
    with pytest.raises(PluginError, match=f"store 'paper' of plugin 'paper'.*{path}"):
        plugins.part("store", "paper")


def test_the_cores_own_parts_go_through_the_same_door() -> None:
    plugins = load_plugins([])
    assert [info.name for info in plugins.list()] == ["core"]
    assert {"memory", "redis", "rediss", "sqlite"} <= {*plugins.names("store")}
    assert plugins.names("backend") == ["local", "tinker", "verl"]
    assert plugins.names("credit") == [
        *(
            "anchor",
            "discounted",
            "evidence",
            "gae",
            "hierarchical",
            "per_agent",
            "relevance",
            "state",
            "tabular",
            "turn",
            "uniform",
        ),
    ]
    assert plugins.names("algorithm") == ["dpo", "grpo", "ppo", "reinforce++", "rloo", "sdpo", "sft"]
    for kind in get_args(Kind):
        for name in plugins.names(kind):
            assert callable(plugins.part(kind, name))
