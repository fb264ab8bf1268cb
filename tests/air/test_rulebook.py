"""From signals to rewards: whose, how much at most, and none where there should be none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.air.base import AIR, DEFAULT_RULES, Records, Signal
from lightning_core.air.rulebook import Rulebook, rule_lines
from lightning_core.credit.base import assign
from lightning_core.credit.whole import per_agent, uniform
from lightning_core.errors import ConfigError, RewardError
from lightning_core.experience.transitions import to_trajectory
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Choice, Reward
from lightning_core.trainer.parts import make_rulebook
from tests.air.records import ROLLOUT, asks, call, run, span, told

PLUGINS = load_plugins([])
PAGE = Path(__file__).parents[2] / "docs/air.md"


def book(**settings: Any) -> Rulebook:
    made = make_rulebook(AIR(**settings), PLUGINS)
    assert made is not None
    return made


def rewards(*items: Any, **settings: Any) -> list[Reward]:
    calls = [item for item in items if hasattr(item, "choices")]
    events = [item for item in items if not hasattr(item, "choices")]
    return book(**settings).rewards(ROLLOUT, calls, events)


def told_of(given: list[Reward]) -> list[tuple[str, str | None, float]]:
    return [(reward.source, reward.call_id, round(reward.value, 9)) for reward in given]


FAILED = run(error="KeyError: 'boat'", error_type="raised", result=None)


def test_a_reward_says_whose_it_is_about_what_by_which_rule_and_why() -> None:
    (reward,) = rewards(call(1, asks()), FAILED)
    assert reward.model_dump(exclude={"created_at"}) == {
        "rollout_id": "r",
        "attempt": 1,
        "value": -0.1,
        "kind": "intermediate",
        "agent": "writer",
        "call_id": "c1",
        "source": "air:tool_raised",
        "reason": "look_up: KeyError: 'boat'",
        "id": None,
    }


def test_the_table_says_what_takes_part_and_what_it_is_worth() -> None:
    calls = call(1, asks()), call(2, asks("t2", name="ghost"))
    assert told_of(rewards(*calls, FAILED)) == [
        ("air:tool_raised", "c1", -0.1),
        ("air:unknown_tool", "c2", -0.4),
    ]
    assert told_of(rewards(*calls, FAILED, rules={"tool_raised": -0.3})) == [("air:tool_raised", "c1", -0.3)]
    assert told_of(rewards(*calls, FAILED, rules={"unknown_tool": 0.0})) == [("air:unknown_tool", "c2", 0.0)]
    assert rewards(*calls, FAILED, rules={}) == []


def test_of_several_signals_about_one_request_the_strongest_counts() -> None:
    bad = call(1, asks(arguments={}))
    assert told_of(rewards(bad, FAILED)) == [("air:invalid_arguments", "c1", -0.4)]
    sql = call(1, asks(name="look_up", arguments={"word": "SELECT x"}))
    refused = span("OperationalError: no such column: x", db__statement="SELECT x")
    assert told_of(rewards(sql, FAILED, refused)) == [("air:sql_error", "c1", -0.4)]
    two = call(1, asks(), asks("t2", arguments={"word": "oar"}))
    both = rewards(two, FAILED, FAILED.model_copy(update={"id": "e2", "tool_call_id": "t2"}))
    assert told_of(both) == [("air:tool_raised", "c1", -0.1)] * 2


def test_signals_that_are_worth_nothing_are_counted_beside_the_strongest() -> None:
    bad = call(1, asks(arguments={}))
    counted = {"tool_raised": 0.0, "invalid_arguments": -0.4, "unknown_tool": 0.0}
    assert told_of(rewards(bad, FAILED, rules=counted)) == [
        ("air:tool_raised", "c1", 0.0),
        ("air:invalid_arguments", "c1", -0.4),
    ]
    given = rewards(bad, FAILED, rules={"tool_raised": 0.0, "invalid_arguments": 0.0})
    lines = rule_lines([ROLLOUT], {"r": given})
    assert [(line.rule, line.count, line.total) for line in lines] == [
        ("invalid_arguments", 1, 0.0),
        ("tool_raised", 1, 0.0),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"trained": False},
        {"status": "failed"},
        {
            "choices": [
                Choice(index=i, message={"tool_calls": [asks()]}, finish_reason="length") for i in (0, 1)
            ]
        },
    ],
    ids=["not trained", "not completed", "two choices"],
)
def test_other_calls_get_no_reward(changes: dict[str, Any]) -> None:
    own = [Signal("c1", "mine", reward=-0.1), Signal("nobody", "at all", reward=-0.1)]
    assert rewards(call(1, asks(), **changes), FAILED, functions=[lambda records: own]) == []


def test_functions_of_the_user_s_own_are_rules() -> None:
    def polite(records: Records) -> Iterator[Signal]:
        for each in records.calls:
            if "please" in str(each.choices[0].message["content"]):
                yield Signal(each.id, "it said please", reward=0.1)

    calls = call(1, text="now!"), call(2, text="please")
    assert told_of(rewards(*calls, functions=[polite])) == [("air:polite", "c2", 0.1)]


def test_a_function_sees_which_call_a_tool_run_belongs_to() -> None:
    def slow(records: Records) -> Iterator[Signal]:
        for event in records.events:
            if event.call_id and event.ended_at - event.started_at > 1:
                yield Signal(event.call_id, "slow", reward=-0.1)

    late = run(ended_at=9.0)
    unlinked = late.model_copy(update={"id": "e2", "tool_call_id": "t9"})
    quick = run("t2", id="e3")
    calls = call(1, asks(), asks("t2", arguments={"word": "oar"}))
    given = rewards(calls, late, unlinked, quick, functions=[slow])
    assert told_of(given) == [("air:slow", "c1", -0.1)]


def _broken(records: Records) -> list[Signal]:
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (_broken, r"'_broken' in rollout 'r' failed: KeyError\('mine'\)"),
        (lambda records: [Signal("c1", "?")], "does not say what its signal is worth"),
        (lambda records: [Signal("c1", "?", reward=float("nan"))], "gave nan"),
        (
            lambda records: [Signal("c1", "?", reward=-1e10)],
            r"rollout 'r' gave -10000000000\.0; .* from -1e9 to 1e9",
        ),
    ],
)
def test_a_rule_that_fails_is_an_error_with_its_name(function: Any, named: str) -> None:
    with pytest.raises(RewardError, match=named):
        rewards(call(1), functions=[function])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rules": {"tool_rased": -0.1}}, "'tool_rased'.*did you mean 'tool_raised'"),
        ({"rules": {"tool_raised": float("inf")}}, "'tool_raised' is worth inf"),
        ({"rules": {"tool_raised": -1e200}}, r"'tool_raised' is worth -1e\+200.* from -1e9 to 1e9"),
        ({"bound": 1e10}, "bound=10000000000.0"),
        ({"bound": 0.0}, "bound=0.0"),
    ],
)
def test_a_setting_that_can_not_be_honoured_is_refused_at_start(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        book(**settings)


def test_every_rule_of_the_default_table_is_registered_and_only_takes_away() -> None:
    assert sorted(DEFAULT_RULES) == sorted(PLUGINS.names("air"))
    assert all(-0.5 <= worth < 0 for worth in DEFAULT_RULES.values())
    assert make_rulebook(None, PLUGINS) is make_rulebook(False, PLUGINS) is None


# the bound ------------------------------------------------------------------------------------
worths = st.lists(st.floats(-3, 3), max_size=12)


def of_worths(given: list[float], bound: float | None = 0.5) -> list[float]:
    signals = [Signal("c1", "?", reward=worth) for worth in given]
    return [reward.value for reward in rewards(call(1), functions=[lambda records: signals], bound=bound)]


@given(worths, st.floats(0.01, 2))
def test_no_part_of_a_rollout_s_rewards_exceeds_the_bound_and_proportions_stay(
    given: list[float], bound: float
) -> None:
    values = of_worths(given, bound)
    assert sum(map(abs, values)) <= bound + 1e-9
    total = sum(map(abs, given))
    share = min(1.0, bound / total) if total else 1.0
    assert values == pytest.approx([share * worth for worth in given])


@given(worths, worths, st.floats(-2, 2), st.floats(1, 3))
def test_the_order_of_two_rollouts_whose_final_rewards_differ_by_one_never_flips(
    better: list[float], worse: list[float], final: float, lead: float
) -> None:
    assert final + lead + sum(of_worths(better)) >= final + sum(of_worths(worse)) - 1e-9


@given(st.lists(st.sampled_from(sorted(DEFAULT_RULES.values())), max_size=12))
def test_with_the_default_table_the_better_rollout_stays_ahead_by_half(given: list[float]) -> None:
    assert 1.0 + sum(of_worths(given)) >= 0.0 + 0.5 - 1e-9


def test_without_a_bound_the_table_is_taken_at_its_word_and_a_reason_tells_what_was_scaled() -> None:
    assert of_worths([-0.4, -0.6], None) == [-0.4, -0.6]
    signals = [Signal("c1", "cold", reward=-0.4), Signal("c1", "wet", reward=-0.6)]
    given = rewards(call(1), functions=[lambda records: signals])
    assert [reward.reason for reward in given] == [
        "cold (-0.4 before the bound)",
        "wet (-0.6 before the bound)",
    ]
    assert [reward.value for reward in given] == pytest.approx([-0.2, -0.3])


# credit ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("credit", [uniform, per_agent])
def test_what_an_agent_that_is_not_trained_does_changes_nobody_s_credit(credit: Any) -> None:
    def advantages(*events: Any) -> dict[Any, float | None]:
        group = []
        for number in range(3):
            rollout = ROLLOUT.model_copy(update={"id": f"r{number}", "reward": float(number)})
            calls = [
                call(1, text="hello", rollout_id=rollout.id),
                call(2, asks(), rollout_id=rollout.id, agent="checker", trained=False),
                call(3, text="hm", prompt=told("t1", "fine"), rollout_id=rollout.id),
            ]
            mine = [event.model_copy(update={"rollout_id": rollout.id}) for event in events[:number]]
            given = book().rewards(rollout, calls, mine)
            group.append(to_trajectory(rollout, calls, given))
        credited, _ = assign(group, credit)
        return {t.key: t.advantage for each in credited for t in each.transitions}

    assert advantages(FAILED, FAILED) == advantages()


def test_the_page_s_table_is_the_default_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (-[\d.]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [(name, float(worth)) for name, worth in rows] == list(DEFAULT_RULES.items())
