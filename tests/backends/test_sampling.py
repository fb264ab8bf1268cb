"""Tokens are drawn as often as they are probable, and rounding rarely changes which."""

from __future__ import annotations

import torch

from lightning_core.backends.local.sampling import BLOCK, Sampler
from lightning_core.backends.serving.completion import SamplingOptions


def draw(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    sampler = Sampler([SamplingOptions(max_tokens=1)] * len(logits), torch.device("cpu"))
    return torch.tensor(sampler.draw(logits, uniforms.tolist()).ids)


def test_each_token_of_a_large_vocabulary_is_drawn_as_often_as_it_is_probable() -> None:
    vocabulary, draws = 2 * BLOCK - 100, 40_000
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(vocabulary, generator=generator)
    logits[::7] = float("-inf")
    logits[BLOCK:] -= 2
    uniforms = torch.rand(draws, dtype=torch.float64, generator=generator)
    drawn = torch.cat([draw(logits.expand(len(some), -1), some) for some in uniforms.split(2000)])
    counts = torch.bincount(drawn, minlength=vocabulary).double()
    expected = logits.double().softmax(-1) * draws
    assert counts[::7].sum() == 0
    possible = expected > 0
    squares = ((counts - expected)[possible] ** 2 / expected[possible]).sum().item()
    free = int(possible.sum()) - 1
    assert abs(squares - free) < 5 * (2 * free) ** 0.5


def test_rounding_changes_fewer_draws_than_there_are_bounds_between_tokens() -> None:
    vocabulary, rows = 48 * BLOCK, 32
    generator = torch.Generator().manual_seed(0)
    changed = changed_in_one_step = 0
    for _ in range(40):
        logits = torch.randn(rows, vocabulary, generator=generator) * 2
        uniforms = torch.rand(rows, dtype=torch.float64, generator=generator)
        rounded = logits + 1e-4 * torch.randn(rows, vocabulary, generator=generator)
        changed += int((draw(logits, uniforms) != draw(rounded, uniforms)).sum())
        bounds = [each.softmax(-1).cumsum(-1) for each in (logits, rounded)]
        flat = [torch.searchsorted(each, uniforms[:, None].float()) for each in bounds]
        changed_in_one_step += int((flat[0] != flat[1]).sum())
    assert changed < changed_in_one_step / 4
