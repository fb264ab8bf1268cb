"""Each rule is silent on what is well, speaks on what is not, and more so the worse it is."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.alerts.liveness import DiskFilling, StuckRollout, StuckWorker
from lightning_core.alerts.rules import (
    EntropyCollapse,
    FailingRollouts,
    FailuresByReply,
    LogprobGap,
    RewardCollapse,
    RolloutsWithoutCalls,
    ZeroVariance,
    failed_update,
    jitter,
    moving_means,
    nothing_earned,
    staleness,
    unseen_calls,
    unusable_groups,
)
from lightning_core.alerts.watch import Scene, Space
from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.records.types import Member
from tests.alerts.histories import first_found, found, history

GOOD = [0.3, 0.4, 0.5, 0.55, 0.65, 0.7, 0.72, 0.8, 0.78, 0.85, 0.9, 0.88]
rewards = st.lists(st.floats(-1, 1), min_size=5, max_size=30)


# reward ---------------------------------------------------------------------------------------
def test_nothing_earned_is_found_after_one_step_and_not_once_something_was():
    none = history(reward_min=[0.0, 0.0], reward_max=[0.0, 0.0], rollouts=[8, 8])
    assert first_found(nothing_earned, none) == 0
    assert "none of 16 training rollouts earned anything" in found(nothing_earned, none)[0]
    assert not found(nothing_earned, history(reward_min=[0.0, 0.0], reward_max=[0.5, 0.0]))
    assert not found(nothing_earned, history(reward_min=[-1.0], reward_max=[0.0]))
    assert not found(nothing_earned, history(demonstrations=[8]))


def test_a_reward_that_is_lost_is_found_when_most_of_a_window_is_low():
    steps = history(reward=[*GOOD, 0.4, 0.1, 0.0, 0.0, 0.0])
    # before the last five the best five came to .77, and these to .456: a fall of .314, more than .4 * .77
    assert first_found(RewardCollapse(), steps) == len(GOOD) + 2
    assert "0.77 to 0.456" in found(RewardCollapse(), steps[:-2])[0]


@pytest.mark.parametrize("shift", [0.0, -1.0])
def test_a_run_that_learns_with_setbacks_is_left_alone_wherever_its_rewards_lie(shift):
    rng = random.Random(3)
    noisy = [reward + shift + rng.gauss(0, 0.1) for reward in [*GOOD, 0.6, 0.7, 0.85, 0.9, 0.7, 0.8, 0.9]]
    assert first_found(RewardCollapse(), history(reward=noisy)) is None


def test_a_reward_that_collapses_from_the_start_on_is_found():
    """As recorded in a run with a hundred times the learning rate that is good for its model."""
    recorded = [0.562, 0.75, 0.781, 0.938, 0.0, 0.125, 0.0, 0.219, 0.031, 0.0, 0.0, 0.0]
    assert first_found(RewardCollapse(), history(reward=recorded)) == 9


@given(rewards, st.lists(st.floats(-1, 1), min_size=5, max_size=5), st.floats(0, 3))
def test_a_deeper_fall_is_found_where_a_shallower_one_is(before, last, deeper):
    shallow = found(RewardCollapse(), history(reward=[*before, *last]))
    deep = found(RewardCollapse(), history(reward=[*before, *(value - deeper for value in last)]))
    assert bool(deep) >= bool(shallow)


@given(st.floats(-10, 10), st.integers(1, 60))
def test_a_reward_that_never_changes_is_no_collapse(value, steps):
    assert not found(RewardCollapse(), history(reward=[value] * steps))


@pytest.mark.parametrize("size", [8, 64])
def test_flat_noise_seldom_looks_like_a_collapse(size):
    """Steps of so many rollouts that are solved half of the time, by chance."""
    rng = random.Random(size)
    runs = [
        history(reward=[sum(rng.random() < 0.5 for _ in range(size)) / size for _ in range(100)])
        for _ in range(50)
    ]
    assert sum(first_found(RewardCollapse(), run) is not None for run in runs) <= 2


def test_jitter_is_the_deviation_of_noise_and_leaves_a_jump_out():
    # differences 1, -1, 1, -1, 1 and then 9: the largest is left out, mean of squares 1, halved
    assert jitter([0, 1, 0, 1, 0, 1, 10]) == pytest.approx(0.5**0.5)
    assert jitter([3.0]) == 0
    assert moving_means([1, 2, 3, 6], 3) == pytest.approx([2, 11 / 3])


# entropy --------------------------------------------------------------------------------------
FALLING = [0.4] * 5 + [0.2, 0.1, 0.05] + [0.01] * 5


def test_a_policy_that_is_sure_and_not_right_is_found_and_one_that_is_right_is_not():
    stuck = history(entropy=FALLING, reward=[0.3] * 5 + [0.6, 0.5, 0.4] + [0.4] * 5)
    right = history(entropy=FALLING, reward=[0.3] * 5 + [0.6, 0.8, 0.9] + [1.0] * 5)
    (told,) = found(EntropyCollapse(), stuck)
    assert "0.4 to 0.01 nats" in told
    advised = re.search(r"GRPO\(entropy=(.+?)\)", told)
    assert advised is not None
    assert GRPO(entropy=float(advised[1])).entropy > GRPO().entropy
    assert not found(EntropyCollapse(), right)


@given(st.lists(st.floats(0.001, 2), min_size=10, max_size=30), st.floats(0, 1))
def test_less_entropy_is_found_where_more_is(entropies, share):
    low = [*entropies[:-5], *(value * share for value in entropies[-5:])]
    flat = [0.5, 0.6] * 15
    reward = [0.9, *flat][: len(entropies)]
    more = found(EntropyCollapse(), history(entropy=entropies, reward=reward))
    less = found(EntropyCollapse(), history(entropy=low, reward=reward))
    assert bool(less) >= bool(more)


# the engine -----------------------------------------------------------------------------------
def test_a_gap_to_the_engine_is_found_at_once_and_half_precision_may_have_more():
    gap = LogprobGap()
    assert not found(gap, history(logprob_gap_mean=[0.3, 0.019]))
    assert not found(gap, history(logprob_gap_mean=[0.3, None]))  # no token was sampled by these weights
    (told,) = found(
        gap,
        history(
            logprob_gap_mean=[1e-6, 0.03],
            logprob_gap_max=[1e-5, 0.4],
            sampled_logprob=[-1.0, -1.25],
            trained_logprob=[-1.0, -1.27],
        ),
    )
    assert "(-1.25 and -1.27 on average) are 0.03 nats apart on average, 0.4 at most" in told
    assert not found(gap, history(logprob_gap_mean=[0.09], half_precision=[1.0]))
    assert found(gap, history(logprob_gap_mean=[0.11], half_precision=[1.0]))
    assert found(gap, history(logprob_gap_mean=[float("nan")]))


def test_staleness_beyond_the_bound_is_found():
    assert not found(staleness, history(staleness_max=[2], staleness_bound=[2]))
    assert not found(staleness, history(staleness_max=[2]))
    assert (
        "3 updates before, and 2 are allowed"
        in found(staleness, history(staleness_max=[3], staleness_bound=[2]))[0]
    )


def test_an_update_that_could_not_be_made_is_found_and_one_with_nothing_to_learn_is_not():
    assert not found(failed_update, history(skipped_updates=[1]))
    assert found(failed_update, history(failed_updates=[1]))
    assert "grad_norm not finite" in found(failed_update, history(grad_norm=[float("inf")]))[0]


def test_groups_whose_numbers_could_not_be_used_are_found():
    assert not found(unusable_groups, history(groups=[8], unusable_groups=[0]))
    assert "2 of 8 groups of step 1" in found(unusable_groups, history(groups=[8], unusable_groups=[2]))[0]


# rollouts -------------------------------------------------------------------------------------
def test_groups_that_are_all_equal_are_found():
    rule = ZeroVariance()
    assert not found(rule, history(groups=[8] * 9, zero_variance_groups=[7] * 9))
    assert not found(rule, history(groups=[8] * 4, zero_variance_groups=[8] * 4))
    said = found(rule, history(groups=[8] * 5, zero_variance_groups=[8] * 5, reward=[0.0] * 5))
    assert "40 of 40 groups" in said[0]


def test_failures_are_found_when_they_rise_or_are_most():
    rule, many = FailingRollouts(), [64] * 15
    assert not found(rule, history(rollouts=many, failures=[6] * 15))  # a tenth, as ever
    assert not found(rule, history(rollouts=many, failures=[1] * 14 + [24]))  # one bad step
    assert "20% of the rollouts" in found(rule, history(rollouts=many, failures=[1] * 10 + [13] * 5))[0]
    assert found(rule, history(rollouts=[8] * 5, failures=[4] * 5))


@given(st.lists(st.integers(0, 8), min_size=5, max_size=20), st.integers(0, 8))
def test_more_failures_are_found_where_fewer_are(failures, more):
    worse = [*failures[:-5], *(min(8, count + more) for count in failures[-5:])]
    size = [8] * len(failures)
    few, many = (
        found(FailingRollouts(), history(rollouts=size, failures=each)) for each in (failures, worse)
    )
    assert bool(many) >= bool(few)


def test_a_rollout_is_stuck_when_it_takes_ten_times_what_others_do_and_two_minutes():
    rule = StuckRollout()
    assert not found(rule, running={"r": 119.0}, ended=[3.0] * 8)
    assert not found(rule, running={"r": 500.0}, ended=[3.0] * 7)
    assert not found(rule, running={"r": 500.0}, ended=[60.0] * 8)
    (said,) = found(rule, running={"slow": 121.0, "other": 20.0}, ended=[3.0] * 8)
    assert said.startswith("rollout slow has been under way for 121 s")


# who and where --------------------------------------------------------------------------------
def member(role: str, seen_at: float, **data: object) -> Member:
    about = {"run_id": "r", "role": role, "name": "w1"}
    return Member.model_validate({**about, "seen_at": seen_at, "data": data})


def test_a_worker_is_stuck_when_it_is_silent_while_rollouts_are_under_way():
    scene = {"now": 1000.0, "since": 500.0, "running": {"r": 5.0}}
    (said,) = found(StuckWorker(), members=[member("runner", 800)], **scene)
    assert said.startswith("runner 'w1' was last seen 200 s ago")
    assert not found(StuckWorker(), members=[member("runner", 950)], **scene)
    assert not found(StuckWorker(), members=[member("runner", 800)], **{**scene, "running": {}})
    assert not found(StuckWorker(), members=[member("runner", 400)], **scene)  # died before this trainer
    assert found(StuckWorker(), members=[member("gateway", 800)], **{**scene, "running": {}})
    assert not found(StuckWorker(), members=[member("trainer", 800)], **scene)


def test_a_worker_in_the_trainers_own_process_tells_of_its_event_loop():
    here = {"host": "h", "pid": 7}
    members = [member("trainer", 990, **here), member("gateway", 800, **here)]
    (said,) = found(StuckWorker(), members=members, now=1000.0, since=500.0)
    assert "event loop was blocked" in said
    (said,) = found(StuckWorker(), members=[members[0], member("gateway", 800)], now=1000.0, since=500.0)
    assert "end it if it still runs" in said


def filling(per_step: int, steps: int, free: int = 1000) -> list[Space]:
    return [Space(step, free - per_step * step, 20, 10) for step in range(steps)]


def test_a_disk_that_will_be_full_before_the_end_is_found_with_the_steps_that_are_left():
    rule = DiskFilling()
    assert not found(rule, space=filling(10, 10), total_steps=200)  # (910 - 10) / 10 = 90 steps left
    (said,) = found(rule, space=filling(50, 10), total_steps=200)  # (550 - 10) / 50 = 10.8
    assert "about 11 more steps" in said
    assert not found(rule, space=filling(50, 10), total_steps=15)  # 5 to go
    assert not found(rule, space=filling(50, 4), total_steps=200)  # too early to say
    assert not found(rule, space=filling(0, 10), total_steps=200)


def test_checkpoints_that_come_and_go_are_no_filling():
    kept = [10, 20, 20, 20, 20, 20]
    space = [Space(step, 1000 - size, size, 10) for step, size in enumerate(kept)]
    assert not found(DiskFilling(), space=space, total_steps=200)


def test_no_room_for_another_checkpoint_is_found_at_once():
    assert found(DiskFilling(), space=[Space(0, 9, 20, 10)], total_steps=200)


def test_failures_that_follow_from_replies_are_found_and_those_by_chance_are_not():
    def steps(between: float, chance: float, varied: float) -> list:
        return history(
            failures_by_reply=[between] * 5, failures_by_chance=[chance] * 5, failures_varied=[varied] * 5
        )

    assert "FailurePolicy" in found(FailuresByReply(), steps(1.0, 0.2, 1.5))[0]
    assert found(FailuresByReply(), steps(0.25, 0.2, 1.5)) == []  # as by chance
    assert found(FailuresByReply(), steps(1.5, 1.5, 1.5)) == []  # no reply came twice
    assert found(FailuresByReply(), steps(0.1, 0.02, 0.15)) == []  # one failure
    assert found(FailuresByReply(), history(rollouts=[64.0] * 5)) == []


# calls that are missing -------------------------------------------------------------------------
def test_unseen_calls_are_told_for_each_host_library_and_agent_with_their_number():
    scene = Scene(unseen={"requests/a.com/writer": ("gone", 3), "aiohttp/b.com/writer": ("lost", 1)})
    said = {finding.subject: finding.message for finding in unseen_calls(scene)}
    assert said == {"requests/a.com/writer": "3 so far: gone", "aiohttp/b.com/writer": "1 so far: lost"}
    assert list(unseen_calls(Scene())) == []


def test_rollouts_without_calls_are_told_from_a_twentieth_on_and_known_caches_are_named(monkeypatch):
    steps = history(rollouts=[40.0, 40.0, 40.0], rollouts_without_calls=[0.0, 1.0, 2.0])
    assert [len(found(RolloutsWithoutCalls(), steps[:end])) for end in (1, 2, 3)] == [0, 0, 1]
    [message] = found(RolloutsWithoutCalls(), steps)
    assert "2 of 40" in message
    assert "by-passed are those of LangChain, AutoGen, LiteLLM and DSPy" in message
    monkeypatch.setenv("LIGHTNING_CACHES", "keep")
    [message] = found(RolloutsWithoutCalls(), steps)
    assert "LIGHTNING_CACHES=keep keeps those of LangChain, AutoGen, LiteLLM and DSPy" in message
