"""Words of a model or an app are text: no script runs, no picture is fetched, no page breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lightning_core.records.types import Alert, Call, Choice, Metrics, Reward, Rollout, Run, Task, ToolEvent
from lightning_core.stores.sqlite import SqliteStore
from tests.console.conftest import opening, serving

SCRIPT = "</script><script>document.title = 'owned'</script>"
PICTURE = "<img src=http://192.0.2.1/a.png onerror=\"document.title='owned'\">"
MARKDOWN = "![a](http://192.0.2.1/b.png) [b](javascript:alert(1))"
ALL = f"{SCRIPT} {PICTURE} {MARKDOWN} \u202e\u0000 {{{{7*7}}}}".replace("\u0000", "\ufffd")
NAME = "run <b>&'\"/?#%"


async def fill(url: str) -> None:
    async with SqliteStore(url) as store:
        await store.put_run(Run(id=NAME, provenance={"script": ALL, "settings": {"model": ALL}}))
        task = Task(id=ALL[:60], input={"question": ALL})
        made = Rollout(id="a/b?c#d%<i>", run_id=NAME, task=task, group_id="g", step=0)
        await store.enqueue([made])
        (attempt,) = await store.lease("w", 1, 60.0)
        about: dict[str, Any] = {"rollout_id": made.id, "attempt": 1, "agent": PICTURE}
        times = {"started_at": 1.0, "ended_at": 2.0}
        await store.add_call(
            Call(
                id="c", trained=True, model=ALL, error=ALL, prompt_ids=[1], **about, **times,
                request={"messages": [{"role": "<b>user", "content": ALL}], "tools": [{"name": ALL}]},
                choices=[Choice(completion_ids=[1], logprobs=[-1.0], message={"content": ALL})],
            )
        )  # fmt: skip
        await store.add_events(
            [ToolEvent(id="t", name=ALL, arguments=ALL, result=ALL, error=ALL, call_id="c", **about, **times)]
        )
        await store.add_rewards(
            [Reward(rollout_id=made.id, attempt=1, value=-1.0, kind="intermediate", call_id="c", reason=ALL)]
        )
        await store.finish(attempt, reward=0.0, error=ALL)
        await store.put_metrics(
            Metrics(run_id=NAME, step=0, values={f"agent/{PICTURE}/calls": 1.0, "reward": 0.5})
        )
        await store.add_alerts([Alert(run_id=NAME, id="x", rule=ALL, message=ALL)])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file: Path = tmp_path_factory.mktemp("hostile") / "store.db"
    with ThreadPoolExecutor(1) as pool:  # Playwright's loop may run in this thread
        pool.submit(lambda: asyncio.run(fill(f"sqlite:///{file}"))).result()
    with serving(f"sqlite:///{file}") as printed:
        yield printed


def test_every_page_shows_it_as_it_was_written(browser: Any, hostile: str) -> None:
    with opening(browser, hostile) as page:
        page.locator(".tiles").wait_for()
        assert ALL in page.locator(".alerts").text_content()
        page.get_by_role("link", name="Rollouts").click()
        row = page.locator("tbody tr")
        assert "<img src=http" in row.text_content() or "<script>" in row.text_content()
        row.get_by_role("link").click()
        page.locator(".detail h2").wait_for()
        for step in page.locator("button.step").all():
            step.click()
            assert "192.0.2.1" in page.locator(".detail").text_content() or "0" in step.text_content()
        page.locator("button.step").first.click()
        assert ALL in page.locator(".detail").text_content()
        page.get_by_role("link", name="Models").click()
        page.locator("h1", has_text="Versions").wait_for()
        assert "owned" not in page.title()
        assert page.locator("main img, main script, main b:has-text('user')").count() == 0
