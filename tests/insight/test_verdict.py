"""The verdict on a run, and why its rollouts failed: against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import pytest

from lightning_core.insight.failures import group_failures, is_users
from lightning_core.insight.verdict import (
    Evidence,
    difference_interval,
    mean_interval,
    say,
    student,
    verdict,
)
from lightning_core.records.types import Metrics, Rollout, RolloutCount, Sampling, Status, Task

GREEDY = Sampling(temperature=0.0)


def evaluated(rewards: Sequence[float], sampling: Sampling = GREEDY) -> list[Rollout]:
    """One rollout for each reward, of a task of its own; greedy by default."""
    return [
        Rollout(
            id=f"e{n}",
            run_id="r",
            task=Task(id=f"task-{n}", input={}),
            group_id="g",
            step=0,
            split="validation",
            sampling=sampling,
            status=Status.SUCCEEDED,
            reward=reward,
        )
        for n, reward in enumerate(rewards)
    ]


def failed(*errors: str) -> list[Rollout]:
    return [
        Rollout(
            id=f"t{n}",
            run_id="r",
            task=Task(id="task", input={}),
            group_id="g",
            step=0,
            status=Status.FAILED,
            error=error,
        )
        for n, error in enumerate(errors)
    ]


def steps(rewards: Sequence[float], **more: float) -> list[Metrics]:
    """Steps of eight rollouts, all of which got the step's reward, by the agent `writer`."""
    return [
        Metrics(
            run_id="r",
            step=n,
            values={
                "reward": reward,
                "reward_min": reward,
                "reward_max": reward,
                "rollouts": 8.0,
                "agent/writer/calls": 8.0,
                **more,
            },
        )
        for n, reward in enumerate(rewards)
    ]


def counted(succeeded: int, failures: int = 0) -> list[RolloutCount]:
    both = ((Status.SUCCEEDED, succeeded), (Status.FAILED, failures))
    return [
        RolloutCount(step=0, split="train", status=status, count=count, rewarded=0, reward=0.0)
        for status, count in both
    ]


@pytest.mark.parametrize(("freedom", "table"), [(2, 4.3027), (4, 2.7764), (10, 2.2281), (1e9, 1.95996)])
def test_the_quantiles_are_those_of_the_printed_tables(freedom, table):
    assert student(freedom) == pytest.approx(table, rel=0.008)


def test_an_interval_is_the_one_worked_out_by_hand():
    # with 3 and -3: mean 1.2, s = sqrt(24.8 / 4), n = 5: 1.2 ± 2.7764 * 2.49 / sqrt(5) = 1.2 ± 3.0917
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((-1.8917, 4.2917), abs=2e-3)
    # variances 1 and 1 of three each: s = sqrt(2/3), four degrees of freedom: 3 ± 2.7764 * 0.8165
    assert difference_interval([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == pytest.approx((0.7331, 5.2669), abs=1e-3)


@pytest.mark.parametrize("pairs", [3, 5, 8, 20, 40])
@pytest.mark.parametrize(
    ("better", "worse"), [(0.25, 0.25), (0.09, 0.09), (0.05, 0.05), (0.3, 0.0), (0.1, 0.0), (0.5, 0.05)]
)
def test_an_interval_holds_the_true_difference_in_95_of_100_runs_however_few_pairs(pairs, better, worse):
    # exactly: over all numbers of tasks that got better and worse
    held = 0.0
    for up in range(pairs + 1):
        for down in range(pairs + 1 - up):
            ways = comb(pairs, up) * comb(pairs - up, down)
            chance = ways * better**up * worse**down * (1 - better - worse) ** (pairs - up - down)
            low, high = mean_interval([1.0] * up + [-1.0] * down + [0.0] * (pairs - up - down))
            held += chance * (low <= better - worse <= high)
    assert held >= 0.95


def test_three_tasks_that_all_got_better_are_no_verdict():
    told = verdict(Evidence(before=evaluated([0, 0, 0]), after=evaluated([1, 1, 1])))
    assert told.kind == "flat"


def test_held_out_tasks_are_compared_in_pairs():
    # differences 0, 1, 1, 1, with 1 and -1: mean 0.5, s = sqrt(3.5 / 5), 0.5 ± 2.5706 * 0.3416
    told = verdict(Evidence(before=evaluated([1, 0, 0, 0]), after=evaluated([1, 1, 1, 1])))
    assert told.kind == "flat"
    assert told.numbers["low"] == pytest.approx(0.5 - 0.8780, abs=1e-3)
    more = Evidence(before=evaluated([1] + [0] * 7), after=evaluated([1] * 8))
    assert verdict(more).kind == "improved"
    assert verdict(more).sentence.startswith(
        "Improved: held-out reward 0.125 before, 1 after, +0.875 (95 % interval +0.22 to +1.2; 8 tasks"
    )
    back = Evidence(before=more.after, after=more.before)
    assert verdict(back).kind == "worse"


def test_what_is_no_success_rate_is_called_reward():
    told = verdict(Evidence(before=evaluated([0.5, 1.5, 1]), after=evaluated([0.5, 1.5, 1])))
    # differences 0, 0, 0, with 1 and -1: s = sqrt(1 / 2), 0 ± 2.7764 * s / sqrt(5)
    assert (told.kind, told.numbers["high"]) == ("flat", pytest.approx(0.8780, abs=1e-3))
    assert "held-out reward 1 before, 1 after" in told.sentence


def test_without_held_out_tasks_first_and_last_steps_are_compared():
    told = verdict(Evidence(metrics=steps([0.0, 0.1, 0.2, 0.8, 0.9, 1.0])))
    assert told.kind == "improved"
    assert "training reward 0.1 before, 0.9 after" in told.sentence
    assert "first and last 3 steps" in told.sentence


def two_agents(writer: Sequence[float], checker: Sequence[float]) -> list[Metrics]:
    """Steps in which both agents are trained, each with its own reward."""
    both = zip(writer, checker, strict=True)
    return [
        step.model_copy(
            update={
                "values": {
                    **step.values,
                    "agent/checker/calls": 8.0,
                    "agent/writer/trained": 1.0,
                    "agent/checker/trained": 1.0,
                    "agent/writer/reward": first,
                    "agent/checker/reward": second,
                }
            }
        )
        for step, (first, second) in zip(steps([0.0, 0.1, 0.2, 0.8, 0.9, 1.0]), both, strict=True)
    ]


RISING = [0.0, 0.1, 0.2, 0.8, 0.9, 1.0]
LEVEL = [0.5, 0.4, 0.6, 0.5, 0.4, 0.6]


def test_each_trained_agent_is_told_by_its_own_training_reward():
    told = verdict(Evidence(metrics=two_agents(RISING, LEVEL)))
    # variances of 0.01 on both sides, of three each: ± 2.7764 * sqrt(0.02 / 3) = ± 0.2267
    assert told.also == (
        "Agent 'checker': no clear change: training reward 0.5 before, 0.5 after, +0 (95 % interval -0.23 "
        "to +0.23; first and last 3 steps)",
        "Agent 'writer': improved: training reward 0.1 before, 0.9 after, +0.8 (95 % interval +0.57 to "
        "+1; first and last 3 steps)",
    )


def test_agents_that_share_the_reward_are_not_told_apart():
    assert verdict(Evidence(metrics=two_agents(RISING, RISING))).also == ()


def test_an_agent_s_own_held_out_rewards_are_compared_in_pairs():
    before, after = (
        evaluated([0] * 8),
        [one.model_copy(update={"id": f"after-{one.id}"}) for one in evaluated([1] * 8)],
    )
    own = {one.id: {"checker": 0.5} for one in (*before, *after)}
    told = verdict(Evidence(metrics=two_agents(RISING, LEVEL), before=before, after=after, own=own))
    # eight differences of 0, with 1 and -1: s = sqrt(2 / 9), 0 ± 2.2622 * s / sqrt(10) = ± 0.337
    assert told.also[0] == (
        "Agent 'checker': no clear change: held-out reward 0.5 before, 0.5 after, +0 (95 % interval -0.34 "
        "to +0.34; 8 tasks, greedy)"
    )
    assert told.also[1].startswith("Agent 'writer': improved: training reward")


def test_an_agent_of_which_no_call_got_an_advantage_learnt_nothing():
    taught = {"agent/writer/transitions": 8.0, "agent/checker/transitions": 0.0}
    metrics = [
        each.model_copy(update={"values": {**each.values, **taught}}) for each in two_agents(RISING, RISING)
    ]
    told = verdict(Evidence(metrics=metrics))
    assert told.also[0] == "Agent 'checker' learnt nothing: none of its calls got an advantage"
    assert told.also[1].startswith("Agent 'writer': improved")


def searched(chosen: float, low: float, high: float) -> Metrics:
    found = {"reporting/seed": 0.25, "reporting/chosen": chosen, "gain/low": low, "gain/high": high}
    return Metrics(run_id="r", step=0, values={f"search/{name}": value for name, value in found.items()})


def test_a_search_is_told_by_its_own_interval_where_nothing_was_trained():
    better, equal = searched(0.75, 0.25, 0.75), searched(0.5, -0.125, 0.5)
    told = verdict(Evidence(metrics=[better]))
    assert (told.kind, told.numbers["low"], told.numbers["high"]) == ("improved", 0.25, 0.75)
    assert told.sentence.startswith(
        "Improved: the prompts are better than the seed: reward 0.25 with the seed"
    )
    assert verdict(Evidence(metrics=[better, equal])) == told
    told = verdict(Evidence(metrics=[equal]))
    assert (told.kind, told.also) == ("flat", ())
    assert told.sentence.startswith("No better prompts than the seed: reward 0.25 with the seed, 0.5 with")
    assert "search" not in verdict(Evidence(metrics=[better, *steps([0.0] * 3 + [1.0] * 3)])).sentence


def test_too_little_is_said_to_be_too_little():
    told = verdict(Evidence(metrics=steps([0.0, 1.0]), before=evaluated([1.0])))
    assert told.kind == "untold"
    assert "2 steps and 1 held-out task;" in told.sentence


def test_too_few_held_out_tasks_are_not_told_as_none():
    rewards = steps([0.0, 0.1, 0.2, 0.8, 0.9, 1.0])
    both = verdict(Evidence(metrics=rewards, before=evaluated([0.0, 0.0]), after=evaluated([1.0, 1.0])))
    assert "first and last 3 steps, 2 held-out tasks: too few to compare" in both.sentence
    assert "no held-out tasks to compare" in verdict(Evidence(metrics=rewards)).sentence


def test_a_run_without_updates_says_what_it_measured():
    told = verdict(Evidence(before=evaluated([1.0, 0.5])))
    assert told.sentence == "No update: held-out reward 0.75 (greedy, 2 tasks)"


def test_a_model_that_never_earns_anything_is_told_what_to_do():
    told = verdict(Evidence(metrics=steps([0.0] * 9), counts=counted(72)))
    assert told.kind == "never_earned"
    assert told.sentence.startswith("None of 72 rollouts earned anything")
    assert verdict(Evidence(metrics=steps([0.0] * 9), after=evaluated([1.0] * 3))).kind != "never_earned"


def test_equal_rewards_that_are_not_0_teach_nothing_either():
    told = verdict(Evidence(metrics=steps([1.0] * 9), counts=counted(72)))
    assert told.kind == "all_equal"
    assert "the same reward, 1," in told.sentence


def test_a_named_agent_that_never_called_comes_before_what_was_learnt():
    told = verdict(Evidence(metrics=steps([0.0, 0.1, 0.2, 0.8, 0.9, 1.0]), agents=["writ*", "planner"]))
    assert told.kind == "never_called"
    assert "'planner' never called a model in 48 rollouts" in told.sentence
    assert "'writer'" in told.sentence
    assert told.also[0].startswith("Improved")


def test_rollouts_that_a_cache_answered_come_before_their_equal_rewards():
    told = verdict(Evidence(metrics=steps([1.0, 1.0], rollouts_without_calls=6.0), counts=counted(16)))
    assert told.kind == "never_called"
    assert told.sentence.startswith("12 of 16 rollouts ended without a call of a model")
    assert told.numbers == {"silent": 12, "rollouts": 16}
    assert any("got the same reward" in other for other in told.also)
    few = verdict(Evidence(metrics=steps([1.0, 1.0], rollouts_without_calls=1.0), counts=counted(16)))
    assert few.kind == "all_equal"


def test_an_agent_that_got_nothing_but_errors_is_named_although_the_app_went_on():
    rewards, both = [0.0, 0.1, 0.2, 0.8, 0.9, 1.0], ["writer", "helper"]
    calls = {"agent/helper/calls": 2.0, "agent/helper/failed_calls": 2.0, "agent/writer/failed_calls": 1.0}
    told = verdict(Evidence(metrics=steps(rewards, **calls), agents=both))
    assert told.kind == "refused"
    assert told.sentence == "Agent 'helper' got an error for each of its 12 calls, so it learnt nothing"
    assert verdict(Evidence(metrics=steps(rewards, **calls))).kind == "refused", "no names: all are trained"
    assert verdict(Evidence(metrics=steps(rewards, **calls), agents=["writer"])).kind == "improved"


def test_sampling_that_earns_far_less_than_greedy_replies_is_told():
    greedy, sampled = evaluated([1] * 6 + [0] * 2), evaluated([0] * 8, Sampling(temperature=1.0))
    told = verdict(Evidence(before=[*greedy, *sampled], after=evaluated([1] * 8)))
    assert told.kind == "flat"
    assert told.also == (
        "Before training, replies sampled at temperature 1 earned 0, and greedy ones 0.75: training "
        "rollouts may earn more with temperature=0.6",
    )
    assert not verdict(Evidence(before=[*greedy, *sampled], temperature=0.6)).also
    close = evaluated([0] + [1] * 5 + [0] * 2, Sampling(temperature=1.0))
    assert not verdict(Evidence(before=[*greedy, *close])).also


def test_a_lost_reward_is_a_collapse():
    told = verdict(Evidence(metrics=steps([0.0] * 5 + [0.9, 1.0] * 10 + [0.0] * 5)))
    assert told.kind == "collapsed"


def test_most_rollouts_failing_is_the_verdict_and_few_are_said_beside_it():
    errors = [f"ValueError: no {n}\n  at /home/me/app.py:31 in solve" for n in range(19)]
    rewards = steps([0.0, 0.1, 0.2, 0.8, 0.9, 1.0])
    many = verdict(Evidence(metrics=rewards, counts=counted(5, 19), failed=failed(*errors)))
    assert many.kind == "failed"
    assert many.sentence == "19 of 24 rollouts failed: ValueError: no 0 (at /home/me/app.py:31 in solve)"
    few = verdict(Evidence(metrics=rewards, counts=counted(90, 2), failed=failed(errors[0], "OSError: x")))
    assert few.kind == "improved"
    assert few.also == (
        "2 of 92 rollouts failed: 1 of them with ValueError: no 0 (at /home/me/app.py:31 in solve)",
    )


def test_failures_are_grouped_by_kind_and_by_the_users_line():
    library = "\n  at /usr/lib/python3.11/json/decoder.py:355 in raw_decode"
    found = group_failures(
        failed(
            "TimeoutError: task 'a' took longer than 5 s and was cancelled",
            f"ValueError: bad 1\n  at app.py:7 in parse{library}",
            f"ValueError: bad 2\n  at app.py:7 in parse{library}",
            "ValueError: bad 3\n  at app.py:9 in other",
            "TimeoutError: task 'b' took longer than 5 s and was cancelled",
            f"ValueError: bad 4\n  at app.py:7 in parse{library}",
        )
    )
    assert [(reason.count, reason.place, reason.rollout) for reason in found] == [
        (3, "app.py:7 in parse", "t5"),
        (2, None, "t4"),
        (1, "app.py:9 in other", "t3"),
    ]


@pytest.mark.parametrize("function", ["<module>", "<lambda>", "Shop.<locals>.<listcomp>"])
def test_a_line_outside_every_named_function_is_the_users_too(function):
    library = "\n  at /opt/venv/lib/python3.12/site-packages/openai/_client.py:9 in <lambda>"
    [reason] = group_failures(failed(f"ValueError: bad\n  at /home/me/app.py:7 in {function}{library}"))
    assert reason.place == f"/home/me/app.py:7 in {function}"


def test_failures_that_differ_in_an_address_in_memory_are_one():
    errors = [f"RetryError: <Future at {at} state=finished>" for at in ("0x7f6b63f43a90", "0x7f6b63fe7590")]
    assert [reason.count for reason in group_failures(failed(*errors))] == [2]


@pytest.mark.parametrize(
    ("filename", "users"),
    [
        ("/home/me/app.py", True),
        ("app.py", True),
        ("C:\\work\\app.py", True),
        ("/opt/venv/lib/python3.12/site-packages/openai/_client.py", False),
        ("/usr/lib/python3.11/json/decoder.py", False),
        ("<frozen runpy>", False),
        ("/home/me/agent-lightning-core/plugins/crewai/src/lightning_crewai/steps.py", False),
        ("/home/me/lightning_app/run.py", True),
    ],
)
def test_the_users_code_is_told_by_its_file(filename, users):
    assert is_users(filename) is users


@pytest.mark.parametrize(
    ("value", "said"),
    [(1.5, "1.5"), (2.0, "2"), (0.3333, "0.333"), (0.0012, "0.0012"), (0.0, "0"), (-12.5, "-12.5")],
)
def test_a_reward_is_not_rounded_to_a_whole_number(value, said):
    assert say(value) == said
