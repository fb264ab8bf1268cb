"""The sandbox: two versions on the same tasks by the app itself, beside the run and never in it."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import httpx

from tests.console.conftest import STEPS, opening
from tests.console.test_pages import at, read, read_rollouts

SECONDS = 240_000.0
TASKS, SAMPLES = 3, 2


def test_two_versions_are_tried_on_the_same_tasks(browser: Any, address: str, finished: Path) -> None:
    before = read_rollouts(finished)
    with opening(browser, at(address, "finished/sandbox")) as page:
        page.on("dialog", lambda asked: asked.accept())
        page.get_by_role("button", name="Try").click()
        page.locator("section .status.finished").wait_for(timeout=SECONDS)
        shown = page.locator("section .verdict").inner_text()
        page.get_by_role("link", name="its rollouts").click()
        rows = page.locator("table.rollouts tbody tr")
        rows.first.wait_for()
        assert rows.count() == TASKS * SAMPLES * 2
    tried = read(finished, lambda store: store.find_rollouts("finished-try-1"))
    arms = [[one for one in tried if one.policy_version == version] for version in (0, STEPS)]
    assert [len(arm) for arm in arms] == [TASKS * SAMPLES] * 2
    assert {one.task.id for one in arms[0]} == {one.task.id for one in arms[1]}
    assert {one.error for one in tried} == {None}
    means = [fmean(one.reward or 0.0 for one in arm) for arm in arms]
    assert shown.startswith(f"A {figure(means[0])}, B {figure(means[1])}: ")
    calls = read(finished, lambda store: store.get_calls([one.id for one in tried]))
    answered = {(one.policy_version, call.policy_version) for one in tried for call in calls[one.id]}
    assert {pair for pair in answered if pair[1] is not None} == {(0, 0), (STEPS, STEPS)}
    assert read_rollouts(finished) == before


def figure(value: float) -> str:
    """As the page writes it."""
    return f"{value:.0f}" if value.is_integer() else f"{value:.3f}"


def test_a_trial_of_nothing_is_refused(address: str, finished: Path) -> None:
    base = address.partition("?")[0]
    side = '{"version": 0, "prompts": {}}'
    asked = {"run": "finished", "a": side, "b": side, "tasks": "none", "samples": 1}
    known = read(finished, lambda store: store.list_runs())
    with httpx.Client(base_url=base, trust_env=False, follow_redirects=True) as client:
        assert client.post("/api/try", json=asked).status_code == 401
        client.get(address)
        reply = client.post("/api/try", json=asked)
        assert (reply.status_code, "0 tasks" in reply.json()["error"]) == (400, True)
        reply = client.post("/api/save", json={"run": "finished", "name": "writer", "text": "Be brief."})
        assert (reply.status_code, "declared no prompt" in reply.json()["error"]) == (400, True)
    assert read(finished, lambda store: store.list_runs()) == known
