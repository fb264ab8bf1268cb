"""Why an advantage is what it is: the terms add up to what `assign` gives, for every method and setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.algorithms.dpo import Pairs
from lightning_core.algorithms.sft import Best, everything
from lightning_core.credit.base import Baseline, Credit, Scale, add_parts, assign
from lightning_core.credit.explaining import explain
from lightning_core.credit.whole import uniform
from lightning_core.records.types import Trajectory
from tests.credit.telling import Said, tell
from tests.credit.test_laws import LAW, METHODS, NUMBERS, sayings, told

EVERY: dict[str, Credit] = {**METHODS, "pairs": Pairs(), "best": Best(), "everything": everything}


@pytest.mark.parametrize("name", EVERY)
@LAW
@given(
    groups=st.lists(st.lists(st.tuples(NUMBERS, sayings()), min_size=2, max_size=4), min_size=1, max_size=3),
    baseline=st.sampled_from(get_args(Baseline)),
    scale=st.sampled_from(get_args(Scale)),
)
def test_the_terms_add_up_to_the_advantage(name, groups, baseline, scale):
    trajectories = [one for place, group in enumerate(groups) for one in named(told(group), place)]
    credited, report = assign(trajectories, EVERY[name], baseline, scale)
    again, same, found = explain(trajectories, EVERY[name], baseline, scale)
    assert (again, same) == (credited, report)
    advantages = {t.key: t.advantage for each in credited for t in each.transitions}
    assert found.keys() == {key for key, value in advantages.items() if value is not None}
    for key, explanation in found.items():
        assert explanation.advantage == advantages[key]
        assert explanation.total == pytest.approx(advantages[key], abs=1e-6)
        for term in explanation.terms:
            assert term.peers[term.own][key] == term.value
            if term.parts:
                assert add_parts(term.parts) == pytest.approx(term.value, abs=1e-9)
            elif name not in ("pairs", "best", "everything"):
                pytest.fail(f"{name} does not say what its return is made of")


def named(group: Sequence[Trajectory], place: int) -> list[Trajectory]:
    """The group under an id of its own, with rollouts of its own."""
    return [
        replace(
            each,
            group_id=f"g{place}",
            rollout_id=f"{place}:{each.rollout_id}",
            transitions=tuple(replace(t, rollout_id=f"{place}:{t.rollout_id}") for t in each.transitions),
        )
        for each in group
    ]


def test_uniform_by_hand():
    """Rewards 1 and 0: mean 0.5, deviation 0.5, so the advantages are 1 and -1."""
    _, _, found = explain([tell(0, 1.0, Said()), tell(1, 0.0, Said())], uniform)
    (term,) = found["r0", "c0", 0].terms
    assert (term.value, term.baseline, term.unit, term.weight) == (1.0, 0.5, 0.5, 1.0)
    assert [part[:2] for part in term.parts] == [
        ("final reward", 1.0),
        ("intermediate rewards of the rollout", 0.0),
    ]
    assert (term.means, term.own, term.amount) == ([1.0, 0.0], 0, 1.0)


def test_a_batch_that_is_shifted_and_scaled_says_by_what():
    """Rewards 1, 0 and 0, without a baseline: mean 1/3, deviation sqrt(2)/3."""
    group = [tell(0, 1.0, Said()), tell(1, 0.0, Said()), tell(2, 0.0, Said())]
    _, _, found = explain(group, uniform, "none", "batch")
    why = found["r0", "c0", 0]
    assert (why.mean, why.unit) == (pytest.approx(1 / 3), pytest.approx(2**0.5 / 3))
    assert why.advantage == why.total == pytest.approx(2**0.5)
