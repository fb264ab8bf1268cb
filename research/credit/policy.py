"""The policy of this suite: one small network for all agents, tasks and states, as one model is shared.

    logits = tanh(x W + b) U + c        x counts the words of the prompt

U and c begin at 0, so that every action is equally likely at first; W is random, by the seed. What is learnt
for one prompt moves the others, so noise in the credit of one agent is noise for all. It descends by the
local backend's own AdamW, warm-up and bound on the gradient. A critic is the same network with one output.
"""

from __future__ import annotations

import numpy as np
import torch

from lightning_core.backends.local.optimizer import Descent
from lightning_core.backends.settings import TrainingSettings
from research.credit.truth import Floats

HIDDEN = 64
SPREAD = 1.0
"""Deviation of a prompt's x W: how far prompts are from one another in the hidden layer."""


class Network(torch.nn.Module):
    """A table of outputs for all prompts."""

    def __init__(self, words: Floats, outputs: int, seed: int) -> None:
        """`words`: (P, words) how often each word stands in each prompt."""
        super().__init__()
        random = np.random.default_rng(seed).normal(size=(words.shape[1], HIDDEN))
        self._words = torch.from_numpy(words)
        self.hidden = torch.nn.Parameter(torch.from_numpy(random * SPREAD / np.sqrt(words.sum(1).mean())))
        self.offset = torch.nn.Parameter(torch.zeros(HIDDEN, dtype=torch.float64))
        self.out = torch.nn.Parameter(torch.zeros(HIDDEN, outputs, dtype=torch.float64))
        self.last = torch.nn.Parameter(torch.zeros(outputs, dtype=torch.float64))
        self._descent = Descent(list(self.parameters()), TrainingSettings())

    def forward(self) -> torch.Tensor:
        """(P, outputs)"""
        return torch.tanh(self._words @ self.hidden + self.offset) @ self.out + self.last

    def descend(self, loss: torch.Tensor, rate: float) -> None:
        """One optimizer step."""
        self._descent.zero()
        torch.autograd.backward(loss)
        self._descent.clip()
        self._descent.step(rate)
