"""The laws of packs: every token once, every entry at its place, every ancestor seen, nothing else seen."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.credit.branches import branches
from lightning_core.errors import TrainingError
from lightning_core.experience.trajectories import (
    ABSENT,
    CHANGED,
    STOP_CHANGED,
    Pack,
    Unmerged,
    find_unmerged,
    make_packs,
    report_merge,
    trained_transitions,
)
from lightning_core.records.types import Trajectory, Transition
from tests.build import in_one_memory
from tests.build import make_transition as call


def rollout(*calls: Transition) -> Trajectory:
    return Trajectory(calls[0].rollout_id, "g", "t", 1.0, calls)


def pack_all(*trajectories: Trajectory, pack_tokens: int = 1000, merge: bool = True) -> list[Pack]:
    weights = {t.key: 1.0 for trajectory in trajectories for t in trajectory.transitions}
    return make_packs(trajectories, weights, pack_tokens=pack_tokens, merge=merge)


def path_to(pack: Pack, index: int) -> list[int]:
    """The tokens that the token at `index` sees, by the rule the attention uses."""
    return [int(pack.tokens[j]) for j in range(index + 1) if index < pack.ends[j]]


def test_two_turns_share_their_prefix_by_hand() -> None:
    first = call("1", [1, 2], [3, 4], logprobs=[-0.1, -0.2])
    second = call("2", [1, 2, 3, 4, 5], [6, 7], logprobs=[-0.3, -0.4], advantage=-2.0)
    (pack,) = pack_all(rollout(first, second))
    assert pack.tokens.tolist() == [1, 2, 3, 4, 5, 6]  # 7 is only a target
    assert pack.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert pack.ends.tolist() == [6] * 6
    assert pack.parents.tolist() == [1, 2, 4, 5]
    assert pack.targets.tolist() == [3, 4, 6, 7]
    assert pack.logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert pack.advantages.tolist() == [1.0, 1.0, -2.0, -2.0]
    assert pack.sequences.tolist() == [0, 0, 1, 1]


def test_branches_stand_side_by_side_and_do_not_see_each_other() -> None:
    (pack,) = pack_all(rollout(call("1", [1, 2], [3, 4, 5]), call("2", [1, 2], [6, 7, 8])))
    assert pack.tokens.tolist() == [1, 2, 3, 4, 6, 7]
    assert pack.positions.tolist() == [0, 1, 2, 3, 2, 3]
    assert pack.ends.tolist() == [6, 6, 4, 4, 6, 6]
    assert path_to(pack, 5) == [1, 2, 6, 7]


def test_rollouts_that_sampled_the_same_token_share_it_and_keep_their_own_entries() -> None:
    one, two = (
        rollout(call("1", [1, 2], [3, 4], rollout=r, advantage=a)) for r, a in (("x", 1.0), ("y", -1.0))
    )
    (pack,) = pack_all(one, two)
    assert pack.tokens.tolist() == [1, 2, 3]
    assert pack.targets.tolist() == [3, 4, 3, 4]
    assert sorted(zip(pack.keys, pack.advantages[[0, 2]].tolist(), strict=True)) == [
        (("x", "1", 0), 1.0),
        (("y", "1", 0), -1.0),
    ]


def test_what_is_not_trained_has_no_advantage_or_no_weight_costs_nothing() -> None:
    calls = [
        call("trained", [1, 2], [3]),
        call("other agent", [7, 8], [9], trained=False),
        call("no advantage", [7, 8], [9], advantage=None),
        call("empty", [7, 8], []),
    ]
    (pack,) = pack_all(rollout(*calls))
    assert pack.tokens.tolist() == [1, 2]
    assert make_packs([rollout(*calls)], {}, pack_tokens=10) == []


def test_a_greedy_call_is_trained_at_temperature_one() -> None:
    (pack,) = pack_all(rollout(call("1", [1], [2], temperature=0.0), call("2", [1], [3], temperature=0.5)))
    assert pack.temperatures.tolist() == [1.0, 0.5]


def test_a_call_without_prompt_or_with_too_few_logprobs_is_named() -> None:
    with pytest.raises(TrainingError, match=r"'lonely'.* no prompt"):
        pack_all(rollout(call("lonely", [], [1])))
    with pytest.raises(TrainingError, match=r"'short'.* 2 completion ids but 1 logprobs"):
        pack_all(rollout(call("short", [1], [2, 3], logprobs=[-1.0])))


def random_rollout(draw: random.Random, name: str, prompts: list[list[int]]) -> Trajectory:
    """Sub-agents that take turns, each on its own history; retries, branches and changed histories among
    them."""
    histories = [list(p) for p in prompts]
    calls = []
    for index in range(draw.randrange(1, 7)):
        agent = draw.randrange(len(histories))
        reply = [draw.randrange(4) for _ in range(draw.randrange(1, 5))]
        logprobs = [-draw.random() for _ in reply]
        options = {"trained": draw.random() < 0.8, "advantage": draw.choice([None, 0.0, 0.5, -1.5])}
        calls.append(call(f"c{index}", list(histories[agent]), reply, name, logprobs=logprobs, **options))
        kind = draw.random()
        if kind < 0.6:
            histories[agent] += [*reply, draw.randrange(4)]
        elif kind < 0.8:
            histories[agent] += reply[:-1] + [draw.randrange(4) for _ in range(2)]
    return rollout(*calls)


@settings(max_examples=200)
@given(st.integers(0, 10**9), st.sampled_from([5, 12, 40, 1000]), st.booleans())
def test_every_entry_sees_exactly_its_own_prefix_and_none_is_lost(
    seed: int, pack_tokens: int, merge: bool
) -> None:
    draw = random.Random(seed)
    prompts = [[draw.randrange(4) for _ in range(draw.randrange(1, 6))] for _ in range(2)]
    batch = [random_rollout(draw, f"r{i}", prompts) for i in range(draw.randrange(1, 4))]
    packs = pack_all(*batch, pack_tokens=pack_tokens, merge=merge)
    transitions = {t.key: t for t in trained_transitions(batch)}
    assert sorted(key for pack in packs for key in pack.keys) == sorted(transitions)
    for pack in packs:
        assert len(pack.tokens) <= pack_tokens or len(pack.keys) == 1
        for index in range(len(pack.tokens)):
            assert len(path_to(pack, index)) == pack.positions[index] + 1
        for number, key in enumerate(pack.keys):
            t = transitions[key]
            mine = np.flatnonzero(pack.sequences == number)
            assert pack.targets[mine].tolist() == list(t.completion_ids)
            assert pack.logprobs[mine].tolist() == pytest.approx(list(t.logprobs))
            assert set(pack.advantages[mine].tolist()) == {t.advantage}
            for k, entry in enumerate(mine):
                seen = path_to(pack, int(pack.parents[entry]))
                assert seen == [*t.prompt_ids, *t.completion_ids[:k]]


@settings(max_examples=100)
@given(st.integers(0, 10**9))
def test_a_merged_pack_holds_each_prefix_of_the_batch_once(seed: int) -> None:
    draw = random.Random(seed)
    batch = [random_rollout(draw, f"r{i}", [[1, 2, 3], [1, 0]]) for i in range(3)]
    packs = pack_all(*batch, pack_tokens=10**6)
    prefixes = {
        tuple([*t.prompt_ids, *t.completion_ids[:-1]][:end])
        for t in trained_transitions(batch)
        for end in range(1, len(t.prompt_ids) + len(t.completion_ids))
    }
    assert sum(len(pack.tokens) for pack in packs) == len(prefixes)


def test_the_report_counts_tokens_before_and_after() -> None:
    batch = [rollout(call("1", [1, 2], [3, 4]), call("2", [1, 2, 3, 4, 5], [6, 7]))]
    report = report_merge(batch, pack_all(*batch))
    assert (report.tokens_before, report.tokens_after) == (3 + 6, 6)
    assert report.ratio == 1.5
    assert report.unmerged == ()


@pytest.mark.parametrize(
    ("second_prompt", "reason", "index"),
    [
        ([1, 2, 9, 4, 5, 8], ABSENT, 2),
        ([1, 2, 3, 9, 5, 8], CHANGED, 3),
        ([1, 2, 3, 4, 9, 8], STOP_CHANGED, 4),
    ],
)
def test_a_history_that_differs_from_what_was_sampled_is_counted_with_its_first_token(
    second_prompt: list[int], reason: str, index: int
) -> None:
    calls = [call("1", [1, 2], [3, 4, 5]), call("2", second_prompt, [6])]
    (unmerged,) = find_unmerged(rollout(*calls))
    assert (unmerged.call_id, unmerged.after) == ("2", "1")
    assert (unmerged.reason, unmerged.index, unmerged.found) == (reason, index, 9)
    assert unmerged.sampled == [1, 2, 3, 4, 5][index]
    assert report_merge([rollout(*calls)], pack_all(rollout(*calls))).reasons == {reason: 1}


def test_retries_branches_and_other_agents_are_not_failed_merges() -> None:
    calls = [
        call("1", [1, 2], [3, 4]),
        call("retry", [1, 2], [5, 6]),
        call("other agent", [8, 9], [3]),
        call("after the first", [1, 2, 3, 4, 7], [6]),
        call("after the retry", [1, 2, 5, 6, 7], [6]),
        call("prefix only", [1, 2, 3], [4]),
    ]
    assert find_unmerged(rollout(*calls)) == []


def slow_unmerged(calls: list[Transition]) -> list[Unmerged]:
    """The definition, word for word, over every pair of calls."""
    found = []
    for place, later in enumerate(calls):
        prompt = list(later.prompt_ids)
        begun = [e for e in calls[:place] if len(e.prompt_ids) < len(prompt)]
        begun = [e for e in begun if prompt[: len(e.prompt_ids)] == list(e.prompt_ids)]
        longest = max((len(e.prompt_ids) for e in begun), default=0)
        rest = prompt[longest:]
        leaves = []
        for e in begun:
            if len(e.prompt_ids) == longest:
                pairs = zip(e.completion_ids, rest, strict=False)
                at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
                leaves.append((at, e))
        if leaves and all(at is not None for at, _ in leaves):
            at, last = max(leaves, key=lambda leaf: leaf[0])
            whole = at == len(last.completion_ids) - 1
            reason = ABSENT if at == 0 else STOP_CHANGED if whole else CHANGED
            index, sampled = longest + at, last.completion_ids[at]
            found.append(Unmerged("r", later.call_id, last.call_id, reason, index, sampled, prompt[index]))
    return found


few = st.integers(1, 2)


@st.composite
def conversations(draw: st.DrawFn) -> list[Transition]:
    """Calls that go on from others, with the reply as it was, cut or changed; retries, and prompts of their
    own, in any order."""
    calls: list[tuple[list[int], list[int]]] = []
    for _ in range(draw(st.integers(1, 9))):
        prompt = draw(st.lists(few, max_size=3))
        if calls and draw(st.booleans()):
            before, reply = draw(st.sampled_from(calls))
            kept = reply[: draw(st.integers(0, len(reply)))]
            prompt = [*before, *kept, *draw(st.lists(few, max_size=2))]
        calls.append((prompt, draw(st.lists(few, min_size=1, max_size=3))))
    order = draw(st.permutations(calls)) if draw(st.booleans()) else calls
    return [call(f"c{i}", prompt, reply) for i, (prompt, reply) in enumerate(order)]


@given(conversations())
@settings(max_examples=400)
def test_failed_merges_are_those_of_the_slow_definition(calls: list[Transition]) -> None:
    assert find_unmerged(rollout(*calls)) == slow_unmerged(calls)


@given(conversations(), st.sampled_from([5, 12, 1000]), st.booleans(), st.booleans())
@settings(max_examples=300)
def test_prompts_in_one_memory_make_the_packs_that_lists_make(
    calls: list[Transition], pack_tokens: int, merge: bool, split: bool
) -> None:
    calls = [each for each in calls if len(each.prompt_ids)]
    weights = {each.key: 1.0 for each in calls}
    units = {each.key: number % 2 for number, each in enumerate(calls)} if split else None

    def made(calls: list[Transition]) -> tuple[str, object, object]:
        trajectory = Trajectory("r", "g", "t", 1.0, tuple(calls))
        packs = make_packs([trajectory], weights, pack_tokens=pack_tokens, units=units, merge=merge)
        return repr(packs), find_unmerged(trajectory), branches(trajectory).children

    assert made(in_one_memory(calls)) == made(calls)


def calls_made(look: Callable[[Trajectory], object], turns: int, *, alike: bool) -> int:
    """Functions, built-in ones too, that are called to look through one rollout: a conversation that grows by
    a turn each time, whose replies lose a token, or as many conversations that only begin alike."""
    draw, history, calls = random.Random(1), list(range(40)), []
    for turn in range(turns):
        reply = [draw.randrange(300) for _ in range(5)]
        own = [draw.randrange(300) for _ in range(5)]
        prompt = [*history, *own, turn] if alike else list(history)
        calls.append(call(f"c{turn}", prompt, reply))
        history += [] if alike else [*reply[:-1], *own]
    trajectory, count = rollout(*calls), 0

    def count_calls(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_calls)
    try:
        look(trajectory)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("look", [find_unmerged, branches])
def test_the_work_of_a_search_grows_with_the_calls_and_not_with_their_pairs(
    look: Callable[[Trajectory], object], alike: bool
) -> None:
    few, many = calls_made(look, 50, alike=alike), calls_made(look, 400, alike=alike)
    assert many < 1.5 * (400 / 50) * few
