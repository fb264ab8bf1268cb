"""A copy of the template under another name installs, obeys the laws, and breaks them where it is broken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.testing.copies import NAME, copy_template, install, run_suite

IN_CONTEXT = f'_at_work: ContextVar[Who | None] = ContextVar("lightning_{NAME}_at_work", default=None)'
IN_A_GLOBAL = """
class _Global:
    value: Who | None = None

    def get(self) -> Who | None:
        return self.value

    def set(self, value: Who | None) -> Who | None:
        before, self.value = self.value, value
        return before

    reset = set


_at_work = _Global()
"""
WRONG = {
    "a name in a global": (
        IN_CONTEXT,
        IN_A_GLOBAL,
        {"test_many_rollouts_at_once_never_mix"},
    ),
    "a name that stays": (
        "_at_work.reset(token)",
        "assert token",
        {
            "test_an_app_that_has_ended_leaves_no_name",
            "test_between_a_streams_items_and_after_leaving_it_nobody_is_named",
            "test_the_innermost_scope_names_the_call",
        },
    ),
    "a scope without an order": ("enter_order()", "0", {"test_the_innermost_scope_names_the_call"}),
    "tools that ran well are dropped": (
        "report_tool(call.function.name, result=result, **run)",
        "",
        {"test_every_tool_run_is_reported"},
    ),
    "tools that raised are dropped": (
        "report_tool(call.function.name, error=error, **run)",
        "",
        {"test_a_tool_that_raised_is_reported_with_its_error"},
    ),
    "an id of its own": (
        '"tool_call_id": call.id',
        '"tool_call_id": "1"',
        {"test_a_tool_that_raised_is_reported_with_its_error", "test_every_tool_run_is_reported"},
    ),
    "the framework is imported": (
        "import time\n",
        "import time\nimport openai\n",
        {"test_loading_and_asking_it_imports_no_framework"},
    ),
    "a request is changed": (
        "return await proceed()",
        'agent.client = agent.client.with_options(default_headers={"x-lightning-mine": "1"})\n'
        "            return await proceed()",
        {"test_outside_a_rollout_nothing_is_touched", "test_an_untrained_agent_keeps_its_own_endpoint"},
    ),
}
"""Changes of the adapter, as old and new text, and the laws that each breaks."""
OTHERS = {
    "test_every_tool_run_is_reported",
    "test_loading_and_asking_it_imports_no_framework",
    "test_the_innermost_scope_names_the_call",
}
"""Laws to compare with: they hold where they are not named above."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_template(tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def site(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    install(copy, site)
    return site


def test_nothing_of_the_old_name_is_left(copy: Path) -> None:
    files = [path for path in copy.rglob("*") if path.is_file()]
    assert len(files) == 7
    assert not [path for path in files if "myframework" in (str(path) + path.read_text()).lower()]


def test_a_copy_installs_and_obeys_every_law(copy: Path, site: Path) -> None:
    outcomes, report = run_suite(copy, site)
    assert set(outcomes) == {"PASSED"}, report
    assert outcomes["PASSED"] >= {law for _, _, laws in WRONG.values() for law in laws} | OTHERS


@pytest.mark.parametrize(("right", "wrong", "laws"), WRONG.values(), ids=WRONG)
def test_a_wrong_adapter_breaks_just_the_laws_about_it(
    copy: Path, site: Path, tmp_path: Path, right: str, wrong: str, laws: set[str]
) -> None:
    shutil.copytree(site, tmp_path / "site")
    adapter = tmp_path / "site" / f"lightning_{NAME}" / "adapter.py"
    assert adapter.read_text().count(right) >= 1
    adapter.write_text(adapter.read_text().replace(right, wrong, 1))
    outcomes, report = run_suite(copy, tmp_path / "site", only=" or ".join(laws | OTHERS))
    assert outcomes["FAILED"] == laws, report
    assert outcomes["PASSED"] >= OTHERS - laws
    assert f"{NAME}: " in report or "imports {'openai'}" in report


def test_what_the_tests_do_not_say_is_asked_for_by_name(copy: Path, site: Path, tmp_path: Path) -> None:
    shutil.copytree(copy, tmp_path / "copy")
    tests = tmp_path / "copy" / "tests" / "test_conformance.py"
    right = tests.read_text()
    tests.write_text(right.replace("def run_sync(", "def run_at_once("))
    only = "test_retries_keep_the_call_id"
    outcomes, report = run_suite(tmp_path / "copy", site, only)
    assert outcomes["FAILED"] == {only}
    assert "Orchestra has no run_sync(); write it, or declare lacks = {'sync': 'why'}" in report
    tests.write_text(
        tests.read_text().replace("    modules =", "    lacks = {'sync': 'no'}\n    modules =", 1)
    )
    outcomes, report = run_suite(tmp_path / "copy", site, only)
    assert "FAILED" not in outcomes, report
    assert f"{NAME} lacks 'sync': no" in report
    tests.write_text(tests.read_text().replace("{'sync': 'no'}", "{'synch': 'no'}"))
    _, report = run_suite(tmp_path / "copy", site, only)
    assert "'synch', which is no ability; known: 'async'" in report
    tests.write_text(right.replace("@pytest.fixture\ndef framework", "def framework_of_mine"))
    outcomes, report = run_suite(tmp_path / "copy", site, only)
    assert outcomes["ERROR"] == {only}
    assert "define a fixture `framework` in this module" in report
