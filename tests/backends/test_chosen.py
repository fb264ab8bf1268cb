"""Log-probabilities of chosen tokens and their gradient are those of the formula, written out by autograd."""

from __future__ import annotations

import pytest
import torch

from lightning_core.backends.local import chosen
from lightning_core.backends.local.chosen import chosen_logprobs

ROWS, VOCABULARY, ENTRIES = 37, 1000, 90


def drawn(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of which one row allows a single token, scales, and entries; some rows have none."""
    torch.manual_seed(0)
    logits = (4 * torch.randn(ROWS, VOCABULARY, dtype=torch.float64)).to(dtype)
    logits[5, 1:] = float("-inf")
    rows = torch.randint(0, ROWS - 1, (ENTRIES,))
    targets = torch.randint(0, VOCABULARY, (ENTRIES,))
    targets[rows == 5] = 0
    rows[:4], targets[:4] = 7, torch.tensor([3, 3, 4, 3])  # one token of a row several times
    return logits, torch.rand(ROWS) + 0.5, rows, targets


def written_out(
    logits: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """The same in one line, which keeps every row's logarithms."""
    return (logits.double() / scales.double()[:, None]).log_softmax(-1)[rows, targets]


@pytest.mark.parametrize("cached", [1, 16_000, 1 << 30])
def test_values_and_gradient_are_the_formulas(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "CACHED", cached)
    logits, *rest = drawn(torch.float32)
    given = torch.linspace(-2, 3, ENTRIES, dtype=torch.float64)
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    found, wanted = chosen_logprobs(ours, *rest), written_out(theirs, *rest)
    (found.double() * given).sum().backward()
    (wanted * given).sum().backward()
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), wanted, atol=1e-5)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)
    assert ours.grad[5].abs().max() < 1e-6  # where one token was left there is nothing to learn
    assert ours.grad[ROWS - 1].eq(0).all()  # nothing chosen there


def test_a_gradient_in_bfloat16_is_rounded_once() -> None:
    """The share of a likely token and the one that was chosen nearly cancel: added before rounding."""
    logits = torch.zeros(1, 64, dtype=torch.bfloat16)
    logits[0, 3] = 12.0
    logits.requires_grad_()
    chosen_logprobs(logits, torch.ones(1), torch.tensor([0]), torch.tensor([3])).sum().backward()
    exact = 1 - torch.zeros(64, dtype=torch.float64).index_fill(0, torch.tensor(3), 12.0).softmax(-1)[3]
    assert logits.grad is not None
    assert float(logits.grad[0, 3]) == pytest.approx(float(exact), rel=2**-8)


def test_what_is_not_finite_is_passed_on() -> None:
    logits, *rest = drawn(torch.float32)
    logits[7, 9] = float("nan")
    found = chosen_logprobs(logits, *rest)
    assert torch.equal(found.isnan(), rest[1] == 7)
