"""The clipped policy gradient, with the choices that make GRPO, RLOO, REINFORCE++ and PPO of it.

For a sampled token with log-probability `p` under the weights being trained, `o` as recorded when it was
sampled, `q` under the weights when the update began, and advantage A of its transition:

    ratio   r = exp(p - b)                 b = q with a correction, else o; q = p as long as no step was made
    trust   w = correction(q, o)           1 without one
    loss    -w * min(r * A, clip(r) * A) + kl * k           clip(r) within [1 - clip_low, 1 + clip_high]

With `dual_clip` the minimum is no less than dual_clip * A where A < 0. The divergence from the frozen
starting weights, under which the token has log-probability s, is estimated by k, with d = s - p:

    "k3"   exp(d) - d - 1      in the loss                       GRPO as published
    "k2"   d^2 / 2             in the loss; its gradient is that of the divergence
    "k1"   o - s               in the reward: A is less by kl times its sum over the transition; k is 0

The entropy bonus adds -entropy * o to the advantage of a token. On the policy, in the mean, its gradient is
that of the entropy of the distribution which the token was sampled from, E[-(log p + 1) grad log p].

`ratio` says what r is a ratio of (sg: without gradient):

    "token"     the token                                            PPO, GRPO, DAPO
    "sequence"  the transition: r = exp(mean of sg(p - b)) * exp(p - sg(p)), GSPO's token form
    "weight"    the token, as a weight: -w * sg(clip(r)) * A * p in place of the minimum          CISPO

The tokens are summed with the weights of `aggregation`, which but for "constant" add up to 1 over the batch:

    "token"     1 / (tokens of the batch)                            DAPO
    "sequence"  1 / (transitions * tokens of the transition)         GRPO as published
    "rollout"   1 / (rollouts * tokens of the rollout)               each rollout once
    "constant"  1 / (group_size * tasks_per_step * constant)         Dr. GRPO

With a correction and more than one epoch this is decoupled PPO (Hilton et al., arXiv 2110.00641; Fu et al.,
AReaL, arXiv 2505.24298): the clip keeps close to q, the correction makes up for o.

Sources: Schulman et al., PPO, arXiv 1707.06347 (clip); Shao et al., DeepSeekMath, arXiv 2402.03300 (GRPO, k3
after Schulman 2020); Yu et al., DAPO, arXiv 2503.14476 (clip-higher, token mean, dynamic sampling); Liu et
al., Dr. GRPO, arXiv 2503.20783; Zheng et al., GSPO, arXiv 2507.18071; MiniMax-M1, arXiv 2506.13585 (CISPO).
Dual clip: Ye et al., arXiv 1912.09729, eq. 5. Which estimator goes where: Liu et al., arXiv 2510.01555; Shah
et al., arXiv 2512.21852. Left out: k1 in the loss (its gradient is 0 in the mean), k2 and k3 in the reward
(theirs is not the divergence's).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, get_args

from lightning_core.algorithms.base import Entries, RolloutAlgorithm, check_options, is_changed
from lightning_core.algorithms.corrections import Correction, Truncated
from lightning_core.credit.base import Baseline, Credit, Scale
from lightning_core.errors import ConfigError
from lightning_core.ranges import check_range
from lightning_core.types import Key, Trajectory

if TYPE_CHECKING:
    import torch

Ratio = Literal["token", "sequence", "weight"]
Aggregation = Literal["token", "sequence", "rollout", "constant"]
Estimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient(RolloutAlgorithm):
    """Options that GRPO and its kin share; each of them is a choice of defaults."""

    credit: str | Credit = "per_agent"
    """A credit method or the name of one; with one trained agent per_agent and uniform are the same."""
    baseline: Baseline = "mean"
    scale: Scale = "std"
    ratio: Ratio = "token"
    """What is clipped: a token's ratio, that of a whole transition (GSPO), or a token's weight (CISPO)."""
    clip_low: float = 0.2
    """At 1 there is no bound below."""
    clip_high: float = 0.28
    dual_clip: float | None = None
    """Above 1: where the advantage is negative, a ratio beyond it counts as this. Usual: 3."""
    mini_batch_size: int | None = None
    """Tasks of one optimizer step: a pass over the batch makes a step from each so many groups, in order, so
    that clips act. None: one step from all."""
    aggregation: Aggregation = "token"
    constant: int | None = None
    """What aggregation="constant" divides a rollout by: the tokens of a long one."""
    kl: float = 0.0
    """Weight of the divergence from the starting weights; 0 needs no reference model."""
    kl_estimator: Estimator = "k3"
    """How it is estimated: "k2" and "k3" in the loss, "k1" in the reward of each call."""
    entropy: float = 0.0
    """Weight of an entropy bonus; 0.001 to 0.01 where a policy grows sure of one thing too soon."""
    correction: Correction | None = Truncated()  # noqa: RUF009
    """Makes up for tokens that other weights have sampled. None trusts the ratio to the recorded ones."""

    def __post_init__(self) -> None:
        check_options(
            self,
            baseline=self.baseline in get_args(Baseline),
            scale=self.scale in get_args(Scale),
            ratio=self.ratio in get_args(Ratio),
            aggregation=self.aggregation in get_args(Aggregation),
            kl_estimator=self.kl_estimator in get_args(Estimator),
        )
        kind = type(self).__name__
        check_range("clip_low", self.clip_low, of=kind, above=0, most=1)
        check_range("clip_high", self.clip_high, of=kind, above=0)
        check_range("kl", self.kl, of=kind, least=0, most=1e9)
        check_range("entropy", self.entropy, of=kind, least=0, most=1e9)
        if self.dual_clip is not None:
            check_range("dual_clip", self.dual_clip, of=kind, above=1)
        if self.mini_batch_size is not None:
            check_range("mini_batch_size", self.mini_batch_size, of=kind, least=1, whole=True)
        if self.constant is not None:
            check_range("constant", self.constant, of=kind, least=1, whole=True)
        self._check_together()

    def _check_together(self) -> None:
        """Refuse options that contradict one another or would do nothing."""
        if self.group_size < 2 and self.baseline != "none" and self.critic is None:
            self._refuse("group_size", "one rollout has no others to be compared with; use baseline='none'")
        if self.baseline == "none" and self.scale == "std":
            self._refuse("scale", "the deviation is about the baseline; with baseline='none' use 'batch'")
        if self.dynamic_sampling and self.baseline == "none" and self.scale == "batch":
            self._refuse(
                "dynamic_sampling", "with baseline='none' and scale='batch' every group says something"
            )
        if self.dynamic_sampling and self.critic is not None:
            self._refuse(
                "dynamic_sampling", "what a group says depends on the critic, which comes after the rollouts"
            )
        if (self.aggregation == "constant") != (self.constant is not None):
            self._refuse("constant", "it goes with aggregation='constant', which needs it")
        if self.mini_batch_size is not None and self.mini_batch_size >= self.tasks_per_step:
            self._refuse("mini_batch_size", "that is the whole batch; give less than tasks_per_step")
        if self.dual_clip is not None and self.ratio == "weight":
            self._refuse("dual_clip", "with ratio='weight' no token's gradient is cut off; bound the weight")
        if self.kl_estimator != "k3" and not self.kl:
            self._refuse("kl_estimator", "there is nothing to estimate; give kl above 0")
        if self.correction is not None and self.epochs == 1 and self.mini_batch_size is None:
            # the ratio is to the weights that begin the update, and no step is made before the loss is taken
            for option in ("ratio", "clip_low", "clip_high", "dual_clip"):
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
    def needs_reference(self) -> bool:
        return self.kl > 0

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
        shares: dict[Aggregation, Callable[[int, int], float]] = {
            "token": lambda transition, rollout: 1 / tokens,
            "sequence": lambda transition, rollout: 1 / (transitions * max(transition, 1)),
            "rollout": lambda transition, rollout: 1 / (len(rollouts) * rollout),
            "constant": lambda transition, rollout: (
                1 / (self.group_size * (self.mini_batch_size or self.tasks_per_step) * (self.constant or 1))
            ),
        }
        share = shares[self.aggregation]
        return {
            key: share(length, sum(lengths.values()))
            for lengths in rollouts
            for key, length in lengths.items()
        }

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The formula above over E entries; metrics are weighted sums, so they add up over micro-batches.

        "constant" adds `loss_weight`, the sum of the weights: a share is its metric divided by it.
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
            estimate = {"k1": losses.k1, "k2": losses.k2, "k3": losses.k3}[self.kl_estimator]
            divergence = estimate(entries.logprobs, entries.ref_logprobs)
            if self.kl_estimator != "k1":  # that is in the advantage
                per_token = per_token + self.kl * divergence
            metrics["kl_reference"] = divergence.detach()
        weighted = {name: (entries.weights * value).sum() for name, value in metrics.items()}
        if self.aggregation == "constant":
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

        advantages = entries.advantages
        if self.entropy:
            advantages = advantages - self.entropy * entries.old_logprobs
        if entries.ref_logprobs is not None and self.kl_estimator == "k1":
            divergence = losses.k1(entries.old_logprobs, entries.ref_logprobs)
            advantages = advantages - self.kl * losses.sequence_sums(divergence, entries.sequences)
        return advantages
