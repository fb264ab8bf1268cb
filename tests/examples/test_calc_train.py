"""The training script and the app for real: AutoGen, gateway, local backend and the shipped policy."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from examples.calc.problems import Problem
from examples.calc.tasks import generate_split
from lightning_core.records.types import Call, Rollout
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.summary import Summary
from recipes.calc.corpus import SHARES, show_solving

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "examples/calc/policy"
TASKS = generate_split("test")[:24]
Greedy = list[tuple[Problem, Rollout, list[Call]]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, Greedy]:
    """A run of one step on a folder in the layout of Calc-gsm8k, as a user would start it, and its greedy
    rollouts before that step."""
    folder = tmp_path_factory.mktemp("calc")
    write(folder / "Calc-gsm8k" / "data" / "train-00000-of-00001.jsonl", generate_split("train")[:8])
    write(folder / "Calc-gsm8k" / "data" / "test-00000-of-00001.jsonl", TASKS)
    command = [sys.executable, "-m", "lightning_core.cli", "train", "examples/calc/train.py", "--steps", "1"]
    command += ["--folder", str(folder / "run"), "--", "--data", str(folder / "Calc-gsm8k")]
    done = subprocess.run(
        [*command, "--held-out", "test"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    summary = Summary.model_validate_json((folder / "run" / "summary.json").read_bytes())
    return summary, asyncio.run(greedy_rollouts(folder / "run", summary.run))


def write(path: Path, problems: list[Problem]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "id": f"calc-{i}",
            "question": p.text,
            "chain": "",
            "result": p.answer,
            "result_float": float(p.answer),
        }
        for i, p in enumerate(problems)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


async def greedy_rollouts(path: Path, run: str) -> Greedy:
    async with SqliteStore(f"sqlite:///{path / 'store.db'}") as store:
        found = await store.find_rollouts(run, step=0, split="validation")
        rollouts = [rollout for rollout in found if rollout.sampling.temperature == 0]
        calls = await store.get_calls([rollout.id for rollout in rollouts])
    problems = {problem.text: problem for problem in TASKS}
    return [(problems[r.task.input["question"]], r, calls[r.id]) for r in rollouts]


def test_the_script_trains_on_a_folder_in_the_layout_of_calc_gsm8k(finished) -> None:
    summary, rollouts = finished
    assert (summary.rollouts, summary.failures) == (64, 0)
    assert list(summary.after.detail["greedy"].by) == ["calcx"]
    assert len(rollouts) == len(TASKS)


def test_calls_are_named_as_the_agent_is(finished) -> None:
    summary, rollouts = finished
    assert {name: agent.trained for name, agent in summary.agents.items()} == {"solver": True}
    assert summary.agents["solver"].transitions_with_advantage > 0
    assert {call.agent for _, _, calls in rollouts for call in calls} == {"solver"}


def test_plain_problems_are_solved_with_the_calculator(finished) -> None:
    plain = [(r.reward, len(calls)) for problem, r, calls in finished[1] if problem.form not in SHARES]
    assert len(plain) >= 6
    assert plain.count((1.0, 2)) >= 0.75 * len(plain)


def test_the_recipe_was_trained_on_the_prompts_that_autogen_sends(finished) -> None:
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    seen = 0
    for problem, rollout, calls in finished[1]:
        if problem.form in SHARES or rollout.reward != 1.0 or len(calls) != 2:
            continue
        solving = show_solving(problem, "right")
        for call, messages in zip(calls, (solving.messages[:2], solving.messages), strict=True):
            ids = tokenizer.apply_chat_template(
                messages, tools=solving.tools, add_generation_prompt=True, return_dict=False
            )
            assert call.prompt_ids == ids
            seen += 1
    assert seen >= 10


def test_the_second_turn_goes_on_where_the_first_ended(finished) -> None:
    pairs = [calls for _, _, calls in finished[1] if len(calls) == 2]
    assert len(pairs) >= 10
    for first, second in pairs:
        said = [*first.prompt_ids, *first.choices[0].completion_ids]
        assert second.prompt_ids[: len(said)] == said


def test_the_app_knows_nothing_of_the_project_and_the_script_adds_one_line() -> None:
    app, script = ((ROOT / "examples/calc" / name).read_text() for name in ("app.py", "train.py"))
    assert "lightning" not in app.lower()
    assert [line.strip() for line in script.splitlines() if "attach(" in line] == [
        "solver = attach(build_agent(client))"
    ]
    assert script.count("agents=[") == 1
