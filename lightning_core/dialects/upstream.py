"""The gateway's whole view of an engine.

The gateway speaks HTTP, checks tokens and records; the engine renders the chat template, samples,
and says exactly which token ids it read and wrote. The local backend implements this in process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """The form of a reply: exactly one of these. An engine samples no token that leads away from it.

    Beside any but `tools`, a reply may be calls of the request's tools, if it has any, in place of a match.
    A reply that ends by "length", or by a stop text, may be the beginning of one that matches.
    """

    schema: dict[str, Any] | bool | None = None
    """A JSON Schema; {"type": "object"} is any JSON object."""
    regex: str | None = None
    """A regular expression that the whole reply matches."""
    choice: tuple[str, ...] | None = None
    """The reply is one of these texts."""
    grammar: str | None = None
    """A context-free grammar in Lark's notation, whose rule `start` is the reply."""
    tools: tuple[str, ...] | None = None
    """The reply is at least one call of these functions of the request's `tools`, and nothing else. Arguments
    match the function's own schema."""
    parallel: bool = True
    """Allows several calls of `tools`."""

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one is given."""
        if len(self._given) != 1:
            raise ValueError(f"a constraint is one of schema, regex, choice, grammar, tools: {self._given}")

    @property
    def _given(self) -> list[str]:
        names = [each.name for each in fields(self) if each.name != "parallel"]
        return [name for name in names if getattr(self, name) is not None]

    @property
    def kind(self) -> str:
        """The name of the one that is given."""
        return self._given[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """A request's changes of the distribution beside temperature and `top_p`; none by default.

    Bias and penalties change logits, then the temperature does, then `min_p`, `top_k` and `top_p` cut tokens
    off, as with vLLM.
    """

    top_k: int = 0
    """Only so many of the most probable tokens; 0: all."""
    min_p: float = 0.0
    """Only tokens with this share of the most probable one's probability."""
    presence: float = 0.0
    """Taken off the logit of each token that the reply holds."""
    frequency: float = 0.0
    """The same, once for each time that it holds it."""
    repetition: float = 1.0
    """Divisor of the logit of each token of prompt and reply; its factor, if the logit is below 0."""
    bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""

    @property
    def penalises(self) -> bool:
        """Whether it changes logits."""
        return bool(self.presence or self.frequency or self.repetition != 1.0 or self.bias)


PLAIN: Final = Shaping()
"""The distribution as the model gives it."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One completion as the engine sees it; everything the engine can't do was refused before."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    n: int = 1
    max_tokens: int | None = None
    """None: as many as fit the context. More than that are as many as fit."""
    temperature: float = 1.0
    """0.0 is greedy."""
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    top_logprobs: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    """Further template arguments (`chat_template_kwargs`)."""
    effort: str | None = None
    """How much to think before the reply, in OpenAI's words; "none": not at all, "default": as much as the
    model does by itself."""
    prompt: str | list[int] | None = None
    """A prompt as it stands, text or token ids, in place of messages and their template."""
    policy_version: int | None = None
    """The version of the weights that must answer; None: the current one."""
    policy: str | None = None
    """The named policy that must answer; None: the run's own."""
    attempt: tuple[str, int] | None = None
    """Whose request it is: (rollout id, attempt). None: unknown."""
    constraint: Constraint | None = None
    """The form of every choice; None: anything."""
    origin: str | None = None
    """Where there is no `seed`, the reply's random numbers follow from this, the prompt's token ids, and how
    many earlier requests had the same of both: never from the order in which requests arrive. None: from
    chance."""
    parallel: bool = True
    """Whether a reply may hold several calls of tools; else it ends with the first."""
    shaping: Shaping = PLAIN
    continues: bool = False
    """Whether the reply goes on from the last of `messages`, which is the assistant's."""
    trained: bool = False
    """Whether its replies may be trained on, so that the engine must say which tokens were cut off."""
    whole: bool = False
    """Whether the app reads the reply only once it has ended, so that tokens need not come one by one."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of one choice, in the order sampled."""

    choice: int
    token_ids: list[int]
    """Ids sampled since the last delta, special and stop tokens included."""
    logprobs: list[float]
    """One for each id, at the temperature it was sampled with."""
    text: str = ""
    """Content for the app: no part of a tool call, a thought or a special token, and no half a character."""
    tool_calls: list[dict[str, Any]] | None = None
    """Complete tool calls in OpenAI's form ({id, type, function: {name, arguments}})."""
    top_logprobs: list[list[tuple[int, float]]] | None = None
    """For each id the best alternatives as (id, logprob), if they were asked for."""
    finish_reason: str | None = None
    """"stop", "length" or "tool_calls" on the last delta of the choice."""
    thought: str = ""
    """The thoughts of a reasoning model before its reply."""
    stop: str | None = None
    """Beside the finish reason "stop": which of the request's stop texts it was; None if none of them."""
    kept: list[bytes] | None = None
    """The tokens that were left at each id, for a trained request whose sampling cut tokens off
    (`sequences.pack_mask`)."""
    cached: int = 0
    """Tokens of the prompt that the engine had computed before; known from the first delta on."""
    left_out: str | None = None
    """On the last delta: why an update can't compute the reply's log-probabilities; None if it can."""
    as_text: list[str] | None = None
    """On the last delta: tokens of the model's own that stand in the prompt as text (`Choice.as_text`)."""


class Generation(Protocol):
    """A running chat completion: iterate over its deltas; closing it early frees the engine's slots."""

    prompt_ids: list[int]
    grammar: str | None
    """The request's constraint as one text, by which its masks can be made again from the recorded ids alone
    (`backends.serving.constraints`); None for a request without one."""

    @property
    def policy_version(self) -> int | None:
        """Version of the weights that answer; known once iteration has begun. None: no version does."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...
    async def aclose(self) -> None: ...


class Upstream(Protocol):
    """An engine that serves the policy."""

    @property
    def model_name(self) -> str: ...

    async def chat(self, request: ChatRequest) -> Generation:
        """Start a completion. Raises ContextLengthError or UnsupportedError before anything is sampled.

        Waits while weights are being changed: requests are held, not refused.
        """

    async def count(self, request: ChatRequest) -> int:
        """The tokens of a prompt, of which nothing is sampled. Raises UnsupportedError."""

    def decode(self, token_id: int) -> str:
        """The text of one token, for the `logprobs` part of a reply."""
