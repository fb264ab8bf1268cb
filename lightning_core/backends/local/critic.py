"""The critic of the local backend: V(state) at the last token of a prompt, before the reply.

    V(s) = w . trunk(s) + b          loss: half the mean squared error to the targets, over the batch's states

The trunk is a copy of the policy's, made when a critic is first asked for, and from then on trained apart:
with shared weights the two losses would have to be weighed against each other, and the policy's clip would
not bound what the value loss does to it. With LoRA the frozen weights are shared with the policy, and the
critic has adapters of its own. The head starts at 0. States are packed like replies are, shared prefixes
once; of a state only the prompt is needed.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from lightning_core.algorithms import losses
from lightning_core.algorithms.base import Algorithm, Critic
from lightning_core.backends.local.optimizer import Descent
from lightning_core.backends.local.packing import Tensors, pass_tokens, recompute_layers, to_tensors
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.settings import TrainingSettings
from lightning_core.errors import TrainingError, UnsupportedError
from lightning_core.experience.trajectories import Pack, make_packs
from lightning_core.records.types import Key, Trajectory, Transition

WEIGHTS, MOMENTS = "weights.", "moments."
COPIES = 4
"""Numbers that a critic keeps for each parameter: weight, gradient and two moments."""


class ValueNetwork(torch.nn.Module):
    """A trunk of its own and a linear head."""

    def __init__(self, policy: Policy, *, bfloat16: bool) -> None:
        super().__init__()
        base = policy.base
        if base.base_model is base:
            raise UnsupportedError(
                f"{type(base).__name__} has no trunk apart from its output layer, so the local backend can't "
                "make a critic of it; use an algorithm without one, such as GRPO"
            )
        frozen = {id(p): p for p in base.parameters() if not p.requires_grad}
        self.trunk: torch.nn.Module = copy.deepcopy(base.base_model, dict(frozen))
        self.head = torch.nn.Linear(base.config.hidden_size, 1, device=base.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self._bfloat16 = bfloat16

    def forward(self, pack: Tensors) -> torch.Tensor:
        """(E,) value of each entry of a pack of states."""
        with torch.autocast(pack.tokens.device.type, torch.bfloat16, enabled=self._bfloat16):
            hidden = pack.plan.hidden(self.trunk, pack.tokens, pack.positions, pack.keep)
        values: torch.Tensor = self.head(hidden.float())[pack.rows, 0]
        return values

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The weights that are the critic's own."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


class LocalCritic:
    """Values and their fitting. The network is made when it is first needed; most algorithms need none."""

    def __init__(
        self, policy: Policy, options: TrainingSettings, *, bfloat16: bool = False, adamw: str = "adamw"
    ) -> None:
        self._policy, self._options, self._bfloat16, self._adamw = policy, options, bfloat16, adamw
        self._made: tuple[ValueNetwork, Descent] | None = None

    def _parts(self) -> tuple[ValueNetwork, Descent]:
        if self._made is None:
            network = ValueNetwork(self._policy, bfloat16=self._bfloat16)
            self._policy.copies += COPIES
            trained = list(network.trained().values())
            self._made = network, Descent(trained, self._options, scheduled=False, adamw=self._adamw)
        return self._made

    @torch.no_grad()
    def values(self, trajectories: Iterable[Trajectory]) -> dict[Key, float]:
        """V at the state of each transition of a trained agent."""
        network, _ = self._parts()
        states = [t for trajectory in trajectories for t in trajectory.transitions if t.trained]
        found: dict[Key, float] = {}
        for pack in self._packs(states):
            found.update(zip(pack.keys, network(self._tensors(pack)).tolist(), strict=True))
        return found

    @contextmanager
    def fitting(self, trajectories: Iterable[Trajectory], algorithm: Algorithm) -> Iterator[dict[str, float]]:
        """Fit to the transitions with a target; yields metrics, none if there is nothing to fit.

        Raises TrainingError if it can't be done. What was fitted is taken back then, and also if what
        happens inside the `with` raises.
        """
        states = [t for each in trajectories for t in each.transitions if t.trained and t.target is not None]
        critic = algorithm.critic if states else None
        if critic is None:
            yield {}
            return
        _, descent = self._parts()
        before = descent.snapshot()
        try:
            yield self._fit(states, critic)
        except BaseException:
            descent.restore(before)
            raise

    def _fit(self, states: Sequence[Transition], critic: Critic) -> dict[str, float]:
        """All passes over the states; the losses before the first step and before the last one are told."""
        started = time.monotonic()
        packs = self._packs(states)
        by_key = {t.key: t for t in states}
        passes = [self._epoch(packs, by_key, critic) for _ in range(critic.epochs)]
        return {
            **passes[-1],
            "value_loss": passes[0]["value_loss"],
            "value_loss_last": passes[-1]["value_loss"],
            "value_seconds": time.monotonic() - started,
        }

    def _epoch(
        self, packs: Sequence[Pack], states: dict[Key, Transition], critic: Critic
    ) -> dict[str, float]:
        """One pass and one optimizer step."""
        network, descent = self._parts()
        descent.zero()
        total = 0.0
        for pack in packs:
            tensors = self._tensors(pack)
            again = self._policy.must_recompute(tensors.plan, bfloat16=self._bfloat16)
            recompute_layers(network, again)
            values = network(tensors)
            entries = [states[key] for key in pack.keys]
            targets = values.new_tensor([t.target for t in entries])
            loss = losses.value_loss(values, targets)
            torch.autograd.backward(loss.sum() / len(states))
            total += float(loss.detach().sum()) / len(states)
        norm = descent.clip()
        if not math.isfinite(norm) or not math.isfinite(total):
            raise TrainingError(
                f"the critic's gradient is not finite (norm {norm}, loss {total}), so all weights were left "
                "as they were; look for non-finite rewards, or lower Critic(learning_rate=...)"
            )
        rate = descent.step(critic.learning_rate or self._policy.default_critic_rate())
        descent.check_finite(network, "critic's")
        return {
            "value_loss": total,
            "value_grad_norm": norm,
            "value_learning_rate": rate,
        }

    def _packs(self, states: Sequence[Transition]) -> list[Pack]:
        """Packs of the prompts alone, with one entry for each transition, after the last token of its
        prompt. What would be predicted there is of no account."""
        alone = tuple(
            replace(t, completion_ids=(0,), logprobs=(0.0,), temperature=1.0, grammar=None, advantage=0.0)
            for t in states
        )
        return make_packs(
            [Trajectory("", "", "", 0.0, alone)],
            {t.key: 1.0 for t in alone},
            pack_tokens=pass_tokens(self._options.pack_tokens, self._policy.base.device),
            merge=self._options.prefix_sharing,
            branches=self._policy.shares_branches,
        )

    def _tensors(self, pack: Pack) -> Tensors:
        self._policy.check_open()
        return to_tensors(pack, self._policy.base)

    @property
    def steps(self) -> int | None:
        """Optimizer steps so far; None if no critic was ever needed."""
        return self._made[1].steps if self._made else None

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and AdamW's state, which with `steps` make an exact continuation; empty without steps."""
        if self._made is None:
            return {}
        network, descent = self._made
        weights = {f"{WEIGHTS}{name}": weight for name, weight in network.trained().items()}
        return {**weights, **{f"{MOMENTS}{n}": m for n, m in descent.moments().items()}}

    @torch.no_grad()
    def load(self, state: dict[str, torch.Tensor], steps: int | None) -> None:
        """Go on from `state()` and `steps`."""
        self._policy.copies -= COPIES if self._made else 0
        self._made = None
        if steps is None:
            return
        network, descent = self._parts()
        for name, weight in network.trained().items():
            weight.copy_(state[f"{WEIGHTS}{name}"])
        moments = {n.removeprefix(MOMENTS): m for n, m in state.items() if n.startswith(MOMENTS)}
        descent.load(moments, steps)
