"""A misspelt agent is refused early, a rare one stops no run."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import openai
import pytest

import lightning_core as lightning
from lightning_core.errors import ConfigError, TrainingError, UnknownAgentError
from lightning_core.records.types import Call, Metrics
from lightning_core.trainer.loop import PATIENCE, AgentNames
from tests.trainer.watching import PER_STEP, fit, grpo, records


def names(patterns: tuple[str, ...] | None, *seen: str, rollouts: int = 8) -> AgentNames:
    """Returns the names known after so many rollouts, in each of which these agents made a call."""
    found = AgentNames(patterns)
    found.see(
        {
            f"r{n}": [
                Call(id=f"{n}-{name}", rollout_id=f"r{n}", attempt=1, agent=name, trained=True,
                     prompt_ids=[1], choices=[], started_at=0.0, ended_at=1.0)
                for name in seen
            ]
            for n in range(rollouts)
        }
    )  # fmt: skip
    return found


@pytest.mark.parametrize("patterns", [("write_*",), ("check_query", "write_query"), None])
def test_patterns_that_were_all_matched_are_fine(patterns, caplog):
    names(patterns, "write_query", "check_query", rollouts=PATIENCE).check(last=True)
    assert not caplog.records


def refusal(name: str, error: str = "'hue' is not a parameter") -> Call:
    return Call(id=name, rollout_id="r", attempt=1, agent="writer", trained=True, status="refused",
                error=error, started_at=0.0, ended_at=0.0)  # fmt: skip


def test_a_run_whose_calls_were_all_refused_ends_with_the_first_refusal():
    found = AgentNames(None)
    found.see({"r1": [refusal("a"), refusal("b")], "r2": [refusal("c")]})
    said = "3 of 3 LLM calls were refused, the first, of agent 'writer', with: 'hue' is not a parameter"
    with pytest.raises(TrainingError) as caught:
        found.check()
    assert str(caught.value) == f"the first batch got no reply of a model: {said}"


def test_refused_calls_beside_answered_ones_are_said_once_for_each_reason(caplog):
    found = names(("writer",), "writer")
    answered = [refusal("a").model_copy(update={"id": "b", "status": "completed"})]
    for _ in range(2):
        found.see({"r": [refusal("a"), *answered]})
        found.check()
    found.see({"r": [refusal("a", "too long"), *answered]})
    said = "1 of 2 LLM calls were refused, the first, of agent 'writer', with: "
    assert [record.getMessage() for record in caplog.records] == [
        f"{said}'hue' is not a parameter",
        f"{said}too long",
    ]


def test_calls_without_a_name_beside_named_ones_are_said_once(caplog):
    found = names(("writer",), "writer", "unnamed")
    for _ in range(2):
        found.check()
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "some calls have no agent's name"
    ]
    caplog.clear()
    names(("writer", "un*"), "writer", "unnamed").check()
    assert not caplog.records
    with pytest.raises(UnknownAgentError, match=r"'unnamed' are calls that neither a plugin nor"):
        names(("writer",), "unnamed").check(last=True)


@pytest.mark.parametrize("typo", ["rewrite_qurey", "rewite_query", "Rewrite_Query", "rewrite-query"])
def test_a_name_that_looks_like_one_that_was_seen_is_refused_at_once(typo):
    with pytest.raises(UnknownAgentError, match=rf"'{typo}'; did you mean 'rewrite_query'.*'write_query'"):
        names(("write_query", typo), "write_query", "rewrite_query").check()


@pytest.mark.parametrize(
    ("patterns", "seen"),
    [
        (("write_query", "rewrite_query"), ("write_query", "check_query")),
        (("rewrite_query",), ("write_query",)),
        (("worker_2",), ("worker_1",)),
        (("worker_b",), ("worker_a",)),
        (("planner", "planer"), ("planner",)),
    ],
)
def test_an_agent_that_was_not_called_yet_is_said_once_and_stops_nothing(patterns, seen, caplog):
    found = names(patterns, *seen)
    for _ in range(3):
        found.check()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    then = "if none does in 256 rollouts, the run ends" if len(patterns) == 1 else "the run continues"
    assert f"no call so far came from {patterns[-1]!r}; {then}" in record.getMessage()


def test_beside_an_agent_that_is_trained_a_missing_one_is_waited_for_to_the_end():
    names(("write_query", "rewrite_query"), "write_query", "check_query", rollouts=9 * PATIENCE).check(
        last=True
    )


def test_where_nobody_is_trained_patience_ends():
    found = names(("planner",), "solver", rollouts=PATIENCE - 1)
    found.check()
    with pytest.raises(UnknownAgentError, match=r"'planner' in 255 rollouts. Agents seen: 'solver'"):
        found.check(last=True)
    found.see({"one more": []})
    with pytest.raises(UnknownAgentError, match="in 256 rollouts"):
        found.check()


def test_what_was_seen_before_a_resume_counts():
    found = AgentNames(("planner", "solver"))
    values = {"rollouts": 64.0, "agent/planner/calls": 3.0, "agent/team/lead/calls": 1.0, "reward": 1.0}
    found.remember([Metrics(run_id="r", step=0, values=values)])
    assert (found.rollouts, found.seen) == (64, {"planner", "team/lead"})


def test_an_app_that_calls_nobody_is_refused_at_once():
    with pytest.raises(UnknownAgentError, match="no LLM call"):
        names(None).check()


class App:
    """Calls `rare` instead of `writer` from its rollout number `since` on."""

    def __init__(self, since: int) -> None:
        self.since, self.rollouts = since, 0
        self.seen: Counter[str] = Counter()

    async def __call__(self, task: lightning.Task) -> float:
        number, self.rollouts = self.rollouts, self.rollouts + 1
        name = "writer" if number < self.since else "rare"
        self.seen[name] += 1
        async with openai.AsyncOpenAI(api_key="none") as client:
            with lightning.agent(name):
                await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": "go"}], max_completion_tokens=2
                )
        return float(number % 2)


def test_a_run_whose_first_batches_have_no_call_of_the_trained_agent_goes_on_until_there_is_one(
    tmp_path: Path,
):
    app = App(since=4 * PER_STEP)
    fit(tmp_path / "run", grpo(), app, agents=["rare"])
    found = records(tmp_path / "run").metrics
    assert app.seen == {"writer": 4 * PER_STEP, "rare": PER_STEP}
    assert [found[step].values.get("skipped_updates", 0) for step in range(5)] == [1, 1, 1, 1, 0]
    assert found[4].values["agent/rare/transitions"] == PER_STEP


def test_a_misspelt_agent_ends_the_run_before_anything_is_learnt(tmp_path: Path):
    with pytest.raises(UnknownAgentError, match="did you mean 'writer'"):
        fit(tmp_path / "run", grpo(), App(since=1000), agents=["wirter", "rare"])
    assert not records(tmp_path / "run").metrics


def test_if_all_fail_calls_that_went_to_another_endpoint_are_said(tmp_path: Path):
    async def app(task: lightning.Task) -> float:
        async with openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0) as client:
            with lightning.agent("author"):
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "go"}])
        return 1.0

    with pytest.raises(
        TrainingError, match=r"failed calls of 'author', who is not trained, went to http://127"
    ):
        fit(tmp_path / "run", grpo(), app, agents=["writer"])


async def program(task: lightning.Task) -> float:
    """Plays a program that can't be touched: every call goes to one address, with a system prompt."""
    own = lightning.environment()
    async with openai.AsyncOpenAI(base_url=own["OPENAI_BASE_URL"], api_key=own["OPENAI_API_KEY"]) as client:
        for system in ("You search files.", "You write."):
            await client.responses.create(model="m", instructions=system, input="go", max_output_tokens=2)
    return 0.0


def test_a_rule_of_the_run_names_the_calls_of_a_program_and_a_resumed_run_keeps_it(tmp_path: Path):
    names = {"explorer": "search files"}
    given = {"agents": ["explorer"], "steps": 1, "names": names}
    fit(tmp_path / "run", grpo(), program, **given)
    calls = [call for found in records(tmp_path / "run").calls.values() for call in found]
    assert Counter((call.agent, call.trained) for call in calls) == {
        ("explorer", True): PER_STEP,
        ("unnamed", False): PER_STEP,
    }
    with pytest.raises(ConfigError, match="these differ from before: names"):
        fit(tmp_path / "run", grpo(), program, **{**given, "names": {}, "steps": 2, "resume": True})
