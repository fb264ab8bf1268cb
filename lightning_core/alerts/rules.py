"""The rules that watch how a run learns: each a pure function of a `Scene`, with formula and thresholds."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from lightning_core.alerts.watch import Finding, Scene, jitter, moving_means, numbers, total


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCollapse:
    """Reward collapse: the policy had learnt something and lost it.

        fall = best - recent,    best = the highest mean of `window` steps in a row, recent = that of the last
        found if  fall > drop * max(|best|, best - lowest)  and  fall > noise * s * sqrt(2 / window)

    `lowest` is the lowest reward of a step and s the jitter of the rewards, both before the last window. The
    first bound asks for a large fall, the second for one that chance does not explain: sqrt(2 / window) * s
    is the deviation of the difference of two such means. The best of many means lies far from an ordinary
    one, so chance needs six: of 100 runs of 200 steps of pure noise, each step the mean of 8 coin flips, 1 to
    5 raise this alert.
    """

    window: int = 5
    """Steps that are averaged."""
    drop: float = 0.4
    """Part of the best that must be lost. In 52 recorded runs the mean of five steps, on tasks that differ,
    was never more than 0.3 of the best below it."""
    noise: float = 6.0
    """Deviations that chance may explain."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        rewards = numbers(scene.history, "reward")
        before, last = rewards[: -self.window], rewards[-self.window :]
        if len(before) < self.window:
            return
        best, recent = max(moving_means(before, self.window)), fmean(last)
        fall = best - recent
        large = self.drop * max(abs(best), best - min(before))
        chance = self.noise * jitter(before) * math.sqrt(2 / self.window)
        if fall > large and fall > chance:
            yield Finding(
                f"the mean reward of {self.window} steps fell from {best:.3g} to {recent:.3g}; stop, and go "
                "on from a checkpoint before the fall with a lower learning rate or kl above 0, and look at "
                "rollouts from before and after it (agentlightning show RUN --rollout worst)",
                level="critical",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyCollapse:
    """Entropy collapse: the policy says the same whatever it samples, so that nothing better can be found.

        H = minus the mean log-probability of the sampled tokens: estimates the policy's entropy per token
        found if  H(last window) < share * H(first window)  and  top - reward > slack * (top - lowest)

    `top` and `lowest` are the rewards of the best and the worst step, `reward` is that of the last window. A
    policy that is sure because it is right has a reward near its best step; that is no collapse. How entropy
    is spent: Cui et al., "The Entropy Mechanism of RL for Reasoning Language Models", arXiv 2505.22617.
    """

    window: int = 5
    """Steps that are averaged."""
    share: float = 0.1
    """Part of the first entropy below which there is none left to speak of. In 52 recorded runs that learnt
    well it never fell below 0.17 of the first, five steps taken together."""
    slack: float = 0.1
    """How far below its best step, as a part of the range seen, the reward still counts as at its best."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        rewards = numbers(scene.history, "reward")
        entropies = numbers(scene.history, "entropy")
        if len(entropies) < 2 * self.window or len(rewards) < self.window:
            return
        first, last = fmean(entropies[: self.window]), fmean(entropies[-self.window :])
        top, low, reward = max(rewards), min(rewards), fmean(rewards[-self.window :])
        if last < self.share * first and top - reward > self.slack * (top - low):
            yield Finding(
                f"the entropy of what is sampled fell from {first:.3g} to {last:.3g} nats per token, with "
                f"the reward at {reward:.3g} and not at its best of {top:.3g}: the policy no longer tries "
                "anything else; train again with a higher bonus on entropy, such as GRPO(entropy=0.1), or a "
                "lower learning rate"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobGap:
    """Log-probability gap: the engine that samples and the optimizer that trains do not agree on the policy.

        g = mean of |log p(training) - log p(engine)|, before the first step of an update
            over the tokens that the weights under training sampled
        found if  g > bound, or g > half_bound where they compute in half precision    in the last step

    Stale and replayed tokens do not count, so g is 0 but for rounding. Where it is not, the importance ratio
    of a token is off by about exp(g) - 1, and the update is silently off-policy (Yao et al., "Your Efficient
    RL Framework Secretly Brings You Off-Policy RL Training", 2025). A run stops by itself where g is larger
    still (`max_logprob_gap`).
    """

    bound: float = 0.02
    """Nats in float32: the ratios are off by 2 %. The local engine has 1e-6."""
    half_bound: float = 0.1
    """Nats in bfloat16. There rounding alone makes 0.04 to 0.08 for SmolLM2, on plain English."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        values = scene.history[-1].values if scene.history else {}
        bound = self.half_bound if values.get("half_precision") else self.bound
        if "logprob_gap_mean" not in values or values["logprob_gap_mean"] <= bound:
            return  # not a number is beyond
        yield Finding(f"{describe_gap(values)}, where rounding makes less than {bound:g}; {GAP_CAUSES}")


GAP_CAUSES = (
    "give engine and training the same weights, number format, chat template and sampling, take a model "
    "whose family is served exactly (docs/own-model.md), and keep a correction (Truncated)"
)


def describe_gap(values: Mapping[str, float]) -> str:
    """How far what was sampled is from what is trained, with both figures."""
    sampled, trained = values.get("sampled_logprob"), values.get("trained_logprob")
    both = "" if sampled is None or trained is None else f" ({sampled:.4g} and {trained:.4g} on average)"
    return (
        f"log-probabilities of tokens when sampled and when trained{both} are "
        f"{values['logprob_gap_mean']:.3g} nats apart on average, "
        f"{values.get('logprob_gap_max', math.nan):.3g} at most: what is trained is not what was sampled"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroVariance:
    """Zero-variance share: all rollouts of a group got the same reward, so none can be told to be better.

        found if  (groups of equal rewards) / (groups) >= share    over the last `window` steps

    Such groups have no advantage under any baseline. Only a bonus on entropy trains on them.
    """

    window: int = 5
    """Steps that are counted together."""
    share: float = 0.95
    """Share of the groups. Of 52 recorded runs, many of which had learnt their tasks, one reached it: with a
    reward of 0.99."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        steps = [entry for entry in scene.history if "groups" in entry.values][-self.window :]
        groups, equal = total(steps, "groups"), total(steps, "zero_variance_groups")
        if len(steps) < self.window or equal < self.share * groups or not groups:
            return
        reward = fmean(numbers(steps, "reward") or [0.0])
        yield Finding(
            f"{equal:.0f} of {groups:.0f} groups of the last {self.window} steps had equal rewards (mean "
            f"{reward:.3g}), so no rollout was better than another; if that is the best there is, stop here, "
            "else give tasks that are solved sometimes, a finer reward, a larger group_size, "
            "dynamic_sampling=1, or a curriculum by a field of the tasks"
        )


NOTHING_EARNED = (
    "the model can't do this task yet; hold replies to a schema (response_format), put examples into the "
    "prompt, give easier tasks or a reward for part of the way, demonstrations (SFT) or a larger model"
)
"""Advice where no rollout earned anything."""


def nothing_earned(scene: Scene) -> Iterator[Finding]:
    """Nothing earned: every rewarded rollout of every step so far got 0, so nothing can be learnt.

    Found after the first step: `zero_variance`, which counts all equal rewards, waits for five.
    """
    steps = [entry.values for entry in scene.history if "reward_max" in entry.values]
    if steps and not any(values["reward_min"] or values["reward_max"] for values in steps):
        rollouts = sum(values.get("rollouts", 0.0) for values in steps)
        yield Finding(f"none of {rollouts:.0f} training rollouts earned anything: {NOTHING_EARNED}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingRollouts:
    """Failing rollouts: the app fails more often than it did, or most of the time.

    p = failed share of the n rollouts of the last `window` steps,  q = (failed + 1) / (m + 2) of m before
    found if  p >= share,  or  p - q >= rise  and  p - q > noise * sqrt(q * (1 - q) * (1 / n + 1 / m))
    """

    window: int = 5
    """Steps that are counted together."""
    share: float = 0.5
    """Share of failing rollouts above which an alert is given, whatever the share was before."""
    rise: float = 0.1
    """Least rise of the share."""
    noise: float = 4.0
    """Deviations that chance may explain."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        steps = [entry for entry in scene.history if "rollouts" in entry.values]
        before, last = steps[: -self.window], steps[-self.window :]
        rollouts = total(last, "rollouts")
        if len(last) < self.window or not rollouts:
            return
        now, former = total(last, "failures") / rollouts, total(before, "rollouts")
        usual = (total(before, "failures") + 1) / (former + 2)
        chance = self.noise * math.sqrt(usual * (1 - usual) * (1 / rollouts + 1 / max(former, 1)))
        risen = bool(before) and now - usual >= self.rise and now - usual > chance
        if now >= self.share or risen:
            was = f", against {usual:.0%} before" if before else ""
            yield Finding(
                f"{now:.0%} of the rollouts of the last {self.window} steps failed{was}; the newest of them "
                "(agentlightning show RUN) say why: a service that is down, a time-out, an agent that writes "
                "what the app can't read",
                level="critical" if now >= self.share else "warning",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresByReply:
    """Failures that follow from replies: which rollouts fail depends on what the policy said first.

        r = (between - chance) / (total - chance)    over the last `window` steps
        found if  r >= share  and  between > noise * chance  and  total >= least

    The sums are those of `trainer.batch`; r is 1 if the replies decide, and 0 by chance. The window varies
    enough, and replies repeat enough, if `total` and `total - chance` are large.
    """

    window: int = 5
    """Steps that are counted together."""
    share: float = 0.3
    """Least share of the variation that the replies must explain."""
    noise: float = 2.0
    """How much more than chance they must explain."""
    least: float = 4.0
    """Least `total`: about six failures in groups of eight."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        steps = scene.history[-self.window :]
        names = ("failures_by_reply", "failures_by_chance", "failures_varied")
        between, chance, varied = (total(steps, name) for name in names)
        if len(steps) < self.window or varied < self.least or between <= self.noise * chance:
            return
        if between - chance >= self.share * (varied - chance):
            yield Finding(
                f"which rollouts of a group failed in the last {self.window} steps depends on what the "
                "policy replied first; look at failed ones beside others of their task (agentlightning show "
                'RUN). Failures that count lower their replies; FailurePolicy(then="drop") would raise them'
            )


WATCHED = ("loss", "grad_norm", "value_loss")


def failed_update(scene: Scene) -> Iterator[Finding]:
    """Failed updates: the loss or the gradient was not a finite number, so a step changed nothing.

        found if  the last step had `failed_updates`, or a loss or gradient that is not finite

    No threshold: an update has a finite loss and finite weights. The run itself stops at the third in a row.
    """
    if not scene.history:
        return
    last = scene.history[-1]
    broken = [name for name in WATCHED if not math.isfinite(last.values.get(name, 0.0))]
    if last.values.get("failed_updates") or broken:
        named = f" ({', '.join(broken)} not finite)" if broken else ""
        yield Finding(
            f"the update of step {last.step + 1} could not be made{named}, and its rollouts were of no use; "
            "the log says why: look for rewards that are not finite, and lower the learning rate",
            level="critical",
        )


def unusable_groups(scene: Scene) -> Iterator[Finding]:
    """Unusable groups: a reward or an advantage in them is not finite, or too large.

        found if  the last step had `unusable_groups`

    No threshold: rewards are checked where they are given, so none should get here.
    """
    if not scene.history:
        return
    last = scene.history[-1]
    if count := last.values.get("unusable_groups", 0.0):
        yield Finding(
            f"{count:.0f} of {last.values.get('groups', count):.0f} groups of step {last.step + 1} were left "
            "out, as a reward or an advantage in them is not finite or too large; the log says which"
        )


def staleness(scene: Scene) -> Iterator[Finding]:
    """Staleness beyond its bound: a batch was trained on that is older than was asked for.

        found if  staleness_max > staleness + replay    in the last step; the metrics hold the bound too

    No threshold: the user gives the bound, and it holds while rollouts are requested as planned.
    """
    values = scene.history[-1].values if scene.history else {}
    oldest, bound = values.get("staleness_max"), values.get("staleness_bound")
    if oldest is not None and bound is not None and oldest > bound:
        yield Finding(
            f"a rollout was trained on that was sampled {oldest:.0f} updates before, and {bound:.0f} are "
            "allowed; is a gateway still serving old weights, or was the run resumed from an older "
            "checkpoint? Restart what serves them"
        )


def unseen_calls(scene: Scene) -> Iterator[Finding]:
    """Unseen calls: calls of a model were noticed, and could be neither sent to the gateway nor recorded.

        found if  any, for each host, library and agent

    No threshold: what is missing in a rollout is missing in what its reward is credited to.
    """
    for subject, (said, count) in scene.unseen.items():
        yield Finding(f"{count} so far: {said}", subject=subject, level="critical", since="")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsWithoutCalls:
    """Rollouts without calls: the app gave a reward and asked no model.

        found if  (rollouts that succeeded and hold no call) / (rollouts) >= share    in the last step

    A cache of replies does that: the first rollout of a group asks, the others are given what it was told.
    Their calls are then missing in every comparison with it. Known caches are by-passed for trained agents
    (`tracing/unseen.py`).
    """

    share: float = 0.05
    """Share of the rollouts. An app may answer a task without a model once in a while."""

    def __call__(self, scene: Scene) -> Iterator[Finding]:
        values = scene.history[-1].values if scene.history else {}
        silent, rollouts = values.get("rollouts_without_calls", 0.0), values.get("rollouts", 0.0)
        if not silent or silent < self.share * rollouts:
            return
        kept = os.environ.get("LIGHTNING_CACHES") == "keep"
        known = "LIGHTNING_CACHES=keep keeps those" if kept else "by-passed are those"
        yield Finding(
            f"{silent:.0f} of {rollouts:.0f} rollouts of the last step succeeded without a call of a model; "
            "does the app keep replies in a cache of its own? Switch it off for the agents that are trained "
            f"({known} of LangChain, AutoGen, LiteLLM and DSPy), and see docs/frameworks.md"
        )
