"""The data that the tinker backend sends have the gradient of the algorithm's own loss; the rest is refused.

The service's formulas stand here as its API documents them; `tests/tinker` runs a real server.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers.normalizers import Lowercase

import lightning_core as lightning
from lightning_core.algorithms.base import Algorithm, Entries
from lightning_core.algorithms.policy_gradient import Masked, PolicyGradient, Truncated
from lightning_core.backends.rows import make_rows
from lightning_core.backends.tinker.batch import Datum, make_data
from lightning_core.backends.tinker.learning import RowBatch, cut_part
from lightning_core.backends.tinker.losses import ServiceLoss, find_loss
from lightning_core.backends.tinker.settings import Reduction
from lightning_core.backends.tinker.tokenizer import find_difference
from lightning_core.backends.weights.sources import load_tokenizer, tiny_folder
from lightning_core.errors import ConfigError, UnsupportedError
from lightning_core.records.types import Trajectory, Transition
from tests.verl.recorded import play

ALGORITHMS: dict[str, Algorithm] = {
    "grpo": lightning.GRPO(),
    "without a correction": lightning.GRPO(correction=None, clip=(0.2, 0.3)),
    "cispo": lightning.GRPO(correction=None, ratio="weight", entropy=0.0),
    "in two epochs": lightning.GRPO(epochs=2, clip=0.1),
    "masked": lightning.GRPO(correction=Masked(0.8, 1.3)),
    "by rollouts": lightning.RLOO(aggregation="rollout"),
    "sft": lightning.SFT(),
}


def batch(seed: int) -> tuple[Trajectory, ...]:
    """Branching rollouts of several agents, at temperature 1, with log-probabilities; one sampled the very
    tokens of another, and has other advantages."""
    draw = np.random.default_rng(seed)
    first, *others = play(seed)
    same = [replace(t, rollout_id="same", advantage=-0.3 * t.advantage) for t in first.transitions]
    return tuple(
        replace(
            each,
            transitions=tuple(
                replace(t, temperature=1.0, logprobs=draw.uniform(-3, 0, len(t.completion_ids)).tolist())
                for t in each.transitions
            ),
        )
        for each in (first, replace(first, rollout_id="same", transitions=tuple(same)), *others)
    )


def service_loss(
    loss: ServiceLoss, data: list[Datum], logprobs: list[torch.Tensor], reduction: Reduction
) -> torch.Tensor:
    """The loss of the service for (L,) log-probabilities of each datum."""
    total = torch.zeros(())
    for datum, present in zip(data, logprobs, strict=True):
        advantages, mask = torch.from_numpy(datum.advantages), torch.from_numpy(datum.mask)
        ratio = torch.exp(present - torch.from_numpy(datum.anchors))
        clipped = ratio.clamp(loss.low, loss.high)
        if loss.name == "cispo":
            tokens = -clipped.detach() * advantages * present
        else:
            tokens = -torch.minimum(ratio * advantages, clipped * advantages)
        tokens = tokens * mask
        total = total + (tokens.sum() / mask.sum() / len(data) if reduction == "mean" else tokens.sum())
    return total


def own_gradient(
    algorithm: Algorithm, part: RowBatch, present: torch.Tensor, proximal: torch.Tensor | None
) -> torch.Tensor:
    """(E,) the gradient of the algorithm's own loss by the log-probabilities."""
    present = present.clone().requires_grad_()
    entries = Entries(
        logprobs=present,
        old_logprobs=torch.from_numpy(np.concatenate([row.logprobs for row in part.rows])),
        advantages=torch.from_numpy(np.concatenate([each.advantages for each in part.entries])),
        weights=torch.from_numpy(np.concatenate([each.weights for each in part.entries])),
        sequences=torch.from_numpy(np.concatenate([each.sequences for each in part.entries])),
        units=torch.from_numpy(np.concatenate([each.units for each in part.entries])),
        proximal_logprobs=present.detach() if proximal is None else proximal,
    )
    algorithm.loss(entries)[0].backward()
    assert present.grad is not None
    return present.grad


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_service_s_gradient_is_the_algorithm_s(name: str, reduction: Reduction) -> None:
    algorithm = ALGORITHMS[name]
    loss = find_loss(algorithm)
    part = cut_part(batch(3), algorithm, 0)
    lengths = [len(row.logprobs) for row in part.rows]
    assert len(lengths) > 3
    assert max(len(row.keys) for row in part.rows) > 1  # some rows hold several calls
    merged = make_rows(batch(3), algorithm.weigh(batch(3)))
    assert len(merged) < len(lengths)  # the same tokens, sampled twice, stand in rows of their own
    torch.manual_seed(0)
    recorded = torch.from_numpy(np.concatenate([row.logprobs for row in part.rows]))
    present = recorded + 0.5 * torch.randn(len(recorded))
    proximal = present + 0.2 * torch.randn(len(recorded)) if loss.proximal else None
    if loss.proximal and name == "masked":
        proximal = present.clone()  # one step: the update begins with the weights as they are
    known = None if proximal is None else [each.numpy() for each in proximal.split(lengths)]
    data = part.data(algorithm, loss, known, reduction)
    leaves = []
    for datum, entries, values in zip(data, part.entries, present.split(lengths), strict=True):
        spread = torch.full((len(datum.targets),), -1.0)
        spread[torch.from_numpy(entries.parents)] = values
        leaves.append(spread.requires_grad_())
    service_loss(loss, data, leaves, reduction).backward()
    grads = [leaf.grad for leaf in leaves]
    pairs = zip(grads, part.entries, strict=True)
    at_entries = torch.cat([grad[torch.from_numpy(entries.parents)] for grad, entries in pairs])
    wanted = own_gradient(algorithm, part, present, proximal)
    assert wanted.abs().max() > 1e-4
    torch.testing.assert_close(at_entries, wanted, rtol=2e-5, atol=1e-8)
    everywhere = sum(float(grad.abs().sum()) for grad in grads)
    assert everywhere == pytest.approx(float(at_entries.abs().sum()))


def test_a_token_stands_where_the_one_before_it_was_read() -> None:
    reply = Transition("r", "c", 0, "a", True, [5, 6, 7], [8, 9], [-0.5, -0.25], 0, advantage=2.0)
    rows = make_rows([Trajectory("r", "g", "t", 0.0, (reply,))], {reply.key: 0.5})
    (datum,) = make_data(rows, [rows[0].logprobs], [np.array([1.0, 3.0], dtype=np.float32)], "sum")
    assert datum.tokens.tolist() == [5, 6, 7, 8]
    assert datum.targets.tolist() == [6, 7, 8, 9]
    assert datum.mask.tolist() == [0, 0, 1, 1]
    assert datum.anchors.tolist() == [0, 0, -0.5, -0.25]
    assert datum.advantages.tolist() == [0, 0, 1, 3]
    # one row with two tokens that carry loss: the service divides by 2, so that much is given more
    (datum,) = make_data(rows, [rows[0].logprobs], [np.array([1.0, 3.0], dtype=np.float32)], "mean")
    assert datum.advantages.tolist() == [0, 0, 2, 6]


def test_one_step_of_grpo_needs_no_forward_pass_and_several_do() -> None:
    assert find_loss(lightning.GRPO(correction=Truncated(3.0))) == ServiceLoss("cispo", 0.0, 3.0)
    assert find_loss(lightning.GRPO(mini_batch_size=2, clip=0.2)) == ServiceLoss(
        "ppo", 0.8, 1.2, proximal=True
    )


def test_tokenizers_differ_by_a_token_s_id_or_by_how_a_text_is_split() -> None:
    ours = load_tokenizer(str(tiny_folder()))
    assert find_difference(ours, load_tokenizer(str(tiny_folder()))) is None
    more = load_tokenizer(str(tiny_folder()))
    more.add_tokens(["<new>"])
    said = f"token '<new>' has the id {len(ours)} here and None there"
    assert find_difference(more, ours) == said
    split = load_tokenizer(str(tiny_folder()))
    split.backend_tokenizer.normalizer = Lowercase()
    told = find_difference(ours, split)
    assert told is not None
    assert told.startswith("'How many boats")


def test_a_ceiling_is_a_whole_number_of_tokens() -> None:
    with pytest.raises(ConfigError, match="max_service_tokens"):
        lightning.TinkerBackend("tiny", max_service_tokens=0)


class Own(PolicyGradient):
    """An algorithm with a loss of its own."""

    def loss(self, entries: Entries) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return entries.logprobs.sum(), {}


@pytest.mark.parametrize(
    ("algorithm", "named"),
    [
        (lightning.PPO(), "critic"),
        (lightning.DPO(), "loss of its own"),
        (lightning.GRPO(kl=0.1), r"kl=0\.1"),
        (lightning.GRPO(epochs=2, clip=(0.2, 0.2, 3.0)), "dual clip"),
        (lightning.GRPO(epochs=2, ratio="sequence"), "ratio='sequence'"),
        (lightning.GRPO(staleness=1), "staleness=1"),
        (Own(), "loss of its own"),
    ],
)
def test_what_the_service_has_no_equal_of_is_refused_by_name(algorithm: Algorithm, named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        lightning.TinkerBackend("tiny").check(algorithm)


async def test_without_the_client_the_start_says_what_to_install() -> None:
    if importlib.util.find_spec("tinker") is not None:
        pytest.skip("the client is installed here")
    with pytest.raises(ConfigError, match=r"agent-lightning-core\[tinker\]"):
        await lightning.TinkerBackend("tiny", url="http://127.0.0.1:9").start()
