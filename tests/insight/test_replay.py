"""A rollout as rows: every record once, with its place, its time and why it was credited."""

from __future__ import annotations

from lightning_core.credit.uniform import uniform
from lightning_core.insight.replay import replay
from lightning_core.insight.why import Method, why
from lightning_core.trace import build
from tests.insight.records import reward, step, tool

OF = step(
    [1.0, 0.0],
    calls=3,
    given=[reward(0, -0.1, 1)],
    tools=[tool(0, 1, error="no such table", error_type="raised"), tool(0, 0, ended_at=103.5)],
)
TRACE = build(OF.rollouts[0], OF.calls["r0"], OF.rewards["r0"], OF.events["r0"])


def test_each_record_is_a_row_under_the_one_it_belongs_to():
    rows = replay(TRACE)
    assert [(one.number, one.parent, one.depth, one.kind, one.agent) for one in rows] == [
        (1, None, 0, "call", "writer"),
        (2, 1, 1, "tool", "writer"),
        (3, None, 0, "call", "writer"),
        (4, 3, 1, "tool", "writer"),
        (5, 3, 1, "reward", "writer"),
        (6, None, 0, "call", "writer"),
    ]
    assert [(one.start, one.seconds) for one in rows] == [
        (0.0, 1.0),
        (1.0, 2.5),
        (2.0, 1.0),
        (3.0, 0.5),
        (None, None),
        (4.0, 1.0),
    ]
    assert [(one.tokens_read, one.tokens_written) for one in rows if one.kind == "call"] == [(3, 2)] * 3
    assert [one.value for one in rows[2].signals] == [-0.1]


def test_what_waited_for_nothing_that_was_recorded_says_how_long():
    # the first tool runs until 3.5, so only the last call, at 4, had nothing running before it
    assert [one.waited for one in replay(TRACE)] == [0.0, 0.0, 0.0, 0.0, 0.0, 0.5]


def test_a_call_says_why_it_has_its_advantage():
    answers = why(OF.trajectories(), Method(uniform, scale="none"))
    rows = replay(TRACE, answers)
    reasons = [reason for one in rows for reason in one.reasons]
    assert [reason.advantage for reason in reasons] == [0.45] * 3
    assert sum(reason.share for reason in reasons) == 0.5
    assert not replay(TRACE)[0].reasons
