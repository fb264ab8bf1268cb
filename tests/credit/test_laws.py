"""The laws of credit, for every method that obeys them; the others are named, with what they do instead."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_core.credit.anchor import Anchor
from lightning_core.credit.base import Credit, Scale, add_up
from lightning_core.credit.discounted import Discounted, turn
from lightning_core.credit.evidence import BatchEvidence
from lightning_core.credit.gae import Gae
from lightning_core.credit.hierarchical import Hierarchical
from lightning_core.credit.relevance import Relevance
from lightning_core.credit.tabular import Tabular, state
from lightning_core.credit.whole import per_agent, uniform
from lightning_core.records.types import Key, Trajectory
from tests.credit.telling import Said, tell

LAW = settings(suppress_health_check=[HealthCheck.too_slow])
"""How fast a machine is says nothing of a law."""
METHODS: dict[str, Credit] = {
    "uniform": uniform,
    "per_agent": per_agent,
    "discounted": Discounted(0.9),
    "turn": turn,
    "anchor": Anchor(),
    "gae": Gae(),
    "hierarchical": Hierarchical(),
    "state": state,
    "tabular": Tabular(),
    "relevance": Relevance(),
    "evidence": BatchEvidence(),
}


def methods(*but: str) -> pytest.MarkDecorator:
    """All methods, or all but some."""
    return only(*(name for name in METHODS if name not in but))


def only(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("method", [METHODS[name] for name in names], ids=names)


def advantages(method: Credit, group: Sequence[Trajectory], scale: Scale = "none") -> dict[Key, float]:
    return add_up(group, method(group), "leave_one_out", scale)


NUMBERS = st.integers(-8, 8).map(lambda n: n / 4)


@st.composite
def sayings(draw: st.DrawFn) -> list[Said]:
    """The calls of a rollout: branches that part, choices, rewards, states and replies that come again."""
    return [
        Said(
            agent=draw(st.sampled_from("vw")),
            after=draw(st.none() | st.integers(0, place - 1)) if place else None,
            reward=draw(NUMBERS),
            shown=draw(st.sampled_from(["", "x", "y"])),
            reply=draw(st.none() | st.integers(0, 1)),
            value=draw(NUMBERS),
            choices=draw(st.integers(1, 2)),
        )
        for place in range(draw(st.integers(1, 5)))
    ]


GROUPS = st.lists(st.tuples(NUMBERS, sayings()), min_size=2, max_size=5)


def told(rollouts: Sequence[tuple[float, Sequence[Said]]]) -> list[Trajectory]:
    return [tell(number, reward, *said) for number, (reward, said) in enumerate(rollouts)]


@methods()
@LAW
@given(rewards=st.lists(NUMBERS, min_size=2, max_size=6), data=st.data())
def test_a_rollout_counts_once_in_the_baseline_of_others_whatever_its_number_of_calls(method, rewards, data):
    # the first rollout's call is compared with others that came to the same with one call, or with several
    call = Said(shown="x", value=0.5, reply=0)
    number = data.draw(st.lists(st.integers(1, 5), min_size=len(rewards) - 1, max_size=len(rewards) - 1))
    once = [tell(i, reward, call) for i, reward in enumerate(rewards)]
    often = [
        once[0],
        *(tell(i + 1, r, *[call] * n) for i, (r, n) in enumerate(zip(rewards[1:], number, strict=True))),
    ]
    before = advantages(method, once).get(("r0", "c0", 0), 0.0)
    assert advantages(method, often).get(("r0", "c0", 0), 0.0) == pytest.approx(before)


@methods()
@LAW
@given(rollouts=GROUPS, data=st.data())
def test_an_untrained_agent_has_no_advantage_and_is_in_no_baseline(method, rollouts, data):
    # its calls stand before, between and after those of the others, in conversations of its own
    group = told(rollouts)
    stranger = Said("stranger", trained=False, shown="x", reply=0)
    with_strangers = []
    for trajectory in group:
        calls = list(trajectory.transitions)
        for number in range(data.draw(st.integers(0, 3))):
            [extra] = tell(9, 0.0, *[Said()] * (50 + number), stranger).transitions[-1:]
            extra = replace(extra, rollout_id=trajectory.rollout_id, call_id=f"s{number}")
            calls.insert(data.draw(st.integers(0, len(calls))), extra)
        with_strangers.append(replace(trajectory, transitions=tuple(calls)))
    assert advantages(method, with_strangers) == pytest.approx(advantages(method, group))


@only("discounted", "turn", "gae")
@LAW
@given(rollouts=GROUPS, rewards=st.lists(NUMBERS, min_size=2, max_size=2), data=st.data())
def test_what_a_parallel_branch_earns_stays_there(method, rollouts, rewards, data):
    # Not so by their meaning: uniform, per_agent, anchor and hierarchical compare whole returns; state and
    # tabular count all that was earned later, since later branches may be what a call led to.
    reward, said = rollouts[0]
    here = len(said)
    both = [
        [
            *said,
            Said("w", value=0.5, reward=0.25),
            Said("v", value=0.5, reward=earned),
            Said("v", after=here + 1, reward=earned),
        ]
        for earned in rewards
    ]
    found = [
        advantages(method, told([(reward, [replace(s, value=s.value or 0.5) for s in calls]), *rollouts[1:]]))
        for calls in [[replace(s, value=0.5 if s.value is None else s.value) for s in b] for b in both]
    ]
    others = [key for key in {**found[0], **found[1]} if key[0] == "r0" and int(key[1][1:]) <= here]
    assert [found[0].get(k, 0.0) for k in others] == pytest.approx([found[1].get(k, 0.0) for k in others])


@methods()
@pytest.mark.parametrize("observation", ["", "x"])
def test_a_reward_passes_over_observation_tokens_to_the_turns_before(method, observation):
    # the last of three turns earns 1 more; between the turns stand observations
    def group(earned: float) -> list[Trajectory]:
        shown = [f"{observation}{i}" if observation else "" for i in range(3)]
        chain = [
            Said(shown=shown[0], value=0.5),
            Said(after=0, shown=shown[1], value=0.5),
            Said(after=1, shown=shown[2], value=0.5, reward=earned),
        ]
        return [tell(0, 1.0, *chain), tell(1, 0.0, *(replace(s, reward=0.0) for s in chain))]

    before, after = (advantages(method, group(earned)) for earned in (0.0, 1.0))
    gained = [after["r0", f"c{i}", 0] - before["r0", f"c{i}", 0] for i in range(3)]
    assert all(gain > 0.2 for gain in gained)


@methods("discounted", "turn", "state", "tabular", "relevance")
@LAW
@given(rollouts=GROUPS, seed=st.integers(0, 99))
def test_the_order_in_which_parallel_calls_began_does_not_matter(method, rollouts, seed):
    # Only the order that the conversations themselves have is kept. discounted and turn count an agent's
    # calls, state and tabular ask what came later, so for these the order is what is known.
    def shuffled(said: Sequence[Said]) -> list[int]:
        order: list[int] = []
        left, draw = set(range(len(said))), random.Random(seed)
        while left:
            order.append(draw.choice([i for i in sorted(left) if said[i].after not in left]))
            left.remove(order[-1])
        return order

    mixed = [
        tell(number, reward, *said, order=shuffled(said)) for number, (reward, said) in enumerate(rollouts)
    ]
    assert advantages(method, mixed) == pytest.approx(advantages(method, told(rollouts)))


@methods("gae")
@LAW
@given(rollouts=GROUPS, shift=NUMBERS, unit=st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_the_unit_of_the_rewards_does_not_matter(method, rollouts, shift, unit):
    # The origin does not matter where nothing is discounted. gae measures by a critic, which learns both.
    def moved(by: float) -> list[Trajectory]:
        scaled = [(r * unit + by, [replace(s, reward=s.reward * unit) for s in said]) for r, said in rollouts]
        return told(scaled)

    plain = advantages(method, told(rollouts))
    assert advantages(method, moved(0.0)) == pytest.approx({k: a * unit for k, a in plain.items()}, abs=1e-6)
    # a deviation has no least where all final rewards differ; the calls of one rollout have the same one
    if len({reward for reward, _ in rollouts}) == len(rollouts) and not isinstance(method, Hierarchical):
        normal = advantages(method, told(rollouts), "std")
        assert advantages(method, moved(0.0), "std") == pytest.approx(normal, abs=1e-4)
    if not isinstance(method, Discounted | Anchor):
        assert advantages(method, moved(shift)) == pytest.approx(
            {k: a * unit for k, a in plain.items()}, abs=1e-6
        )


@methods()
@LAW
@given(rollouts=GROUPS, seed=st.integers(0, 99))
def test_the_order_of_the_rollouts_does_not_matter(method, rollouts, seed):
    group = told(rollouts)
    mixed = random.Random(seed).sample(group, len(group))
    for scale in ("none", "std"):
        assert advantages(method, mixed, scale) == pytest.approx(advantages(method, group, scale), abs=1e-6)


@methods("gae", "anchor", "hierarchical")
@LAW
@given(calls=sayings(), reward=NUMBERS, size=st.integers(2, 5))
def test_rollouts_that_are_all_alike_say_nothing(method, calls, reward, size):
    # gae has a critic's word for it; anchor finds that an earlier visit of a state took longer, and
    # hierarchical that a call earned more than another of its rollout. state and tabular find that, too, of
    # two visits of a state, so rewards are left out for them
    rewards = 0.0 if method in [METHODS[name] for name in ("state", "tabular", "relevance")] else 1.0
    alike = [replace(said, reward=said.reward * rewards, choices=1) for said in calls]
    group = told([(reward, alike)] * size)
    assert all(abs(a) < 1e-9 for a in advantages(method, group).values())
