"""Which of the service's losses is an algorithm's own, by its formula.

For a sampled token with log-probability p under the weights being trained, recorded o, advantage A and loss
weight w, a service that speaks Tinker's API computes, with r = exp(p - o) (sg: without gradient):

    ppo     -min(r A, clip(r) A)
    cispo   -sg(clip(r)) A p

Both are linear in a positive factor of A, so w goes into A, and so does every number of a token that is known
before the pass: the entropy bonus, which follows from o, and a correction, which follows from o and q, the
log-probability when the update began. What the algorithms descend is then

    correction=None                    ppo, or cispo with ratio="weight", to o
    Truncated(C), one step             the gradient is -w min(r, C) A dp: cispo within [0, C], to o
    a correction, several steps        A times correction(q, o), and ppo or cispo to q
    SFT                                -w p: cispo within [1, 1]

The rest has no equal there and is refused: a critic, a reference policy, dual clip, the ratio of a sequence,
pairs, and a loss of one's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_core.algorithms.base import Algorithm
from lightning_core.algorithms.policy_gradient import PolicyGradient, Truncated
from lightning_core.algorithms.sft import SFT
from lightning_core.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class ServiceLoss:
    """A loss of the service that has an algorithm's gradient."""

    name: str
    low: float
    """The ratio is no less than this."""
    high: float
    """The ratio is no more than this."""
    proximal: bool = False
    """Whether the ratio is to the weights that begin the update, which takes a forward pass."""
    recorded: bool = field(default=True)
    """Whether recorded log-probabilities have a part in it."""

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds as the service calls them."""
        return {"clip_low_threshold": self.low, "clip_high_threshold": self.high}


def find_loss(algorithm: Algorithm) -> ServiceLoss:
    """The service's loss for an algorithm. Raises UnsupportedError, by name, where there is none."""
    if isinstance(algorithm, SFT) and type(algorithm).loss is SFT.loss:
        return ServiceLoss("cispo", 1.0, 1.0, recorded=False)
    if not isinstance(algorithm, PolicyGradient) or _changed(type(algorithm)):
        raise _refuse(algorithm, "a loss of its own", "GRPO, RLOO, ReinforcePP or SFT")
    if algorithm.critic is not None:
        raise _refuse(algorithm, "a critic", "an algorithm without one, such as GRPO")
    if algorithm.needs_reference:
        raise _refuse(algorithm, f"kl={algorithm.kl!r}, a reference policy beside the trained one", "kl=0")
    if algorithm.dual_clip is not None:
        raise _refuse(algorithm, f"clip={algorithm.clip!r}, whose third number is dual clip", "two numbers")
    if algorithm.ratio == "sequence":
        raise _refuse(algorithm, "ratio='sequence'", "ratio='token' or 'weight'")
    several = algorithm.epochs > 1 or algorithm.mini_batch_size is not None
    if isinstance(algorithm.correction, Truncated) and not several:
        return ServiceLoss("cispo", 0.0, algorithm.correction.bound)
    return ServiceLoss(
        "cispo" if algorithm.ratio == "weight" else "ppo",
        1 - algorithm.clip_low,
        1 + algorithm.clip_high,
        proximal=algorithm.correction is not None,
    )


def _changed(kind: type[PolicyGradient]) -> bool:
    names = ("loss", "_surrogate", "_shaped", "units")
    return any(getattr(kind, name) is not getattr(PolicyGradient, name) for name in names)


def _refuse(algorithm: Algorithm, what: str, instead: str) -> UnsupportedError:
    return UnsupportedError(
        f"algorithm {algorithm.name!r} has {what}, which a service of Tinker's API has no equal of; use "
        f"{instead}, "
        "or the local or verl backend"
    )
