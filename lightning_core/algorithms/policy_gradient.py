"""The clipped policy gradient, with the choices that make GRPO, RLOO, REINFORCE++ and PPO of it.

For a sampled token with log-probability `p` under the weights being trained, `o` as recorded when it was
sampled, `q` under the weights when the update began, and advantage A of its transition:

    ratio   r = exp(p - b)                 b = q with a correction, else o; q = p as long as no step was made
    trust   w = correction(q, o)           1 without one
    loss    -w * min(r * A, clip(r) * A) + kl * k           clip(r) within [1 - low, 1 + high]

The divergence from the frozen starting weights, under which the token has log-probability s, is estimated by
k, with d = s - p:

    "k3"   exp(d) - d - 1      in the loss                       GRPO as published
    "k2"   d^2 / 2             in the loss; its gradient is that of the divergence
    "k1"   o - s               in the reward: A is less by kl times its sum over the transition; k is 0

The entropy bonus adds -entropy * o to the advantage of a token, less its mean (`entropy.py`).

`ratio` says what r is a ratio of (sg: without gradient):

    "token"     the token                                            PPO, GRPO, DAPO
    "sequence"  the transition: r = exp(mean of sg(p - b)) * exp(p - sg(p)), GSPO's token form
    "weight"    the token, as a weight: -w * sg(clip(r)) * A * p in place of the minimum          CISPO

The tokens are summed with the weights of `aggregation`, which but for a number add up to 1 over the batch:

    "token"     1 / (tokens of the batch)                            DAPO
    "sequence"  1 / (transitions * tokens of the transition)         GRPO as published
    "rollout"   1 / (rollouts * tokens of the rollout)               each rollout once
    a number    1 / (group_size * tasks_per_step * number)           Dr. GRPO

With a correction and more than one epoch this is decoupled PPO (Hilton et al., arXiv 2110.00641; Fu et al.,
AReaL, arXiv 2505.24298): the clip keeps close to q, the correction makes up for o.

Sources: Schulman et al., PPO, arXiv 1707.06347 (clip); Shao et al., DeepSeekMath, arXiv 2402.03300 (GRPO, k3
after Schulman 2020); Yu et al., DAPO, arXiv 2503.14476 (clip-higher, token mean, dynamic sampling); Liu et
al., Dr. GRPO, arXiv 2503.20783; Zheng et al., GSPO, arXiv 2507.18071; MiniMax-M1, arXiv 2506.13585 (CISPO).
Which estimator goes where: Liu et al., arXiv 2510.01555; Shah et al., arXiv 2512.21852. Left out: k1 in the
loss (its gradient is 0 in the mean), k2 and k3 in the reward (theirs is not the divergence's).
Dual clip: Ye et al., arXiv 1912.09729, eq. 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, get_args

from lightning_core.algorithms.base import (
    Critic,
    Entries,
    Prepared,
    RolloutAlgorithm,
    check_options,
    is_changed,
)
from lightning_core.algorithms.entropy import centred, rise, with_bonus
from lightning_core.credit.base import Baseline, Credit, Scale
from lightning_core.errors import ConfigError
from lightning_core.ranges import check_choice, check_range
from lightning_core.records.types import Key, Trajectory

if TYPE_CHECKING:
    import torch

Ratio = Literal["token", "sequence", "weight"]
Aggregation = Literal["token", "sequence", "rollout"]
Estimator = Literal["k1", "k2", "k3"]


class Correction(Protocol):
    """Weighs each token that other weights have sampled by how likely it still is.

    With o the log-probability as recorded and q that under the weights when the update began, a token's plain
    importance weight is exp(q - o). It is unbiased, and of unbounded variance; each correction bounds it.
    """

    def weigh(self, proximal: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
        """(E,) weight of each token, without gradient, from two log-probabilities of shape (E,)."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """min(exp(q - o), bound): truncated importance sampling (Yao et al. 2025, "Your efficient RL framework
    secretly brings you off-policy RL training"; Espeholt et al., IMPALA, arXiv 1802.01561)."""

    bound: float = 2.0

    def __post_init__(self) -> None:
        check_range("bound", self.bound, of="Truncated", least=1)  # the weight on-policy

    def weigh(self, proximal: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
        """The formula above."""
        return (proximal - recorded).exp().clamp(max=self.bound).detach()


@dataclass(frozen=True, slots=True)
class Masked:
    """exp(q - o) inside [low, high], else 0: the token is left out (IcePop, Ling team, 2025)."""

    low: float = 0.5
    high: float = 2.0

    def __post_init__(self) -> None:
        check_range("low", self.low, of="Masked", least=0, below=1)
        check_range("high", self.high, of="Masked", above=1)

    def weigh(self, proximal: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
        """The formula above."""
        ratio = (proximal - recorded).exp().detach()
        return ratio * ((ratio >= self.low) & (ratio <= self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient(RolloutAlgorithm):
    """Options and loss that GRPO and its kin share; each of them is a choice of defaults."""

    credit: str | Credit = "per_agent"
    """A credit method or the name of one; with one trained agent per_agent and uniform are the same."""
    baseline: Baseline = "mean"
    scale: Scale = "std"
    ratio: Ratio = "token"
    """The clipped number: a token's ratio, that of a whole transition (GSPO), or a token's weight (CISPO)."""
    clip: float | tuple[float, ...] = (0.2, 0.28)
    """How far the ratio may go below 1 and above it; one number for both. At 1 there is no bound below.
    A third number, above 1 and usually 3, is dual clip: where the advantage is negative, a ratio beyond it
    counts as this."""
    mini_batch_size: int | None = None
    """Tasks of one optimizer step: a pass over the batch makes a step from each so many groups, in order, so
    that clips act. None: one step from all."""
    aggregation: Aggregation | int = "token"
    """How tokens add up. A number divides the sum of each rollout: the tokens of a long one."""
    kl: float | tuple[float, Estimator] = 0.0
    """Weight of the divergence from the starting weights; 0 needs no reference model. (0.01, "k1") names the
    estimator too: "k3", the default, and "k2" act in the loss, "k1" in the reward of each call."""
    entropy: float = 0.0
    """Weight of an entropy bonus; it acts while batches have no more entropy than the first ones had."""
    correction: Correction | None = Truncated()
    """Makes up for tokens that other weights have sampled. None trusts the ratio to the recorded ones."""

    def __post_init__(self) -> None:
        check_options(self)
        kinds = {"baseline": Baseline, "scale": Scale, "ratio": Ratio}
        if isinstance(self.aggregation, str):
            kinds["aggregation"] = Aggregation
        for option, kind_of in kinds.items():
            check_choice(option, getattr(self, option), get_args(kind_of), of=type(self).__name__)
        kind = type(self).__name__
        if isinstance(self.clip, Sequence) and len(self.clip) not in (2, 3):
            self._refuse("clip", "give how far below 1, how far above it, and if you like dual clip's bound")
        check_range("clip", self.clip_low, of=kind, above=0, most=1)
        check_range("clip", self.clip_high, of=kind, above=0)
        if self.dual_clip is not None:
            check_range("clip", self.dual_clip, of=kind, above=1)
        if isinstance(self.kl, Sequence) and len(self.kl) != 2:
            self._refuse("kl", "give its weight, or its weight and an estimator")
        if self.estimator not in get_args(Estimator):
            self._refuse("kl", f"the estimators are {', '.join(get_args(Estimator))}")
        check_range("kl", self.kl_weight, of=kind, least=0, most=1e9)
        check_range("entropy", self.entropy, of=kind, least=0, most=1e9)
        if self.mini_batch_size is not None:
            check_range("mini_batch_size", self.mini_batch_size, of=kind, least=1, whole=True)
        if not isinstance(self.aggregation, str):
            check_range("aggregation", self.aggregation, of=kind, least=1, whole=True)
        weigh = None if isinstance(self.correction, type) else getattr(self.correction, "weigh", None)
        if self.correction is not None and not callable(weigh):
            self._refuse("correction", "give Truncated(), Masked(), an object with their method, or None")
        self._check_together()

    def _check_together(self) -> None:
        """Refuse options that contradict one another or would do nothing."""
        if self.group_size < 2 and self.baseline != "none" and self.critic is None:
            self._refuse("group_size", "one rollout has no others to be compared with; use baseline='none'")
        if self.baseline == "none" and self.scale in ("std", "mean"):
            self._refuse("scale", "it is a measure of those compared; with baseline='none' use 'batch'")
        if self.scale == "mean" and self.critic is not None:
            self._refuse("scale", "a critic's advantages have no mean return; use 'batch' or 'none'")
        if self.dynamic_sampling and self.baseline == "none" and self.scale == "batch":
            self._refuse(
                "dynamic_sampling", "with baseline='none' and scale='batch' every group says something"
            )
        if self.dynamic_sampling and self.critic is not None:
            self._refuse(
                "dynamic_sampling", "what a group says depends on the critic, which comes after the rollouts"
            )
        if self.mini_batch_size is not None and self.mini_batch_size >= self.tasks_per_step:
            self._refuse("mini_batch_size", "that is the whole batch; give less than tasks_per_step")
        if self.ratio == "weight" and self.dual_clip is not None:
            self._refuse(
                "clip", "a clipped weight has no use for dual clip's bound; leave the third number out"
            )
        if self.correction is not None and self.epochs == 1 and self.mini_batch_size is None:
            # the ratio is to the weights that begin the update, and no step is made before the loss is taken
            for option in ("ratio", "clip"):
                if is_changed(self, option):
                    self._refuse(
                        option,
                        "with a correction and one step the ratio is 1 and no clip acts; give epochs=2 or "
                        "more, a mini_batch_size, or correction=None to clip the ratio to the recorded "
                        "log-probabilities",
                    )

    def _refuse(self, option: str, why: str) -> NoReturn:
        raise ConfigError(f"{type(self).__name__} can't use {option}={getattr(self, option)!r}: {why}")

    @property
    def clip_low(self) -> float:
        """The ratio is bounded by 1 less this."""
        return self.clip[0] if isinstance(self.clip, Sequence) else self.clip

    @property
    def clip_high(self) -> float:
        """The ratio is bounded by 1 and this."""
        return self.clip[1] if isinstance(self.clip, Sequence) else self.clip

    @property
    def dual_clip(self) -> float | None:
        """Where the advantage is negative, a ratio beyond it counts as this."""
        return self.clip[2] if isinstance(self.clip, Sequence) and len(self.clip) == 3 else None

    @property
    def kl_weight(self) -> float:
        """Weight of the divergence."""
        return self.kl[0] if isinstance(self.kl, Sequence) else self.kl

    @property
    def estimator(self) -> Estimator:
        """Estimator of the divergence."""
        return self.kl[1] if isinstance(self.kl, Sequence) else "k3"

    @property
    def needs_reference(self) -> bool:
        return self.kl_weight > 0

    @property
    def regularised(self) -> bool:
        """Whether the loss has terms that act on every sampled token, also where all returns are equal.

        Groups that dynamic sampling replaces are left out all the same.
        """
        return (self.entropy > 0 or self.kl_weight > 0) and not self.dynamic_sampling

    def prepare(self, batch: Sequence[Trajectory], history: Sequence[Mapping[str, float]]) -> Prepared:
        """Without the entropy bonus while entropy is above that of the first batches; else the batch has the
        mean bonus taken off."""
        if not self.entropy:
            return Prepared(self, tuple(batch))
        present = self
        if rise(history) > 0:
            present = copy(self)  # `replace` would need the constructor of a subclass to take all options
            object.__setattr__(present, "entropy", 0.0)
        metrics = {"entropy_bonus": present.entropy}
        return Prepared(present, tuple(centred(batch, present.entropy)), metrics)

    @property
    def needs_proximal(self) -> bool:
        return self.correction is not None

    def weigh(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        """The weight of one token of each transition with loss, keyed (rollout_id, call_id, choice)."""
        rollouts = [
            {
                t.key: len(t.completion_ids)
                for t in trajectory.transitions
                if t.trained and t.advantage is not None
            }
            for trajectory in trajectories
        ]
        rollouts = [lengths for lengths in rollouts if sum(lengths.values())]
        tokens = sum(sum(lengths.values()) for lengths in rollouts)
        transitions = sum(len(lengths) for lengths in rollouts)
        expected = self.group_size * (self.mini_batch_size or self.tasks_per_step)

        def share(transition: int, rollout: int) -> float:
            match self.aggregation:
                case "token":
                    return 1 / tokens
                case "sequence":
                    return 1 / (transitions * max(transition, 1))
                case "rollout":
                    return 1 / (len(rollouts) * rollout)
                case constant:
                    return 1 / (expected * constant)

        return {
            key: share(length, sum(lengths.values()))
            for lengths in rollouts
            for key, length in lengths.items()
        }

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The formula above over E entries; metrics are weighted sums, so they add up over micro-batches.

        With a number for `aggregation` there is `loss_weight` too, the sum of the weights: a share is its
        metric divided by it.
        """
        from lightning_core.algorithms import losses

        surrogate, clipped = self._surrogate(entries)
        metrics = {"clip_share": clipped}
        per_token = -surrogate
        if self.correction is not None:
            assert entries.proximal_logprobs is not None
            trust = self.correction.weigh(entries.proximal_logprobs, entries.old_logprobs)
            per_token = trust * per_token
            metrics["importance_weight"] = trust
            plain = (entries.proximal_logprobs - entries.old_logprobs).exp()
            metrics["bounded_share"] = (trust != plain).to(trust.dtype)
        if entries.ref_logprobs is not None:
            estimate = {"k1": losses.k1, "k2": losses.k2, "k3": losses.k3}[self.estimator]
            divergence = estimate(entries.logprobs, entries.ref_logprobs)
            if self.estimator != "k1":  # that is in the advantage
                per_token = per_token + self.kl_weight * divergence
            metrics["kl_reference"] = divergence.detach()
        weighted = {name: (entries.weights * value).sum() for name, value in metrics.items()}
        if not isinstance(self.aggregation, str):
            weighted["loss_weight"] = entries.weights.sum()
        return (entries.weights * per_token).sum(), weighted

    def _surrogate(self, entries: Entries) -> tuple[torch.Tensor, torch.Tensor]:
        """(what is to grow, 1.0 where the clip was active), each (E,)."""
        from lightning_core.algorithms import losses

        anchor = entries.old_logprobs
        if self.correction is not None:
            assert entries.proximal_logprobs is not None
            anchor = entries.proximal_logprobs
        if self.ratio == "sequence":
            anchor = losses.sequence_anchor(entries.logprobs, anchor, entries.sequences)
        advantages = self._shaped(entries)
        if self.ratio == "weight":
            return losses.clipped_weight(entries.logprobs, anchor, advantages, self.clip_low, self.clip_high)
        return losses.clipped_surrogate(
            entries.logprobs, anchor, advantages, self.clip_low, self.clip_high, self.dual_clip
        )

    def _shaped(self, entries: Entries) -> torch.Tensor:
        """(E,) the advantages with the entropy bonus, less the divergence in the reward."""
        from lightning_core.algorithms import losses

        advantages = with_bonus(entries.advantages, entries.old_logprobs, self.entropy)
        if entries.ref_logprobs is not None and self.estimator == "k1":
            divergence = losses.k1(entries.old_logprobs, entries.ref_logprobs)
            advantages = advantages - self.kl_weight * losses.sequence_sums(divergence, entries.sequences)
        return advantages


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO(PolicyGradient):
    """GRPO: group relative policy optimisation. Rollouts are compared within their group: (G - mean) / std.

    Shao et al., DeepSeekMath, arXiv 2402.03300. As published every call gets its rollout's return. Other
    methods of credit are better in some apps and worse in others. The bonus on entropy was measured on the
    shipped example and where the truth about credit is known.
    """

    credit: str | Credit = "uniform"
    """A credit method or the name of one."""
    entropy: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RLOO(PolicyGradient):
    """RLOO: REINFORCE with a leave-one-out baseline.

        A_i = G_i - mean of G_j over the other rollouts j of the group          no scale

    A rollout's own return is no part of its baseline, so the gradient is unbiased; with n rollouts it is
    n / (n - 1) times that of the group's mean. Ahmadian et al., "Back to basics", arXiv 2402.14740.

    The paper sums log-probabilities over a reply. The token mean divides that sum by the same number for all
    tokens of a batch, which keeps its direction. Its KL penalty inside the reward: `kl=(0.01, "k1")`, without
    its baseline.
    """

    baseline: Baseline = "leave_one_out"
    scale: Scale = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePP(PolicyGradient):
    """REINFORCE++: returns are normalised over the whole batch, not within a group.

        A_i = (G_i - mean of G) / std of G          over all rollouts of the batch, each counted once

    One rollout of each task is enough, so a batch holds as many tasks as rollouts. With baseline="mean" and
    groups of two or more it is REINFORCE++-baseline: the group's mean is taken off first, which is better
    where tasks differ in difficulty or several agents are trained. Groups of equal returns carry no loss, and
    count with 0 in the mean and the deviation, as in the paper's batch. Hu et al., arXiv 2501.03262.

    A return is that of the whole rollout, or what the credit method makes of it: a call gets the reward that
    comes after later observations too. The KL penalty inside the reward: `kl=(0.01, "k1")`, which is not
    normalised with it.
    """

    group_size: int = 1
    tasks_per_step: int = 64
    baseline: Baseline = "none"
    scale: Scale = "batch"
    clip: float | tuple[float, ...] = 0.2
    """As in the paper; it acts with `epochs=2` or more, or without a correction."""

    @property
    def name(self) -> str:
        return "reinforce++"


@dataclass(frozen=True, slots=True, kw_only=True)
class PPO(PolicyGradient):
    """PPO: the clipped policy gradient with a critic, whose estimate of each state stands in for the group.

        A(t) = GAE(lambda) over the turns of a branch, with V before each reply      credit "gae"
        shifted to mean 0 and divided to deviation 1 over the batch                  scale "batch"
        V fitted to A + V by mean squared error                                      `Critic`

    Schulman et al., PPO, arXiv 1707.06347; GAE, arXiv 1506.02438. One action is one whole reply, as in
    Turn-PPO (Li et al., arXiv 2512.17008), and so V is read once for each reply, not at every token. As
    nothing is compared within a group, one rollout of a task is enough, and many tasks teach the critic more.
    Left out: weights shared between policy and critic. The defaults were measured on the shipped example.
    """

    group_size: int = 1
    tasks_per_step: int = 64
    credit: str | Credit = "gae"
    """A credit method that uses the critic's values, or the name of one."""
    critic: Critic = Critic()  # noqa: RUF009
    baseline: Baseline = "none"
    scale: Scale = "batch"
    clip: float | tuple[float, ...] = 0.2
    correction: Correction | None = None
    epochs: int = 2
