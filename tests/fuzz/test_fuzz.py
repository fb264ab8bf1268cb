"""A share of the fuzz in every run of the tests; `make fuzz` sends all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fuzz import constraints, grammar
from tests.fuzz.__main__ import fuzz
from tests.fuzz.constraints import CONSTRAINTS
from tests.fuzz.grammar import REQUESTS, Suite

SEED, CASES, CONSTRAINED = 1, 400, 150


def test_nothing_that_is_sent_breaks_the_gateway_or_disturbs_another_rollout() -> None:
    outcome = fuzz(REQUESTS, SEED, range(CASES), quiet=True)
    assert not len(outcome.faults), "\n".join(outcome.faults.lines())
    assert outcome.done == CASES
    assert {target for target, _ in outcome.table} == set(grammar.TARGETS)


def test_no_form_of_a_reply_breaks_the_gateway_or_disturbs_another_rollout() -> None:
    """How long others wait is measured by `make fuzz` alone: it depends on the machine's other work."""
    outcome = fuzz(replace(CONSTRAINTS, timed=False), SEED, range(CONSTRAINED), quiet=True)
    assert not len(outcome.faults), "\n".join(outcome.faults.lines())
    assert outcome.done == CONSTRAINED
    assert {target for target, _ in outcome.table} == set(constraints.TARGETS)


@pytest.mark.parametrize("suite", [REQUESTS, CONSTRAINTS], ids=lambda suite: suite.name)
def test_a_case_follows_from_its_seed_and_number(suite: Suite) -> None:
    forwards = [suite.make(SEED, number) for number in range(60)]
    backwards = [suite.make(SEED, number) for number in reversed(range(60))]
    assert forwards == backwards[::-1]
    assert forwards != [suite.make(SEED + 1, number) for number in range(60)]
