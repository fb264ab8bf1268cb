"""A share of the fuzz in every run of the tests; `make fuzz` sends all of it."""

from __future__ import annotations

from tests.fuzz.__main__ import fuzz
from tests.fuzz.grammar import TARGETS, make_case

SEED, CASES = 1, 400


def test_nothing_that_is_sent_breaks_the_gateway_or_disturbs_another_rollout() -> None:
    outcome = fuzz(SEED, range(CASES), quiet=True)
    assert not len(outcome.faults), "\n".join(outcome.faults.lines())
    assert outcome.done == CASES
    assert {target for target, _ in outcome.table} == set(TARGETS)


def test_a_case_follows_from_its_seed_and_number() -> None:
    forwards = [make_case(SEED, number) for number in range(60)]
    backwards = [make_case(SEED, number) for number in reversed(range(60))]
    assert forwards == backwards[::-1]
    assert forwards != [make_case(SEED + 1, number) for number in range(60)]
