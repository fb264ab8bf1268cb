"""The algorithm's contract: how credited transitions become a loss.

An algorithm is a frozen dataclass of options with a few pure functions. The trainer reads how many rollouts
it wants and how they are credited; the backend asks for weights and loss. Everything is flat over loss
entries: one entry is one sampled token of one trained transition (E entries in a micro-batch). Micro-batches
add up, so the loss of a batch is the plain sum of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from lightning_core.credit.base import Baseline, Credit, CreditReport, Scale, assign, group_by_id
from lightning_core.errors import ConfigError
from lightning_core.ranges import check_range
from lightning_core.records.types import Demonstration, Key, Trajectory

if TYPE_CHECKING:
    import torch

    from lightning_core.algorithms.search import Search

LEAST: Mapping[str, int] = MappingProxyType(
    {
        "group_size": 1,
        "tasks_per_step": 1,
        "batch_size": 1,
        "epochs": 1,
        "staleness": 0,
        "replay": 0,
        "dynamic_sampling": 0,
    }
)
"""The smallest values of every algorithm's options."""


@dataclass(frozen=True, slots=True)
class Critic:
    """A value function V(state) at the turns of the trained agents, fitted beside the policy."""

    learning_rate: float | None = None
    """None: the backend's choice for this model."""
    epochs: int = 2
    """Passes over each batch, one optimizer step each; of many it learns the batch by heart."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.learning_rate is not None:
            check_range("learning_rate", self.learning_rate, of="Critic", above=0, most=1)


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """The data of an algorithm that learns without rollouts."""

    rows: tuple[Demonstration, ...]
    batch_size: int
    """Demonstrations of one update."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The loss entries of a micro-batch, one row per sampled token."""

    logprobs: torch.Tensor
    """(E,) under the weights being trained, with gradient."""
    old_logprobs: torch.Tensor
    """(E,) as recorded when the token was sampled; NaN in a demonstration, which was not sampled here."""
    advantages: torch.Tensor
    """(E,) of the transition the token belongs to."""
    weights: torch.Tensor
    """(E,) the share of each token in the batch's loss."""
    sequences: torch.Tensor
    """(E,) int64: which transition of the micro-batch a token belongs to, counted from 0."""
    units: torch.Tensor
    """(E,) int64: which unit of the algorithm a token belongs to; -1 where it has none."""
    proximal_logprobs: torch.Tensor | None = None
    """(E,) under the weights as they were when the update began, without gradient, if `needs_proximal`."""
    ref_logprobs: torch.Tensor | None = None
    """(E,) under the frozen weights that the phase began with, if `needs_reference`."""
    teacher_logprobs: torch.Tensor | None = None
    """(E,) under the weights that began the update, after the teacher's prompt, without gradient, if
    `needs_teacher`; NaN where the transition has no teacher."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An algorithm and a batch, ready for an update."""

    algorithm: Algorithm
    """The algorithm as it is at that point of its phase."""
    batch: tuple[Trajectory, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the step that follow from the algorithm's state."""


class Algorithm(Protocol):
    """GRPO and its kin."""

    @property
    def name(self) -> str: ...

    # what the trainer asks ----------------------------------------------------------------
    @property
    def group_size(self) -> int:
        """Rollouts of one task that are compared with one another."""

    @property
    def tasks_per_step(self) -> int:
        """Tasks of one update, `group_size` rollouts each."""

    @property
    def credit(self) -> str | Credit:
        """A credit method, or the name of one."""

    @property
    def baseline(self) -> Baseline: ...
    @property
    def scale(self) -> Scale: ...

    @property
    def critic(self) -> Critic | None:
        """The critic whose values the credit method needs; None for none."""

    @property
    def learns_from(self) -> Demonstrations | None:
        """Demonstrations to learn from; None: rollouts are asked for."""

    @property
    def staleness(self) -> int:
        """Updates by which the weights that sampled a rollout may be behind those it is used to update.
        0: the rollouts of a step begin when the step before is done; above, they go on while it updates."""

    @property
    def replay(self) -> int:
        """Further updates, after its own, in which a rollout is trained on again."""

    @property
    def dynamic_sampling(self) -> int:
        """How many times groups that say nothing are replaced by groups of other tasks."""

    @property
    def curriculum(self) -> str | None:
        """A field of the tasks: values that fall short of the best reward are drawn more often."""

    def prepare(self, batch: Sequence[Trajectory], history: Sequence[Mapping[str, float]]) -> Prepared:
        """The credited batch and the algorithm for an update. `history`: the entropy of each agent in nats
        per token, for each batch of the phase so far, this one included."""

    def hints(self, trajectories: Sequence[Trajectory], replies: Mapping[Key, str]) -> Mapping[Key, str]:
        """The text that the teacher of each transition is shown after the call's own messages; those without
        a teacher are left out. `replies`: the text of each reply. Needed only with `needs_teacher`."""

    # what the backend asks ----------------------------------------------------------------
    @property
    def needs_teacher(self) -> bool:
        """Whether `teacher_logprobs` must be given: those of the policy itself with a longer prompt."""

    @property
    def needs_reference(self) -> bool:
        """Whether `ref_logprobs` must be given."""

    @property
    def needs_proximal(self) -> bool:
        """Whether `proximal_logprobs` must be given; with more than one epoch that takes a pass."""

    @property
    def epochs(self) -> int:
        """Passes over each batch."""

    def weigh(self, trajectories: Sequence[Trajectory]) -> dict[Key, float]:
        """The weight of one token of each transition that is to carry loss."""

    def units(self, trajectories: Sequence[Trajectory]) -> dict[Key, int]:
        """Transitions whose tokens the loss must see together, under the same number; empty if any split of
        the batch will do."""

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(scalar loss, metrics as weighted sums over the micro-batch)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutAlgorithm:
    """The options of every algorithm that learns from rollouts, without what most of them do not need."""

    group_size: int = 8
    """Rollouts of each task that are compared with one another."""
    tasks_per_step: int = 8
    """Tasks of one update; one update is made from group_size * tasks_per_step rollouts."""
    epochs: int = 1
    """Passes over each batch, one optimizer step each."""
    staleness: int = 0
    """Updates by which the weights that sampled a rollout may be behind those it is used to update. Above 0,
    rollouts go on while the update runs."""
    replay: int = 0
    """Further updates, after its own, in which a rollout is trained on again."""
    dynamic_sampling: int = 0
    """How many times groups that say nothing are replaced by other tasks (DAPO, dynamic sampling)."""
    curriculum: str | None = None
    """A field of the tasks, such as their kind: values of it that fall short of the best reward are drawn
    more often (`trainer/curriculum.py`)."""

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def critic(self) -> Critic | None:
        return None

    @property
    def learns_from(self) -> Demonstrations | None:
        return None

    @property
    def needs_teacher(self) -> bool:
        return False

    @property
    def needs_reference(self) -> bool:
        return False

    @property
    def needs_proximal(self) -> bool:
        return False

    def prepare(self, batch: Sequence[Trajectory], history: Sequence[Mapping[str, float]]) -> Prepared:
        """The batch and the algorithm as they are."""
        return Prepared(self, tuple(batch))  # type: ignore[arg-type]  # weights and loss come with the rest

    def units(self, trajectories: Sequence[Trajectory]) -> dict[Key, int]:
        """None: tokens add up one by one."""
        return {}

    def hints(self, trajectories: Sequence[Trajectory], replies: Mapping[Key, str]) -> Mapping[Key, str]:
        """None: there are no teachers."""
        return {}


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run: so many updates by one algorithm, or a search for better prompts, which is one
    step."""

    algorithm: Algorithm | Search | str
    """With its options, or the name of one with its defaults."""
    steps: int = 1


def credit_batch(
    trajectories: Iterable[Trajectory], credit: Credit, algorithm: Algorithm
) -> tuple[list[Trajectory], CreditReport]:
    """The batch as the algorithm trains on it: see `credit.base.assign`."""
    everyone = is_regularised(algorithm)
    return assign(trajectories, credit, algorithm.baseline, algorithm.scale, everyone=everyone)


def is_regularised(algorithm: Algorithm) -> bool:
    """Whether its loss has terms that act on every sampled token, also where all returns are equal."""
    return bool(getattr(algorithm, "regularised", False))


def carries_loss(trajectories: Iterable[Trajectory], algorithm: Algorithm) -> bool:
    """Whether an update from them has a gradient. Without one, an optimizer's momentum would still move the
    weights."""
    if is_regularised(algorithm) or getattr(algorithm, "critic", None) is not None:
        return True
    return any(t.advantage for each in trajectories for t in each.transitions if t.trained)


def mini_batches(trajectories: Sequence[Trajectory], algorithm: Algorithm) -> list[tuple[Trajectory, ...]]:
    """The batch cut into what each optimizer step of a pass is made from: so many groups, in their order.
    Parts without loss are left out.

    All in one if the algorithm has no `mini_batch_size`, or None there.
    """
    groups = list(group_by_id(trajectories).values())
    size = getattr(algorithm, "mini_batch_size", None) or max(1, len(groups))
    parts = (groups[first : first + size] for first in range(0, len(groups), size))
    made = [tuple(each for group in part for each in group) for part in parts]
    return [part for part in made if carries_loss(part, algorithm)] or made


GAP: Final = frozenset(("sampled_logprob", "trained_logprob", "logprob_gap_mean", "logprob_gap_max"))
"""Metrics of an update that compare what sampled with what is trained."""


def last_pass(steps: Sequence[dict[str, float]], count: int) -> dict[str, float]:
    """The metrics of an update of several steps: the means of the last pass, which made `count`.

    How far the recorded log-probabilities are off (`GAP`) can be seen only before the first step; the
    learning rate is that of the last.
    """
    last = steps[-count:]
    means = {name: fmean(each[name] for each in last if name in each) for name in last[-1] if name not in GAP}
    gap = {name: value for name, value in steps[0].items() if name in GAP}
    return {**means, **gap, "learning_rate": last[-1]["learning_rate"]}


def check_options(options: Any) -> None:
    """Raise ConfigError for the first option that is no number or below its least."""
    kind = type(options).__name__
    for option in fields(options):
        if option.name in LEAST:
            least = LEAST[option.name]
            check_range(option.name, getattr(options, option.name), of=kind, least=least, whole=True)


def is_changed(options: Any, option: str) -> bool:
    """Whether an option is another than its default; of what has no defaults, False."""
    defaults = {each.name: each.default for each in fields(options)} if is_dataclass(options) else {}
    return option in defaults and getattr(options, option) != defaults[option]


def check_credit(algorithm: Algorithm, credit: Credit) -> None:
    """Raise ConfigError if an algorithm and a credit method do not go together, each by its attributes:

    - `needs_critic`: it reads a critic's values, and has no use for a baseline;
    - `needs_group`: it compares the rollouts of a group by itself, and has no use for a baseline;
    - `needs_baseline`: it adds comparisons up, each of which must have its baseline taken off.
    """
    check_critic_use(algorithm, credit)
    named = f"credit={algorithm.credit!r}"
    in_groups = bool(getattr(credit, "needs_group", False))
    if in_groups and algorithm.group_size < 2 and algorithm.learns_from is None:
        raise ConfigError(
            f"{named} compares rollouts, and {algorithm.name!r} has groups of one; give group_size=2 or "
            "more, or another credit method"
        )
    if (in_groups or getattr(credit, "needs_critic", False)) and is_changed(algorithm, "baseline"):
        raise ConfigError(
            f"{named} has a baseline of its own, so baseline={algorithm.baseline!r} would do nothing; "
            "leave it out, or give another credit method, such as 'uniform'"
        )
    if getattr(credit, "needs_baseline", False) and algorithm.baseline == "none":
        raise ConfigError(
            f"{named} adds several comparisons up, and with baseline='none' a return would count in each; "
            "use baseline='mean' or 'leave_one_out', or another credit method"
        )


def check_critic_use(algorithm: Algorithm, credit: Credit) -> None:
    """Raise ConfigError if a credit method reads a critic's values and there is no critic, if there is one
    and no method reads its values, or if old rollouts are replayed to it."""
    needed = bool(getattr(credit, "needs_critic", False))
    if needed and algorithm.critic is None:
        raise ConfigError(
            f"credit={algorithm.credit!r} reads a critic's values, and {algorithm.name!r} has no critic; "
            "use PPO, or another credit method"
        )
    if algorithm.critic is not None and not needed:
        raise ConfigError(
            f"{algorithm.name!r} has a critic, and credit={algorithm.credit!r} does not read its values; "
            'use credit="gae", or an algorithm without a critic, such as GRPO'
        )
    if algorithm.critic is not None and algorithm.replay:
        raise ConfigError(
            f"{algorithm.name!r} has a critic and replay={algorithm.replay!r}: it would be fitted again to "
            "the returns of an older policy; leave replay out, or use epochs"
        )
