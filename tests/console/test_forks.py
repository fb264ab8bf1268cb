"""Go on from a call in the browser: an edited reply, an edited prompt, and what the app then does."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from lightning_core.records.types import TRIED, Call, Rollout
from lightning_core.stores.sqlite import SqliteStore
from tests.console.conftest import command, opening, serving
from tests.console.test_pages import at, read
from tests.console.test_sandbox import SECONDS, figure

SCRIPT = Path(__file__).parents[1] / "cli" / "forking_job.py"
REPLY = "SELECT name FROM boats"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose critic is told what its writer said."""
    folder = tmp_path_factory.mktemp("runs") / "talk"
    subprocess.run(command("train", str(SCRIPT), "--folder", str(folder)), check=True, capture_output=True)
    return folder


Forked = list[tuple[Rollout, list[Call]]]


def read_all(run: Path) -> tuple[Rollout, list[Call], Forked]:
    """The sampled rollout with its calls, and its forks with theirs."""

    async def ask(store: SqliteStore) -> tuple[Rollout, list[Call], Forked]:
        (recorded,) = (one for one in await store.find_rollouts("talk") if one.sampling.temperature)
        trials = [one.id for one in await store.list_runs() if one.config.get(TRIED) == "talk"]
        forks = [one for trial in trials for one in await store.find_rollouts(trial)]
        calls = await store.get_calls([recorded.id, *(one.id for one in forks)])
        return recorded, calls[recorded.id], [(one, calls[one.id]) for one in forks]

    return read(run, ask)


def call_page(address: str, recorded: Rollout, number: int) -> str:
    return at(address, f"talk/rollout/{recorded.id}?at={number}")


def test_an_edited_reply_and_prompt_are_gone_on_from(browser: Any, run: Path) -> None:
    recorded, calls, _ = read_all(run)
    with (
        serving(str(run), "--script", str(SCRIPT)) as address,
        opening(browser, call_page(address, recorded, 0)) as page,
    ):
        page.on("dialog", lambda asked: asked.accept())
        page.get_by_role("button", name="Edit the reply").click()
        box = page.get_by_role("textbox", name="The reply")
        assert box.input_value() == calls[0].choices[0].message["content"]
        box.fill(REPLY)
        page.get_by_role("spinbutton").fill("2")
        page.get_by_role("button", name="Continue").click()
        trial = page.locator(".trial", has_text="your reply")
        trial.locator(".status.finished").wait_for(timeout=SECONDS)
        replied = [one for one in read_all(run)[2] if one[0].sampling.fork and one[0].sampling.fork.reply]
        mean = sum(float(one.reward or 0) for one, _ in replied) / 2
        shown = trial.locator(".verdict").inner_text()
        assert f"with your reply {figure(mean)} (95 % interval" in shown
        trial.locator("summary").first.click()
        said = trial.locator("li pre").all_inner_texts()[:2]
        content = str(replied[0][1][1].choices[0].message["content"])
        assert said == [REPLY, " ".join(content.split())]  # in one line

        page.get_by_role("button", name="Edit the prompt").click()
        box = page.get_by_role("textbox", name="The prompt, as JSON")
        prompt = json.loads(box.input_value())
        assert prompt == {"messages": calls[0].request["messages"]}
        prompt["messages"][0]["content"] = "List the ships."
        box.fill(json.dumps(prompt))
        page.get_by_role("spinbutton").fill("1")
        page.get_by_role("button", name="Continue").click()
        trial = page.locator(".trial", has_text="your prompt")
        trial.locator(".status.finished").wait_for(timeout=SECONDS)
        trial.get_by_role("link", name="the whole rollout").click()
        page.get_by_text("A person wrote the prompt of one call").wait_for()
        page.get_by_text("List the ships.").first.wait_for()
        page.locator(".forks button[title*='a person wrote and its app does not send']").first.wait_for()

        first = replied[0][0]  # and on from there
        page.goto(at(address.partition("?")[0], f"{first.run_id}/rollout/{first.id}?at=1"))
        page.get_by_text("A person wrote the reply at one call").wait_for()
        page.get_by_role("button", name="Sample others").click()
        page.get_by_role("spinbutton").fill("1")
        page.get_by_role("button", name="Continue").click()
        trial = page.locator(".trial", has_text="other replies")
        trial.locator(".verdict").wait_for(timeout=SECONDS)
        assert trial.locator("li .tag").all_inner_texts() == ["version 0"]
    again, after, forks = read_all(run)
    assert (again, after) == (recorded, calls)
    prompted = [own for one, own in forks if one.sampling.fork and one.sampling.fork.prompt]
    assert (len(replied), len(prompted)) == (2, 1)
    for _, (written, critic) in replied:
        assert written.choices[0].message["content"] == REPLY
        assert (written.choices[0].logprobs, written.policy_version, written.trained) == (None, None, False)
        assert critic.request["messages"][0]["content"].startswith(REPLY)  # type: ignore[index,union-attr,call-overload]
        assert critic.choices[0].logprobs
    (sampled, _critic) = prompted[0]
    assert sampled.request == {**calls[0].request, **prompt}


def test_an_app_that_leaves_the_record_is_shown_as_the_verb_shows_it(
    browser: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKING_JOB", "time")
    recorded, calls, _ = read_all(run)
    with (
        serving(str(run), "--script", str(SCRIPT)) as address,
        opening(browser, call_page(address, recorded, 1)) as page,
    ):
        page.on("dialog", lambda asked: asked.accept())
        page.get_by_role("button", name="Sample others").click()
        page.get_by_role("spinbutton").fill("1")
        page.get_by_role("button", name="Continue").click()
        problem = page.locator(".trial p.error")
        problem.wait_for(timeout=SECONDS)
        said = problem.inner_text()
    assert said.startswith("1 of 1 forks can't be compared: the app left the record")
    assert f"differs from call 2 of the record ({calls[1].id}, agent 'critic'): messages[0].content" in said


def test_without_a_script_the_page_shows_the_command_and_nothing_runs(browser: Any, run: Path) -> None:
    recorded, calls, forks = read_all(run)
    with serving(str(run)) as address, opening(browser, call_page(address, recorded, 1)) as page:
        page.get_by_role("button", name="Edit the reply").click()
        page.get_by_role("textbox", name="The reply").fill("it's right")
        shown = page.locator(".forks pre").first.inner_text()
        assert page.get_by_role("button", name="Continue").count() == 0
        given = ["--rollout", recorded.id, "--call", "2", "--samples", "8", "--reply", "it's right"]
        assert shlex.split(shown) == ["agentlightning", "fork", str(SCRIPT), str(run), *given]
        base = address.partition("?")[0]
        asked = {"run": "talk", "id": recorded.id, "call": calls[0].id, "kind": "none", "samples": 1}
        with httpx.Client(base_url=base, trust_env=False, follow_redirects=True) as client:
            assert client.post("/api/fork", json=asked).status_code == 401
            client.get(address)
            reply = client.post("/api/fork", json=asked)
            assert (reply.status_code, "without a script" in reply.json()["error"]) == (400, True)
    assert read_all(run)[2] == forks


def test_forks_that_can_not_be_had_are_refused(run: Path) -> None:
    recorded, calls, forks = read_all(run)
    with (
        serving(str(run), "--script", str(SCRIPT)) as address,
        httpx.Client(base_url=address.partition("?")[0], trust_env=False, follow_redirects=True) as client,
    ):
        client.get(address)
        asked = {"run": "talk", "id": recorded.id, "call": calls[0].id, "kind": "reply", "samples": 1}
        for changed, said in (
            ({"text": ""}, "names no text"),
            ({"kind": "odd", "text": "a"}, "'odd' is none of"),
            ({"text": "a", "samples": 0}, "samples=0 is not from 1"),
            ({"text": "a", "call": "none"}, "has no call 'none'"),
            ({"kind": "prompt", "text": '{"input": []}'}, "whose prompt is in messages"),
        ):
            reply = client.post("/api/fork", json={**asked, **changed})
            assert (reply.status_code in (400, 404), said in reply.json()["error"]) == (True, True), (
                reply.text
            )
    assert read_all(run)[2] == forks
