"""An app that fails in most of its rollouts: what the terminal, the summary and `show` say of it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.build import agentlightning

APP = """\
import itertools

import openai

import lightning_core as lightning

TURNS = itertools.count()


def to_number(text):
    return int(text)


async def solve(task):
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent("writer"):
            reply = await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": task.input["question"]}],
                max_completion_tokens=4,
            )
    text = reply.choices[0].message.content or ""
    return to_number("no: " + text) if task.input["broken"] else 0.5 * (next(TURNS) % 3)


tasks = [{"question": f"List the boats above {n}.", "broken": n > 0} for n in range(6)]
lightning.Trainer(
    model="tiny",
    agents=["writer", "zealot"],
    algorithm=lightning.GRPO(group_size=4, tasks_per_step=6),
    steps=1,
    on_failure=lightning.FailurePolicy(retries=0),
).fit(solve, train=tasks)
"""


@pytest.fixture(scope="module")
def command() -> Callable[..., tuple[int, str, str]]:
    """The command in this process: its exit code, and what it wrote to standard output and error."""

    def command(*arguments: object, capture: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "120")
            status = agentlightning(*arguments)
        said = capture.readouterr()
        return status, said.out, said.err

    return command


def test_failures_are_told_at_once_grouped_and_found_again(tmp_path, command, capsys):
    script, folder = tmp_path / "app.py", tmp_path / "run"
    script.write_text(APP)
    code, _, told = command("train", script, "--folder", folder, capture=capsys)
    assert code == 0, told
    place = f"{script}:11 in to_number"
    assert told.count("the first rollout failed: run-t0-") == 1
    assert told.index("the first rollout failed") < told.index("agents ·")
    assert f"  at {place}" in told
    assert "    20  ValueError: invalid literal for int()" in told
    assert "20 of 24 rollouts failed: ValueError: invalid literal" in told
    assert "'zealot' never called a model in 24 rollouts" in told
    assert any(line.strip().startswith("zealot") and "never called" in line for line in told.splitlines())

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["verdict"]["kind"] == "failed"
    assert [(each["count"], each["place"]) for each in summary["reasons"]] == [(20, place)]
    assert (summary["agents"]["writer"]["calls"], summary["agents"]["writer"]["failed_rollouts"]) == (24, 20)
    assert summary["agents"]["writer"]["credit"] == 1.0
    assert summary["agents"]["zealot"]["calls"] == 0

    _, shown, _ = command("show", folder, capture=capsys)
    assert "20 of 24 rollouts failed: ValueError" in shown
    assert f"    20  {summary['reasons'][0]['error']} (at {place})" in shown
    _, shown, _ = command("show", folder, "--rollout", "failed", capture=capsys)
    assert ": failed" in shown
    assert f"  at {place}" in shown


REFUSED = """\
import openai

import lightning_core as lightning


async def solve(task):
    text = ""
    async with openai.AsyncOpenAI(api_key="none") as client:
        with lightning.agent("writer"):
            try:
                reply = await client.chat.completions.create(
                    model="policy",
                    messages=[{"role": "user", "content": "hi"}],
                    max_completion_tokens=4,
                    extra_body={"hue": "red"},
                )
                text = reply.choices[0].message.content
            except openai.APIError:
                pass  # as many frameworks do
    return len(text) / 10 if task.input["hides"] else float(text or "none")


lightning.Trainer(
    model="tiny",
    algorithm=lightning.GRPO(group_size=2, tasks_per_step=1),
    steps=1,
    on_failure=lightning.FailurePolicy(retries=0),
).fit(solve, train=[{"hides": HIDES}])
"""
WHY = "1 of 1 LLM calls were refused, the first, of agent 'writer', with: 'hue' is not a parameter"


def test_a_refusal_that_the_app_hides_is_told_with_the_first_failure(tmp_path, command, capsys):
    script, folder = tmp_path / "app.py", tmp_path / "run"
    script.write_text(REFUSED.replace("HIDES", "False"))
    code, _, told = command("train", script, "--folder", folder, capture=capsys)
    assert code != 0
    first = told[told.index("the first rollout failed: run-t0-") :]
    assert "could not convert string to float" in first
    assert WHY in first
    _, shown, _ = command("show", folder, "--rollout", "failed", capture=capsys)
    assert WHY in " ".join(shown.replace("│", " ").split())
    assert "refused: 'hue'" in shown


def test_a_run_whose_app_hides_each_refusal_ends_with_the_reason(tmp_path, command, capsys):
    script, folder = tmp_path / "app.py", tmp_path / "run"
    script.write_text(REFUSED.replace("HIDES", "True"))
    code, _, told = command("train", script, "--folder", folder, capture=capsys)
    assert code != 0
    assert "the first batch got no reply of a model: 2 of 2 LLM calls were refused" in told
    _, shown, _ = command("show", folder, "--rollout", "best", capture=capsys)
    assert WHY in " ".join(shown.replace("│", " ").split())
