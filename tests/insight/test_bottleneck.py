"""Where the time goes: by hand."""

from __future__ import annotations

import pytest

from lightning_core.insight.bottleneck import (
    bottleneck,
    by_agent,
    by_tool,
    cores_share,
    engine_share,
    parts,
    straggling,
)
from lightning_core.records.types import Metrics
from tests.insight.records import call, rollout, tool

SLOW = [
    Metrics(
        run_id="run",
        step=step,
        values={
            "step_seconds": 10.0,
            "collect_seconds": 6.0,
            "update_seconds": 3.0,
            "publish_seconds": 0.5,
            "backend_seconds": 4.0,
        },
    )
    for step in range(4)
]


def test_parts_of_a_step_are_its_whole():
    found = parts(SLOW)
    assert [(one.name, one.seconds, one.share) for one in found] == [
        ("collecting", 24.0, 0.6),
        ("updating", 12.0, pytest.approx(0.3)),
        ("publishing", 2.0, 0.05),
        ("other", 2.0, 0.05),
    ]
    assert engine_share(SLOW) == 0.4
    assert (parts([]), engine_share([])) == ([], None)


def test_waiting_for_the_slowest_is_from_nine_in_ten_to_the_last():
    many = [rollout(n, 1.0, created_at=0.0, finished_at=float(n)) for n in range(1, 10)]
    late = rollout(10, 1.0, created_at=0.0, finished_at=29.0)
    found = straggling([*many, late])
    assert (found.seconds, found.whole, found.slowest) == (20.0, 29.0, ("r10",))
    assert straggling([]).whole == 0.0


def test_agents_and_tools_are_added_up():
    calls = [call(0, 0), call(0, 1), call(0, 2, "critic", ended_at=124.0)]
    assert [(one.name, one.count, one.seconds, one.longest) for one in by_agent(calls)] == [
        ("critic", 1, 20.0, 20.0),
        ("writer", 2, 2.0, 1.0),
    ]
    assert [(one.name, one.count, one.seconds) for one in by_tool([tool(0, 0), tool(0, 1)])] == [
        ("search", 2, 1.0)
    ]


def test_a_finding_says_its_numbers_and_what_to_change():
    found = bottleneck(SLOW, calls=[call(0, 0), call(0, 1)], events=[tool(0, 0)])
    assert [one.about for one in found] == ["agent writer", "collecting", "updating", "tool search"]
    assert found[1].message == "collecting takes 60% of the steps (6.0 s each)"
    assert "concurrency" in found[1].advice
    assert found[0].message == (
        "agent 'writer' takes 80% of the time in calls and tools: 2 times, 1.00 s each, at most 1.00 s"
    )
    assert bottleneck([]) == []


def advice(used: float | None, **machine: object) -> dict[str, str]:
    """Advice about steps whose process used so many seconds of the processor."""
    timed = {} if used is None else {"process_seconds": used}
    steps = [each.model_copy(update={"values": {**each.values, **timed}}) for each in SLOW]
    given = bottleneck(steps, calls=[call(0, 0), call(0, 1)], events=[tool(0, 0)], machine=machine)
    return {one.about: one.advice for one in given}


def test_more_at_once_is_not_advised_where_the_cores_are_full():
    # 18 seconds of two cores in steps of 10 seconds: nine tenths
    timed = Metrics(run_id="run", step=0, values={"step_seconds": 10.0, "process_seconds": 18.0})
    assert cores_share([timed], 2) == 0.9
    assert cores_share(SLOW, 2) is None
    full = advice(18.0, cores=2, accelerators=[])
    assert "more at once is not faster" in full["collecting"]
    assert "staleness" not in full["updating"]
    assert full["agent writer"] == "shorten its prompt or its replies"
    idle = advice(4.0, cores=2, accelerators=[])
    assert "concurrency" in idle["collecting"]
    assert "max_tokens" in idle["agent writer"]


def test_without_a_record_of_the_cores_a_busy_engine_on_a_processor_gets_no_more_at_once():
    assert "more at once is not faster" in advice(None, cores=2, accelerators=[])["collecting"]
    assert "concurrency" in advice(None, cores=2, accelerators=["H200"])["collecting"]
