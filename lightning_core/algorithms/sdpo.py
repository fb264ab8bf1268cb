"""SDPO: self-distillation policy optimisation. The policy learns from itself, shown a text more.

For a reply that went wrong the teacher is the policy under the weights that begin the update, whose prompt is
longer: the call's own messages, and after them a text that tells what would have been right. The policy
learns to reply as the teacher would, from its own prompt. For a sampled token with log-probability p under
the weights being trained, T under the teacher, and GRPO's advantage A of its transition (sg: without
gradient):

    D = T - sg(p)                       where its call has a teacher, else 0
    D = sigmoid(gate * (T - sg(p)))     with a gate
    advantage of the token = grpo * A + (1 - grpo) * D

in the place of A in the clipped policy gradient (`policy_gradient`). With `grpo` 0 the gradient is that of
the mean of KL(policy, teacher) as estimated on the sampled tokens, and what has no teacher carries no loss.

The text that a teacher is shown, of which each call has at most one:

- the reply of a sibling: a rollout of the group with a better final reward, the best of those in which the
  agent had this turn, the first of equals. It is that agent's reply at the same turn. As failures of a group
  have the same sibling, their teachers' prompts are computed once;
- else the feedback: what the reasons of rewards say about the call, or of the whole rollout, unless the
  rollout ended best of its group with a reward above 0. So a group without a success can teach too,
  with `grpo` 0.

Sources: Hübotter et al., "Reinforcement Learning via Self-Distillation", arXiv 2601.20802, with the estimate
on sampled tokens of its code (github.com/lasgroup/SDPO, `compute_self_distillation_loss`, which is TRL's
default too), its texts, feedback where there is no sibling, and its blend with GRPO. The gate: Lu et al.,
SDAR, arXiv 2605.15155, as in its code (github.com/ZJU-REAL/SDAR, `compute_sdar_loss`), where it is 5 and
`grpo` 0.99. Left out: divergences over the whole vocabulary or its likeliest tokens, for which logits of both
would have to be kept; a moving average of the weights as the teacher; a teacher for replies of rollouts that
ended best (arXiv 2604.02288 found them to do harm); and retrieved skills, which SDAR's teacher is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lightning_core.algorithms.base import Entries, is_changed
from lightning_core.algorithms.policy_gradient import PolicyGradient
from lightning_core.credit.base import EPSILON, Comparison, Credit, group_by_id, turn_numbers
from lightning_core.credit.branches import without_dropped
from lightning_core.ranges import check_range
from lightning_core.records.types import Key, Trajectory, Transition

if TYPE_CHECKING:
    import torch

REPLY, FEEDBACK = "{reply}", "{feedback}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SDPO(PolicyGradient):
    """The options of the policy gradient that weigh returns act with `grpo` above 0 alone."""

    credit: str | Credit = "uniform"
    """GRPO's credit method, or the name of one. With `grpo` 0 it is `taught`."""
    grpo: float = 0.0
    """Share of GRPO's advantage in the advantage of a token."""
    gate: float | None = None
    """Steepness of SDAR's gate. None: the difference of log-probabilities as it is."""
    reply_hint: str = "Correct solution:\n\n{reply}\n\nCorrectly solve the original question."
    """The text that a teacher is shown with the reply of a sibling."""
    feedback_hint: str = (
        "The following is feedback from your unsuccessful earlier attempt:\n\n{feedback}\n\n"
        "Correctly solve the original question."
    )
    """The text that a teacher is shown with feedback."""

    def __post_init__(self) -> None:
        if not self.grpo and self.credit == "uniform":
            object.__setattr__(self, "credit", taught)
        elif self.grpo and self.credit is taught:
            object.__setattr__(self, "credit", "uniform")
        PolicyGradient.__post_init__(self)  # a class with slots has no `super()`
        check_range("grpo", self.grpo, of="SDPO", least=0, below=1)
        check_range("group_size", self.group_size, of="SDPO", least=2, whole=True)
        if self.gate is not None:
            check_range("gate", self.gate, of="SDPO", above=0)
        for option, part in (("reply_hint", REPLY), ("feedback_hint", FEEDBACK)):
            if part not in getattr(self, option):
                self._refuse(option, f"it has no {part}, where the teacher is shown it")
        if self.grpo:
            return
        idle = [each for each in ("baseline", "scale", "entropy", "kl") if is_changed(self, each)]
        if idle or self.credit is not taught:
            self._refuse(
                (*idle, "credit")[0],
                "with grpo=0 only what has a teacher carries loss, and returns are not weighed; leave it "
                "out, or give GRPO a share, such as grpo=0.5",
            )

    @property
    def needs_teacher(self) -> bool:
        return True

    def hints(self, trajectories: Sequence[Trajectory], replies: Mapping[Key, str]) -> dict[Key, str]:
        """The text that the teacher of each transition is shown, for those that have a teacher.

        `replies`: the text of each reply.
        """
        return {
            t.key: self.reply_hint.replace(REPLY, replies[sibling.key])
            if sibling is not None
            else self.feedback_hint.replace(FEEDBACK, t.feedback)
            for group in group_by_id(trajectories).values()
            for t, sibling in _lessons(group)
            if sibling is None or replies.get(sibling.key)
        }

    def weigh(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        """As in the policy gradient; with `grpo` 0 over transitions that have a teacher."""
        if not self.grpo:
            trajectories = [_with_teacher(each) for each in trajectories]
        return PolicyGradient.weigh(self, trajectories)

    def _shaped(self, entries: Entries) -> torch.Tensor:
        """(E,) the advantages, as above."""
        import torch

        assert entries.teacher_logprobs is not None
        gap = entries.teacher_logprobs - entries.logprobs.detach()
        given = gap if self.gate is None else torch.sigmoid(self.gate * gap)
        distilled = torch.where(gap.isnan(), 0.0, given)
        if not self.grpo:
            return distilled
        return self.grpo * PolicyGradient._shaped(self, entries) + (1 - self.grpo) * distilled


def taught(group: Sequence[Trajectory]) -> list[Comparison]:
    """SDPO's credit: 1 for every call that its teacher can be shown something about."""
    found = {t.key for t, _ in _lessons(group)}
    peers = ({t.key: 1.0 for t in each.transitions if t.key in found} for each in group)
    return [Comparison(tuple(peers), baseline=False)]


def _lessons(group: Sequence[Trajectory]) -> Iterator[tuple[Transition, Transition | None]]:
    """Yields each transition that has a teacher, with the sibling's that is shown; None: its feedback is."""
    turns: dict[tuple[str, int], list[tuple[Trajectory, Transition]]] = {}
    for trajectory in map(without_dropped, group):
        numbers = turn_numbers(trajectory)
        for t in trajectory.transitions:
            if t.trained:
                turns.setdefault((t.agent, numbers[t.key]), []).append((trajectory, t))
    for (agent, _), there in turns.items():
        most = max(each.final(agent) for each in group)
        best, shown = max(there, key=lambda one: one[0].final(agent))  # the first of equals
        for trajectory, t in there:
            own = trajectory.final(agent)
            if own < best.final(agent) - EPSILON:
                yield t, shown
            elif t.feedback and (own < most - EPSILON or own <= EPSILON):
                yield t, None


def _with_teacher(trajectory: Trajectory) -> Trajectory:
    kept = tuple(t for t in trajectory.transitions if t.teacher_ids is not None)
    return replace(trajectory, transitions=kept)
