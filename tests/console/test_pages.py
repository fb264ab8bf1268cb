"""Every page in Chromium, on a finished run: it shows what the store has, at an address of its own."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest

from lightning_core.insight.status import ENDED
from lightning_core.insight.trace import read_traces
from lightning_core.records.types import Call, Rollout, Run
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.folder import RunFolder
from tests.console.conftest import JOB, STEPS, command, opening, serving
from tests.console.test_answers import write_groups

T = TypeVar("T")
SHORT = ("finished/why", "finished/sandbox")


def read(folder: Path, ask: Callable[[SqliteStore], Awaitable[T]]) -> T:
    """Returns the store's answer. Playwright's loop runs in this thread."""

    async def asked() -> T:
        async with SqliteStore(f"sqlite:///{folder}/store.db") as store:
            return await ask(store)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(asked())).result()


def read_rollouts(folder: Path, **wanted: Any) -> list[Rollout]:
    return read(folder, lambda store: store.find_rollouts("finished", **wanted))


def at(address: str, place: str) -> str:
    return f"{address}#/{place}"


def test_the_run_s_page_has_its_numbers(browser: Any, address: str, finished: Path) -> None:
    with opening(browser, address) as page:
        tiles = page.locator(".tiles")
        tiles.wait_for()
        shown = dict(
            zip(tiles.locator("dt").all_inner_texts(), tiles.locator("dd").all_inner_texts(), strict=True)
        )
        assert shown["status"] == "finished"
        assert shown["step"] == f"{STEPS} of {STEPS}"
        assert shown["rollouts"] == f"{len(read_rollouts(finished))} worst"
        assert page.locator("figure.chart canvas").count() >= 3
        last = page.locator("figure.chart", has_text="Seconds of a step").locator(".u-legend")
        assert "collecting" in last.inner_text()


def test_rollouts_are_filtered_by_the_address(browser: Any, address: str, finished: Path) -> None:
    wanted = read_rollouts(finished, step=1, split="train")
    with opening(browser, at(address, "finished/rollouts?split=train&step=1")) as page:
        rows = page.locator("table.rollouts tbody tr")
        rows.first.wait_for()
        ids = [text.split()[-1] for text in rows.all_inner_texts()]
        assert ids == [rollout.id for rollout in reversed(wanted)]
        rewards = [float(text) for text in page.locator("tbody .reward").all_inner_texts()]
        assert rewards == [rollout.reward for rollout in reversed(wanted)]


def test_the_users_own_reward_function_is_tried_on_a_step(browser: Any, address: str, finished: Path) -> None:
    by_step = {one.step: set[float]() for one in read_rollouts(finished, split="train")}
    for one in read_rollouts(finished, split="train"):
        by_step[one.step].add(one.reward or 0.0)
    step = next(step for step, rewards in by_step.items() if len(rewards) > 1)
    with opening(browser, at(address, f"finished/why?step={step}")) as page:
        page.locator("select[name=reward]").select_option("turned")
        page.get_by_role("button", name="What if?").click()
        told = page.locator("section [role=status]")
        told.wait_for()
        assert "calls would have another advantage" in told.inner_text()


def test_the_worst_come_first_when_asked_for(browser: Any, address: str, finished: Path) -> None:
    with opening(browser, at(address, "finished/rollouts")) as page:
        page.locator("select[name=order]").select_option("worst")
        page.wait_for_url("**order=worst")
        page.locator("table.rollouts tbody tr").first.wait_for()
        rewards = [float(text) for text in page.locator("tbody .reward").all_inner_texts()]
        assert rewards == sorted(rewards)
        assert len(rewards) == len(read_rollouts(finished))


def test_a_page_that_is_asked_for_before_the_first_stands_is_shown(browser: Any, address: str) -> None:
    with opening(browser, address) as page:
        held: list[Any] = []
        page.route("**/api/runs*", lambda route: held.append(route))
        page.goto("about:blank")
        page.goto(address.partition("?")[0])
        page.evaluate("location.hash = '#/finished/rollouts'")
        while len(held) < 2:
            page.wait_for_timeout(50)
        for route in held:
            route.continue_()
        page.locator("table.rollouts tbody tr").first.wait_for()
        page.wait_for_timeout(300)
        assert page.url.endswith("#/finished/rollouts")


def test_a_filter_that_fits_nothing_says_so(browser: Any, address: str) -> None:
    with opening(browser, at(address, "finished/rollouts?text=no+such+words")) as page:
        page.get_by_text("No rollout fits this filter.").wait_for()


def test_a_rollout_is_replayed_by_the_keyboard(browser: Any, address: str, finished: Path) -> None:
    rollout = read_rollouts(finished, step=0, split="train")[0]
    calls = calls_of(finished, rollout)
    with opening(browser, at(address, f"finished/rollout/{quote(rollout.id)}")) as page:
        steps = page.locator("button.step")
        steps.first.wait_for()
        assert [call.agent for call in calls] == ["writer", "critic"]
        assert page.locator(".step[aria-current] .who").inner_text().strip() == "writer"
        assert str(calls[0].choices[0].message["content"]).strip() in page.locator(".detail").inner_text()
        assert page.locator(".token").count() == len(calls[0].choices[0].completion_ids or ())
        steps.first.focus()
        page.keyboard.press("ArrowDown")
        page.locator(".step[aria-current]", has_text="critic").wait_for()
        assert page.url.endswith("?at=1")
        assert "not trained" in page.locator(".detail").inner_text()


def test_what_is_current_is_served_only_while_a_gateway_is_up(browser: Any, address: str) -> None:
    with opening(browser, at(address, "finished/models")) as page:
        page.locator("b.good").wait_for()
        assert page.locator("b.good").inner_text() == "● current"
        assert "No gateway is up" in page.locator("main").inner_text()
        assert page.locator("#live").inner_text() == "finished"


def test_one_run_is_compared_with_nothing_and_the_page_says_what_to_do(browser: Any, address: str) -> None:
    with opening(browser, at(address, "finished/compare")) as page:
        page.locator("main pre").wait_for()
        said = page.locator("main").inner_text()
    assert "There is one run here." in said
    assert "--set seed=2" in said


def test_the_list_of_runs_says_why_one_failed(browser: Any, tmp_path: Path) -> None:
    why = "ConfigError: train is empty: give at least one task"
    for name, config in (("broken", {ENDED: why}), ("silent", {})):  # one run alone opens at once
        with RunFolder(tmp_path / name, resume=False) as made:
            made.write_address(None, None)
        failed = Run(id=name, status="failed", config=config)
        read(tmp_path / name, lambda store, failed=failed: store.put_run(failed))
    with serving(str(tmp_path)) as printed, opening(browser, printed) as page:
        row = page.locator("tr", has_text="broken")
        row.wait_for()
        assert row.locator(".status").inner_text() == "failed"
        assert row.locator(".bad").inner_text() == why
        assert not page.locator("tr", has_text="silent").locator(".bad").count()
        assert "Open a run to see whether it learns, and why." in page.locator("main").inner_text()


def calls_of(folder: Path, rollout: Rollout) -> list[Call]:
    (trace,) = read(folder, lambda store: read_traces(store, [rollout]))
    return [node.item for node, _ in trace.walk() if isinstance(node.item, Call)]


def test_every_control_has_a_name(browser: Any, address: str, finished: Path) -> None:
    rollout = read_rollouts(finished, limit=1)[0].id
    for place in ("", "finished/rollouts", f"finished/rollout/{rollout}", "finished/models", *SHORT):
        with opening(browser, at(address, place)) as page:
            page.locator("main h1").first.wait_for(state="attached")
            page.wait_for_timeout(300)
            unnamed = page.evaluate(
                """() => [...document.querySelectorAll('a, button, select, input, summary')].filter((one) =>
                    !(one.innerText || one.textContent || one.ariaLabel || one.labels?.length)
                ).map((one) => one.outerHTML)"""
            )
            assert unnamed == []


CUT = """() => [...document.querySelectorAll('.scroll')].filter((one) =>
    one.scrollWidth > one.clientWidth).length"""
"""Tables of which a part is out of sight."""


@pytest.mark.parametrize("width", [390, 800, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_the_screen(
    browser: Any, address: str, finished: Path, width: int, scheme: str
) -> None:
    rollout = read_rollouts(finished, limit=1)[0].id
    size = {"width": width, "height": 800}
    for place in ("finished", "finished/rollouts", f"finished/rollout/{rollout}", "finished/models", *SHORT):
        with opening(browser, at(address, place), viewport=size, color_scheme=scheme) as page:
            page.locator("main h1").first.wait_for(state="attached")
            page.wait_for_timeout(300)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert width < 800 or page.evaluate(CUT) == 0, place


def test_a_run_that_ended_earlier_shows_its_own_last_value(
    browser: Any, finished: Path, tmp_path: Path
) -> None:
    for name, steps in (("long", 2), ("short", 1)):
        given = (str(JOB), "--folder", str(tmp_path / name), "--steps", str(steps))
        subprocess.run(command("train", *given), check=True, capture_output=True)
    with serving(str(tmp_path)) as printed, opening(browser, at(printed, "long/compare")) as page:
        legend = page.locator("figure.chart", has_text="Training reward of each step").locator(".u-legend")
        legend.get_by_text("(step 1)").wait_for()
        assert [text.split(":")[0] for text in legend.inner_text().splitlines() if "(step 1)" in text]


def test_a_saved_page_opens_from_disk_and_holds_its_rollouts(
    browser: Any, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "page"
    subprocess.run(command("console", str(finished), "--save", str(folder)), check=True)
    rollout = read_rollouts(finished, step=2, split="train")[-1]
    with opening(browser, (folder / "index.html").as_uri()) as page:
        page.locator("figure.chart canvas").first.wait_for()
        page.get_by_role("link", name="Rollouts", exact=True).click()
        page.locator("tr", has_text=rollout.id).get_by_role("link").click()
        page.locator(".score").wait_for()
        assert float(page.locator(".score .reward").inner_text()) == rollout.reward
        assert page.locator("button.step").count() >= 3
        page.get_by_role("link", name="Why").click()
        page.locator(".strip").first.wait_for()
        for target in [link.get_attribute("href") for link in page.locator("td .peers a").all()]:
            page.evaluate("to => { location.hash = to }", target)
            page.locator(".score").wait_for()


def test_from_the_run_two_clicks_lead_to_why_the_worst_was_punished(browser: Any, address: str) -> None:
    with opening(browser, address) as page:
        page.locator(".tiles a", has_text="worst").click()
        page.locator("table.rollouts tbody a").first.click()
        page.locator(".why").first.wait_for()
        assert page.locator(".why").first.inner_text().startswith("advantage")


def test_the_filter_takes_the_step_that_the_table_shows(browser: Any, address: str, finished: Path) -> None:
    wanted = read_rollouts(finished, step=1, split="train")
    with opening(browser, at(address, "finished/rollouts")) as page:
        page.locator("input[name=step]").fill("2")
        page.get_by_role("button", name="Filter").click()
        page.wait_for_url("**step=1")
        rows = page.locator("table.rollouts tbody tr")
        rows.first.wait_for()
        assert rows.count() == len(wanted)
        assert page.locator("input[name=step]").input_value() == "2"


def test_a_held_out_rollout_says_why_it_has_no_advantage(browser: Any, address: str, finished: Path) -> None:
    held_out = read_rollouts(finished, split="validation")[0]
    with opening(browser, at(address, f"finished/rollout/{quote(held_out.id)}")) as page:
        page.get_by_text("it is not trained on").wait_for()


def test_the_page_counts_the_groups_that_taught(browser: Any, tmp_path: Path) -> None:
    own = {"a": ((1.0, 0.0), (1.0, 1.0)), "b": ((0.0, 1.0), (1.0, 1.0)), "c": ((1.0, 1.0), (1.0, 1.0))}
    url = f"sqlite:///{tmp_path}/store.db"
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, write_groups(url, own)).result()
    with serving(url) as printed, opening(browser, at(printed, "r/why?step=0")) as page:
        page.get_by_text("1 of 3 groups differed where they are compared").wait_for()
        for task, shown in (("a", "agents or calls differ"), ("b", "not compared"), ("c", "all equal")):
            assert shown in page.locator("tbody tr", has_text=f"question {task}").inner_text()


def test_a_finished_run_has_its_page_in_its_folder(browser: Any, finished: Path) -> None:
    with opening(browser, (finished / "report.html").as_uri()) as page:
        page.locator(".verdict").wait_for()
        page.get_by_role("link", name="Why").click()
        page.locator(".strip").first.wait_for()
        groups = {rollout.group_id for rollout in read_rollouts(finished, step=0, split="train")}
        assert page.locator("tbody tr").count() == len(groups)
        page.get_by_role("button", name="Step after").click()
        page.wait_for_url("**step=1")
        page.get_by_role("link", name="Time").click()
        page.get_by_text(f"in {STEPS} steps").wait_for()
