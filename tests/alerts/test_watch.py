"""One condition is told once, and again when it has come back; what is broken harms nobody else."""

from __future__ import annotations

import pytest

from lightning_core.alerts.liveness import StuckWorker
from lightning_core.alerts.rules import RewardCollapse, failed_update
from lightning_core.alerts.watch import QUIET, Alerts, Finding, Scene, Watch, make_rule
from lightning_core.errors import ConfigError
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Alert, Member, Metrics
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.trainer.observers import make_rules, to_alerts
from tests.alerts.histories import history


def low(scene: Scene) -> list[Finding]:
    """Finds a reward below 0.5 in the last step."""
    return [Finding("it is low")] if scene.history[-1].values["reward"] < 0.5 else []


def told(watch: Watch, steps: list[Metrics]) -> list[Alert]:
    return [alert for end in range(1, len(steps) + 1) for alert in watch.look(Scene(history=steps[:end]))]


def test_a_condition_is_told_once_while_it_swings_and_again_after_it_was_gone():
    steps = history(reward=[1, 0, 0, 1, 0, 1, *[1] * QUIET, 0, 0])
    alerts = told(Watch("run", {"low": low}), steps)
    assert [(alert.id, alert.step) for alert in alerts] == [("low/step-1", 1), ("low/step-11", 11)]
    assert {(alert.run_id, alert.rule, alert.message) for alert in alerts} == {("run", "low", "it is low")}


def test_a_second_look_at_the_same_step_tells_nothing_new():
    watch, steps = Watch("run", {"low": low}), history(reward=[0])
    assert [len(watch.look(Scene(history=steps))) for _ in range(3)] == [1, 0, 0]


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_resumed_run_tells_the_rest_and_nothing_twice(cut):
    steps = history(reward=[1, 0, 0, 1, 0, 1, *[1] * QUIET, 0, 0])
    whole = [alert.id for alert in told(Watch("run", {"low": low}), steps)]
    first, second = Watch("run", {"low": low}), Watch("run", {"low": low})
    before = told(first, steps[:cut])
    second.recall(steps[:cut])
    after = [alert for end in range(cut, len(steps) + 1) for alert in second.look(Scene(history=steps[:end]))]
    assert [alert.id for alert in before + after] == whole


def test_a_worker_that_falls_silent_again_is_told_again():
    watch = Watch("run", {"stuck_worker": StuckWorker()})

    def look(now: float, seen_at: float) -> list[str]:
        who = Member(run_id="run", role="runner", name="w1", seen_at=seen_at)
        return [a.id for a in watch.look(Scene(now=now, members=[who], running={"r": 1.0}))]

    assert look(1000, 990) == []
    assert look(1200, 990) == ["stuck_worker/runner/w1/990"]
    assert look(1230, 990) == []
    assert look(1240, 1235) == []
    assert look(1400, 1235) == ["stuck_worker/runner/w1/1235"]


def test_a_rule_that_fails_is_left_out_and_the_others_go_on(caplog):
    def broken(scene: Scene) -> list[Finding]:
        raise KeyError("reward")

    watch = Watch("run", {"broken": broken, "low": low})
    assert [alert.rule for alert in told(watch, history(reward=[0, 0]))] == ["low"]
    assert [record.message for record in caplog.records] == [
        "alert rule 'broken' failed and is left out from here on: KeyError('reward')"
    ]


async def test_a_subject_of_any_length_and_kind_is_told_under_an_id_that_a_store_takes():
    subjects = ["t" * 600, "t" * 601, "two\nlines", "half \ud83d", "nul \0"]

    def long(scene: Scene) -> list[Finding]:
        return [Finding("it never earns", subject=subject) for subject in subjects]

    alerts = told(Watch("run", {"long": long}), history(reward=[0]))
    async with MemoryStore() as store:
        assert await store.add_alerts(alerts) == len(subjects)


def test_a_rule_whose_finding_is_no_alert_is_left_out_and_the_others_go_on(caplog):
    def silent(scene: Scene) -> list[Finding]:
        return [Finding(None)]  # type: ignore[arg-type]

    watch = Watch("run", {"silent": silent, "low": low})
    assert [alert.rule for alert in told(watch, history(reward=[0, 0]))] == ["low"]
    assert "alert rule 'silent' failed and is left out" in caplog.text


# settings ---------------------------------------------------------------------------------------
def test_thresholds_are_changed_and_rules_switched_off_by_name():
    setting = Alerts(rules={"reward_collapse": {"drop": 0.6}, "zero_variance": False, "low": low})
    rules = make_rules(setting, load_plugins([]))
    assert rules["reward_collapse"] == RewardCollapse(drop=0.6)
    assert "zero_variance" not in rules
    assert rules["low"] is low
    assert {"entropy_collapse", "stuck_worker", "disk_filling"} <= rules.keys()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"reward_colapse": False}, "reward_collapse"),
        ({"reward_collapse": {"dorp": 1.0}}, "'dorp'.*'drop'"),
        ({"failed_update": {"bound": 1.0}}, "has none"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(rules, words):
    with pytest.raises(ConfigError, match=words):
        make_rules(Alerts(rules=rules), load_plugins([]))


def test_alerts_are_on_off_or_as_given():
    assert to_alerts(True) == Alerts()
    assert to_alerts(False) is None
    given = Alerts(rules={"stuck_worker": False})
    assert to_alerts(given) is given
    with pytest.raises(ConfigError, match="'no'"):
        to_alerts("no")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'stuck_worker'.*rename"):
        make_rules(Alerts(rules={"stuck_worker": low}), load_plugins([]))


def test_a_function_with_thresholds_takes_them_by_name():
    def beyond(scene: Scene, *, bound: float = 0.5) -> list[Finding]:
        return [Finding("beyond")] if scene.history[-1].values["reward"] > bound else []

    steps = history(reward=[0.6])
    assert list(make_rule("beyond", beyond, True)(Scene(history=steps)))
    assert not list(make_rule("beyond", beyond, {"bound": 0.7})(Scene(history=steps)))
    assert make_rule("failed_update", failed_update, True) is failed_update
