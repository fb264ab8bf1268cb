"""`agentlightning try`, `why`, `whatif` and `report`, on the small job."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lightning_core.dialects import transcript
from lightning_core.stores.sqlite import SqliteStore

SCRIPT = Path(__file__).parent / "small_job.py"
DIFFERING = Path(__file__).parents[1] / "console" / "job.py"
"""The same, with rewards that differ in every group."""


def test_try_shows_calls_and_rewards_and_keeps_nothing(call, tmp_path):
    status, said = call("try", SCRIPT, "--tasks", 2)
    assert status == 0, said
    assert said.count("writer") >= 4  # two tasks, each sampled and greedy
    assert "reward" in said
    assert "sampled, after 0 updates: succeeded" in said
    assert "greedy, after 0 updates: succeeded" in said
    assert "nothing was trained or kept" in said
    assert list(tmp_path.iterdir()) == []


async def first_words(run: Path) -> set[str]:
    """The first word of each reply of the trained agent."""
    async with SqliteStore(f"sqlite:///{run / 'store.db'}") as store:
        rollouts = await store.find_rollouts(run.name, split="train")
        calls = await store.get_calls([one.id for one in rollouts])
    replies = [transcript.text(transcript.replies(one)) for of in calls.values() for one in of if one.trained]
    return {(reply.split() or [""])[0] for reply in replies}


def test_try_says_what_to_do_where_nothing_is_earned(call, tmp_path):
    script = tmp_path / "poor.py"
    script.write_text(SCRIPT.read_text().replace("return float(length % 3)", "return 0.0"))
    status, said = call("try", script, "--tasks", 2)
    assert status == 0, said
    assert "None of 4 rollouts earned anything" in said
    assert "hold it to a schema (response_format;" in said


def test_try_says_that_a_misspelt_agent_would_end_the_training(call, tmp_path):
    script = tmp_path / "misspelt.py"
    script.write_text(SCRIPT.read_text().replace('agents=["writer"]', 'agents=["wirter"]'))
    status, said = call("try", script)
    assert status == 0, said
    assert "training would end: agents=['wirter']: no call so far came from 'wirter'" in said
    assert "did you mean 'writer'?" in said
    assert "training would end" not in call("try", SCRIPT)[1]


def test_a_trained_run_is_asked_why_and_what_if(call, tmp_path):
    run = tmp_path / "run"
    assert call("train", DIFFERING, "--folder", run, "--steps", 1)[0] == 0
    status, said = call("why", run, "worst")
    assert status == 0, said
    assert "advantage" in said
    status, said = call("whatif", run, "--step", 1, "--baseline", "none", "--scale", "none")
    assert status == 0, said
    assert "calls would have another advantage" in said
    changed = said.splitlines()[4].split()
    assert changed[2] in asyncio.run(first_words(run))
    assert "give --credit" in call("whatif", run)[1]
    assert "--scale 'ten' is none of" in call("whatif", run, "--scale", "ten")[1]
    (run / "report.html").unlink()
    assert call("report", run)[0] == 0
    assert (run / "report.html").stat().st_size > 10_000


def test_rollouts_are_found_by_a_field_of_their_task(call, tmp_path):
    run = tmp_path / "run"
    assert call("train", SCRIPT, "--folder", run, "--steps", 0)[0] == 0
    question = "List the boats with speed above 7."
    status, said = call("show", run, "--where", f"question={question}")
    assert (status, "2 rollouts" in said) == (0, True), (
        said
    )  # one of three held-out tasks, sampled and greedy
    status, said = call("show", run, "--where", "kind=sold")
    assert (status, "the tasks have question" in said) == (1, True), said
