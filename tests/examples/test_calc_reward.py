"""Exact match of the number that an answer ends with."""

import pytest

from examples.calc.reward import exact_match


@pytest.mark.parametrize(
    ("reply", "result", "reward"),
    [
        ("The answer is 322.", 322, 1.0),
        ("322", 322, 1.0),
        ("The answer is 322.0 books.", 322, 1.0),
        ("14 crates of 23 are 322", 322, 1.0),
        ("322 books in 14 crates", 322, 0.0),
        ("They cost 1,200.50 in all.", 1200.5, 1.0),
        ("3, 4", 4, 1.0),
        ("It is -4.5.", -4.5, 1.0),
        ("It is 4.5.", -4.5, 0.0),
        ("10.83", 10.833, 1.0),
        ("10.84", 10.833, 0.0),
        ("The answer is 32.", 322, 0.0),
        ("many", 322, 0.0),
        ("", 0, 0.0),
    ],
)
def test_the_last_number_of_a_reply_is_compared(reply: str, result: float, reward: float) -> None:
    assert exact_match(reply, result) == reward
