"""A judge: a language model that is shown all rollouts of a group side by side and gives each a score.

    R = weight * score + (1 - weight) * own         score in [0, 1], own = what the app gave

After RULER (OpenPipe ART, `src/art/rewards/ruler.py`, 2025). It assumes that ranking is easier than
grading: within a group only the differences count, and for these the judge sees the other rollouts.

Changed from RULER: equal transcripts are shown once and get the same score; the transcripts stand in the
order of their digests, so that no rollout gains by its place; several agents and calls are one transcript;
scores are kept, and the same question is never asked twice.

Left out: scoring a rollout outside a group, as evaluations would need. There is nothing to compare it with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_core.errors import ConfigError
from lightning_core.ranges import check_range
from lightning_core.records.types import Task

RUBRIC = """\
- An attempt that reaches the goal gets a clearly higher score than one that does not.
- Of two that reach it, the one with fewer detours, errors and repetitions gets the higher score.
- One that comes close to the goal may get a part of the score.
- Small differences in quality are small differences in score; equal quality is an equal score.\
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Scores the training rollouts of each group, through any OpenAI-compatible endpoint."""

    model: str
    """As the endpoint calls it."""
    base_url: str | None = None
    """Address of the endpoint, `/v1` included. None: `OPENAI_BASE_URL` of the environment, or OpenAI, with
    the environment's `OPENAI_API_KEY`."""
    api_key: str | None = field(default=None, repr=False)
    """For an endpoint given by `base_url`; a key of the environment is never sent there."""
    rubric: str | Callable[[Task], str] = RUBRIC
    """The standards for good and bad; or a function of the task, which may tell the judge the right
    answer."""
    weight: float = 1.0
    """The judge's part of the final reward; the rest is the app's own. With 1.0 the app need not give any."""
    budget: int = 24_000
    """Tokens for the transcripts of a group, taken as four characters each. Longer ones lose their middle."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request, such as `temperature` or `reasoning_effort`. One that is None is left
    out: `{"response_format": None}` for an endpoint that can't be asked for a JSON schema."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError(
                f"Judge(model={self.model!r}): give the name that the endpoint has for its model"
            )
        check_range("weight", self.weight, of="Judge", above=0, most=1)
        check_range("budget", self.budget, of="Judge", least=100)
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"Judge(base_url={self.base_url!r}): give a URL such as http://localhost:8000/v1"
            )
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigError(
                "Judge(api_key=...) holds a line break or another character that no key has: strip it"
            )
        if self.api_key is not None and self.base_url is None:
            raise ConfigError(
                "Judge(api_key=...) is the key of base_url: give both, or neither to use OPENAI_API_KEY"
            )

    @property
    def scoring(self) -> tuple[object, ...]:
        """The options that its scores follow from: not where it is reached, nor how patiently."""
        return self.model, self.rubric, self.weight, self.budget, dict(self.fields)

    def rubric_for(self, task: Task) -> str:
        """The rubric for the rollouts of a task."""
        return self.rubric if isinstance(self.rubric, str) else self.rubric(task)
