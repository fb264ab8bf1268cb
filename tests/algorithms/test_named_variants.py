"""Each variant that the page names is its paper's: its gradient in an app of one call, by the formula.

Eight rollouts of one task, three of which succeed, with replies of 1 to 8 tokens, at the first step of an
update, where every ratio is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import lightning_core as lightning
from lightning_core.algorithms.base import Entries
from lightning_core.credit.base import assign
from lightning_core.plugins import load_plugins
from lightning_core.records.types import Trajectory
from lightning_core.trainer.parts import make_credit
from tests.algorithms.test_page import rows
from tests.credit.telling import Said, tell

REWARDS = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
LENGTHS = range(1, 9)
MEAN = 3 / 8
DEVIATION = (MEAN * (1 - MEAN)) ** 0.5
TOKENS = sum(LENGTHS)

Formula = Callable[[float, int], float]
"""A token's coefficient in the gradient, given the reward and the tokens of its reply."""
PAPERS: dict[str, Formula] = {
    # DeepSeekMath, eq. 3: the mean over replies of the mean over tokens
    "GRPO as published": lambda r, n: (r - MEAN) / DEVIATION / (8 * n),
    # Dr. GRPO, section 3.1: neither the deviation nor the length
    "Dr. GRPO": lambda r, n: (r - MEAN) / (8 * 1024),
    # DAPO, eq. 8: the mean over all tokens
    "DAPO": lambda r, n: (r - MEAN) / DEVIATION / TOKENS,
    # GSPO, eq. 5 and 7: the mean over replies; the ratio is the geometric mean of the tokens'
    "GSPO": lambda r, n: (r - MEAN) / DEVIATION / 8 / n,
    # CISPO, eq. 4: the mean over all tokens
    "CISPO": lambda r, n: (r - MEAN) / DEVIATION / TOKENS,
    # MaxRL: the scores of whole replies, divided by the mean reward; the token mean has the same direction
    "MaxRL": lambda r, n: (r - MEAN) / MEAN / TOKENS,
}


def one_call(number: int, reward: float, length: int) -> Trajectory:
    """Equal replies come again, as short ones do: a method that looked at replies would see it."""
    told = tell(number, reward, Said(reply=int(reward)))
    tokens = tuple(range(length))
    changed = replace(told.transitions[0], completion_ids=tokens, logprobs=(-1.0,) * length)
    return replace(told, transitions=(changed,))


def variants() -> dict[str, lightning.GRPO]:
    """Returns the variants of the page, on one group of eight."""
    made = {
        name: eval(f"lightning.GRPO({options.split('`')[1]})", {"lightning": lightning})
        for name, options, _ in rows("## Variants of GRPO")
    }
    return {name: replace(each, group_size=8, tasks_per_step=1) for name, each in made.items()}


@pytest.mark.parametrize("name", PAPERS)
def test_the_gradient_of_a_named_variant_is_its_paper_s(name: str) -> None:
    algorithm = variants()[name]
    group = [one_call(i, r, n) for i, (r, n) in enumerate(zip(REWARDS, LENGTHS, strict=True))]
    credit = make_credit(algorithm.credit, load_plugins([]))
    credited, _ = assign(group, credit, algorithm.baseline, algorithm.scale)
    weights = algorithm.weigh(credited)
    found = [each.transitions[0] for each in credited]
    rows_of = [t for t in found for _ in t.completion_ids]
    logprobs = torch.full((TOKENS,), -1.0, dtype=torch.float64, requires_grad=True)
    entries = Entries(
        logprobs=logprobs,
        old_logprobs=logprobs.detach(),
        proximal_logprobs=logprobs.detach(),
        ref_logprobs=logprobs.detach() if algorithm.needs_reference else None,
        advantages=torch.tensor([t.advantage for t in rows_of], dtype=torch.float64),
        weights=torch.tensor([weights[t.key] for t in rows_of], dtype=torch.float64),
        sequences=torch.tensor([i for i, t in enumerate(found) for _ in t.completion_ids]),
        units=torch.full((TOKENS,), -1),
    )
    loss, _ = algorithm.loss(entries)
    torch.autograd.backward(loss)
    wanted = [PAPERS[name](r, n) for r, n in zip(REWARDS, LENGTHS, strict=True) for _ in range(n)]
    assert logprobs.grad is not None
    assert (-logprobs.grad).tolist() == pytest.approx(wanted, rel=1e-9)


def test_every_named_variant_has_a_formula() -> None:
    assert variants().keys() - PAPERS.keys() == {"decoupled PPO"}
