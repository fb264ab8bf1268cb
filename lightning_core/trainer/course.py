"""The phases of a run, resolved: which algorithm and credit method makes which update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_core.algorithms.base import Algorithm, Phase, check_credit
from lightning_core.credit.base import Credit
from lightning_core.errors import ConfigError
from lightning_core.plugins import Plugins


@dataclass(frozen=True, slots=True)
class Course:
    """One phase: updates `first` to `end` - 1."""

    algorithm: Algorithm
    credit: Credit
    first: int
    end: int


def make_courses(phases: Sequence[Phase], plugins: Plugins) -> list[Course]:
    """Each phase with its credit method and its place in the run."""
    courses: list[Course] = []
    first = 0
    for phase in phases:
        named = phase.algorithm
        algorithm: Algorithm = plugins.part("algorithm", named)() if isinstance(named, str) else named
        credit = make_credit(algorithm.credit, plugins)
        check_credit(algorithm, credit)
        courses.append(Course(algorithm, credit, first, first + phase.steps))
        first += phase.steps
    return courses


def check_signals(courses: Sequence[Course], *, air: bool, judge: bool) -> None:
    """Raise ConfigError if rewards are to be made of rollouts and no update has any."""
    if any(course.algorithm.teaching is None for course in courses):
        return
    for option, given in (("air", air), ("judge", judge)):
        if given:
            raise ConfigError(
                f"{option}=... makes rewards of training rollouts, and a run that learns from demonstrations "
                f"alone has none; leave {option} away, or add a phase with rollouts"
            )


def make_credit(credit: str | Credit, plugins: Plugins) -> Credit:
    """The method given, or the one registered under a name; a class is made with its defaults."""
    if not isinstance(credit, str):
        return credit
    part = plugins.part("credit", credit)
    made: Credit = part() if isinstance(part, type) else part
    return made
