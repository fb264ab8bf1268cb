"""An advantage in words: the rewards a person sees, what comparable starts led to, what the update does.

Command and console show the same sentence. Its direction is the advantage's. Where the rewards alone would
suggest another direction, it says what else counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from lightning_core.credit.base import AFTER, CRITIC, EXPECTED, FROM_HERE, WHOLE
from lightning_core.credit.explaining import Explanation, Term
from lightning_core.experience.returns import total_return
from lightning_core.insight.verdict import say
from lightning_core.records.types import Trajectory, Transition

_SAME = 1e-6
"""Rewards and advantages that differ by no more are taken for equal."""
_SHOWN = 8
"""Compared values that a line lists."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The two numbers of a comparison, as a person sees them."""

    earned: float
    """Reward of this rollout."""
    start: str
    """Where its earning begins: "This rollout", or "From here on this rollout"."""
    expected: float | None
    """Mean reward of comparable starts; None if there were none."""
    basis: str
    """Who they are, with what they earned."""


def sentence(explanation: Explanation, transition: Transition, rollouts: Mapping[str, Trajectory]) -> str:
    """Why a transition has its advantage, in one sentence or two. `rollouts`: those of the step, by id."""
    own, direction = rollouts[transition.rollout_id], _direction(explanation.advantage)
    seen = _see(explanation.terms[0], transition, rollouts)
    facts = f"{seen.start} earned {say(seen.earned)}{_detail(seen, own, transition.agent)}"
    if seen.expected is not None:
        facts += f"; {seen.basis}"
        if _sign(seen.earned - seen.expected) == _sign(explanation.advantage):
            return f"{facts}: so the update makes this reply {direction}."
    return f"{facts}. The update makes this reply {direction}: {_reason(explanation, seen)}."


def _direction(advantage: float) -> str:
    return {1: "more likely", -1: "less likely", 0: "neither more nor less likely"}[_sign(advantage)]


def _sign(value: float) -> int:
    return 0 if abs(value) <= _SAME else 1 if value > 0 else -1


def _see(term: Term, transition: Transition, rollouts: Mapping[str, Trajectory]) -> _Seen:
    parts, agent = {part.name: part.value for part in term.parts}, transition.agent
    own = total_return(rollouts[transition.rollout_id], agent)
    if EXPECTED in parts:
        expected, got = parts[EXPECTED], parts[WHOLE if WHOLE in parts else FROM_HERE]
        start = "This rollout" if _sign(got - own) == 0 else "From here on this rollout"
        return _Seen(got, start, expected, f"comparable starts led to {say(expected)} on average")
    if CRITIC in parts:
        expected = parts[CRITIC]
        return _Seen(own, "This rollout", expected, f"the critic expected {say(expected)}")
    others = dict.fromkeys(key[0] for peer in term.peers for key in peer if key[0] in rollouts)
    earned = [total_return(rollouts[name], agent) for name in others if name != transition.rollout_id]
    if not earned:
        return _Seen(own, "This rollout", None, "")
    expected, many = fmean(earned), len(earned) > 1
    who = f"the {len(earned)} rollouts" if many else "the one rollout"
    basis = f"{who} it is compared with earned {say(expected)}{' on average' if many else ''}"
    return _Seen(own, "This rollout", expected, basis)


def _detail(seen: _Seen, own: Trajectory, agent: str) -> str:
    """The two kinds of reward, where there are both."""
    final = own.final(agent)
    other = seen.earned - final
    if _sign(other) == 0:
        return ""
    return f" (final reward {say(final)}, intermediate rewards {say(other)})"


def _reason(explanation: Explanation, seen: _Seen) -> str:
    """Returns the reason for the advantage's sign, where the rewards alone do not explain it."""
    first, *others = explanation.terms
    wanted = _sign(explanation.advantage)
    whole = sum(term.amount for term in explanation.terms)
    if _sign(whole) != wanted and _sign(explanation.mean) != 0:
        return f"the mean advantage of the batch, {say(explanation.mean)}, is taken off"
    if others and _sign(first.amount) != wanted:
        if wanted == 0:
            return "its comparisons cancel out"
        term = max(others, key=lambda each: wanted * each.amount)
        return f"in another comparison it counts as {say(term.value)}, against {say(term.baseline)}"
    return _counted(first, seen)


def _counted(term: Term, seen: _Seen) -> str:
    parts = {part.name: part for part in term.parts}
    if EXPECTED in parts and not parts[EXPECTED].factor:
        return "at this point no reply made a difference"
    if EXPECTED in parts:
        rest = sum(part.factor * part.value for part in term.parts if part.name != EXPECTED)
        counts = f"it counts as {say(-rest / parts[EXPECTED].factor)}"
        if AFTER not in parts:
            return counts
        return f"others went on from where it led to {say(parts[AFTER].value)} on average, so {counts}"
    if CRITIC in parts:
        return f"with the critic's values of later turns it counts as {say(term.value)} better than expected"
    if not term.compared:
        return f"it counts as {say(term.value)}"
    return f"what counts for this call is {say(term.value)}, against {say(term.baseline)}"


def lines(explanation: Explanation, share: float) -> Iterator[str]:
    """The arithmetic under the sentence: the advantage, and how each term comes about."""
    yield f"advantage {explanation.advantage:+.3f}, {share:.1%} of the loss of its step"
    for term in explanation.terms:
        yield from _term_lines(term)
    if (explanation.mean, explanation.unit) != (0.0, 1.0):
        yield (
            f"over the whole batch: less the mean {explanation.mean:+.3f}, divided by the spread "
            f"{explanation.unit:.3f}"
        )


def _term_lines(term: Term) -> Iterator[str]:
    made = " ".join(
        f"{'-' if part.factor < 0 else '+'} "
        f"{f'{abs(part.factor):.3g} × ' if abs(part.factor) != 1 else ''}{part.name} ({part.value:+.3f})"
        for part in term.parts
    ).removeprefix("+ ")
    yield f"counts as {term.value:+.3f}" + (f" = {made}" if made else "")
    weight = f"{term.weight:g} × " if term.weight != 1 else ""
    if not term.compared:
        yield f"{weight}{term.value:+.3f} / spread {term.unit:.3f} = {term.amount:+.3f}"
        return
    means = ", ".join(f"{mean:+.3f}" for mean in sorted(term.means, reverse=True)[:_SHOWN])
    more = f" and {len(term.peers) - _SHOWN} more" if len(term.peers) > _SHOWN else ""
    yield f"compared: {means}{more}"
    yield (
        f"{weight}({term.value:+.3f} - baseline {term.baseline:+.3f}) / spread {term.unit:.3f} = "
        f"{term.amount:+.3f}"
    )
