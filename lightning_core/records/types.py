"""The words of this project as values: what is stored, sent and trained on.

Stored or sent values are frozen pydantic models; values that live only inside a training step are
frozen slotted dataclasses. `None` always means "not yet" or "not given", never a number in disguise.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, PrivateAttr, model_validator

LARGEST_REWARD: Final = 1e9
"""How large a reward may be, either way. The sum of a million of them is 1e15, and its square 1e30: nothing
that is made of a batch's rewards overflows, in 32 bits neither."""
REWARD_RANGE: Final = "a finite number from -1e9 to 1e9"
"""The range of a reward, in words for messages."""


def matches(agent: str, patterns: Sequence[str] | None) -> bool:
    """Whether a name is one of `patterns` (names or globs); None matches every name. A name with brackets
    matches itself."""
    return patterns is None or agent in patterns or any(fnmatchcase(agent, each) for each in patterns)


def find_policy(agent: str, policies: Mapping[str, str]) -> str | None:
    """The named policy that an agent plays, by names or globs of agents; None: the run's own. The agent's own
    name goes first, then the first glob that matches."""
    named = policies.get(agent)
    return named or next((policy for each, policy in policies.items() if fnmatchcase(agent, each)), None)


def is_reward(value: float) -> bool:
    """Whether a number can be a reward: finite, and no larger than `LARGEST_REWARD` either way."""
    return -LARGEST_REWARD <= value <= LARGEST_REWARD


Integer = Annotated[int, Field(ge=-(2**63) + 1, le=2**63 - 1)]
"""An integer that every store can keep, and look for."""


class Record(BaseModel):
    """Base of everything that is stored or sent: frozen, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Split = Literal["train", "validation"]


class Task(Record):
    """One problem to solve."""

    id: str = ""
    """Stable identity; by default a hash of `input`, so the same problem is the same task."""
    input: dict[str, JsonValue]
    """Input of the app. Must be JSON, so that a worker in another process can have it."""
    split: Split = "train"

    @model_validator(mode="before")
    @classmethod
    def _default_id(cls, values: Any) -> Any:
        if isinstance(values, dict) and not values.get("id"):
            text = json.dumps(values.get("input"), sort_keys=True, default=repr)
            return {**values, "id": hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}
        return values


class Demonstration(Record):
    """A request, and the reply that the policy is to give to it."""

    messages: list[dict[str, JsonValue]] = Field(min_length=1)
    """The conversation so far, as in Chat Completions."""
    reply: str | dict[str, JsonValue]
    """The text, or an assistant message with `content` and `tool_calls`."""
    tools: list[dict[str, JsonValue]] | None = None
    """The tools that the request offers."""
    agent: str | None = None
    """Whose reply it is. None: anybody's, as all trained agents share one policy."""
    template: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments of the chat template (`chat_template_kwargs`)."""

    @property
    def message(self) -> dict[str, JsonValue]:
        """The reply as an assistant message."""
        said = {"content": self.reply} if isinstance(self.reply, str) else self.reply
        return {**said, "role": "assistant"}

    @model_validator(mode="after")
    def _check(self) -> Demonstration:
        for place, message in enumerate(self.messages):
            if not isinstance(message.get("role"), str):
                raise ValueError(f"messages[{place}] has no role")
        if isinstance(self.reply, dict) and self.reply.get("role", "assistant") != "assistant":
            raise ValueError(f"the reply has the role {self.reply['role']!r}; only an assistant replies")
        if not self.message.get("content") and not self.message.get("tool_calls"):
            raise ValueError("the reply says nothing: give it text or tool calls")
        return self


class Fork(Record):
    """The recorded call at which a rollout leaves the course of another."""

    rollout_id: str
    call_id: str
    """Its reply is sampled again; calls before it get the replies on record."""
    reply: dict[str, JsonValue] | None = None
    """The assistant's message, as in Chat Completions, that the app gets there in place of a sampled one."""
    prompt: dict[str, JsonValue] | None = None
    """Fields of the request, such as `messages`, that the model gets there in place of the app's own."""


class Sampling(Record):
    """Sampling settings that a rollout imposes on the calls of trained agents."""

    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    """1.0 samples from the policy itself, 0.0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed of the random numbers in all calls of the rollout, with agent and prompt; None: from chance. An
    attempt after one that failed draws others."""
    constrain: bool = True
    """Whether replies are held to the form that their requests ask for; else the prompt asks for it."""
    fork: Fork | None = None
    """Where the rollout forks from a recorded one; None: all of its calls are sampled."""


class Status(StrEnum):
    """Where a rollout stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        return self in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)


Order = Literal["enqueued", "reward"]
"""Order of a list of rollouts: as they were enqueued, or by rising reward. Equal rewards are in the order in
which they were enqueued, and a rollout without a reward is left out of a list by reward."""


class Rollout(Record):
    """One run of the app on one task."""

    id: str
    run_id: str
    task: Task
    group_id: str
    """Rollouts with the same group are compared with one another."""
    step: Integer
    """The training step that asked for it; the update of that step consumes it."""
    split: Split = "train"
    place: str | None = None
    """The place in its step that the trainer planned it for, such as "3-0"; None if somebody else asked for
    it: anybody may enqueue rollouts of a run."""
    retry: Integer = 0
    """The number of the retry in that place: the last one counts."""
    sampling: Sampling = Sampling()
    policy_version: Integer | None = None
    """The version of the weights that is to answer its calls; None: the current one."""
    prompt_versions: dict[str, Integer] = Field(default_factory=dict)
    """The version of each prompt that its agents are told, by name; without one the app's own."""
    priority: Integer = 0
    """Higher is leased first."""
    max_attempts: Integer = 1
    status: Status = Status.QUEUED
    attempts: Integer = 0
    """Attempts started so far; the last one is the one that counts."""
    reward: float | None = None
    """The final reward it ended with; None until the rollout has succeeded (or was penalised), and for one
    whose final reward a judge gives afterwards."""
    error: str | None = None
    """Why the last attempt failed."""
    created_at: FiniteFloat = Field(default_factory=time.time)
    finished_at: FiniteFloat | None = None

    @property
    def step_number(self) -> int:
        """The step as people count: the first update is 1, and an evaluation comes after so many updates."""
        return self.step + (self.split == "train")


class RolloutCount(Record):
    """The rollouts of a run that agree in these."""

    step: int
    split: Split
    status: Status
    count: int
    rewarded: int
    """How many of them ended with a reward."""
    reward: float
    """The sum of those rewards."""


class Attempt(Record):
    """One try of a rollout by one worker, held by a lease."""

    rollout: Rollout
    number: int
    """1 for the first try."""
    worker: str
    lease_until: float
    """Unix seconds; after it the rollout may be given to another worker."""


class Reward(Record):
    """One reward with its address: a rollout, and for an intermediate one the call it is about."""

    rollout_id: str
    attempt: Integer
    value: float
    kind: Literal["final", "intermediate"] = "final"
    agent: str | None = None
    """Whose it is; a final reward without one is the whole rollout's."""
    call_id: str | None = None
    """The call it is about: its own id, or that of its reply."""
    source: str = "app"
    """Who gave it: "app", "judge", or "air:" and the rule."""
    reason: str | None = None
    created_at: FiniteFloat = Field(default_factory=time.time)
    id: str | None = None
    """Id from its giver: of several with one id in an attempt the first counts. None: each counts."""


# what is recorded of a rollout ----------------------------------------------------------------------
UNNAMED = "unnamed"
"""The agent of an unnamed call: no plugin named it and no `agent(...)` block was open."""


class Choice(Record):
    """One sampled reply of a call (`n > 1` gives several)."""

    index: Integer = 0
    completion_ids: list[int] | None = None
    """Token ids as the engine sampled them, the stop token included; None if the engine gave none."""
    logprobs: list[float] | None = None
    """Natural log-probability of each completion id at the temperature it was sampled with."""
    finish_reason: str | None = None
    message: dict[str, JsonValue] = Field(default_factory=dict)
    """The assistant message the app was given."""
    kept: str | None = None
    """Which tokens each id was sampled among, where `top_p`, `top_k` or `min_p` cut some off of a trained
    agent's reply (`sequences.write_masks`)."""
    left_out: str | None = None
    """Why the reply is not trained on although its agent is: what the request asked for can't be computed by
    an update. None if it is."""
    as_text: list[str] | None = None
    """Tokens of the model's own that a user's or a tool's message held, each once: the prompt has them as
    text. None if there were none."""


CallStatus = Literal["completed", "cancelled", "failed", "refused"]
"""A refused call asked for what can't be done, and nothing was sampled; its `error` says what."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Ids in memory that calls of one conversation share. It says how a call is held, not which it is, so all
    are equal; copies by `pickle` or `deepcopy` are empty."""

    ids: memoryview | None = field(default=None, compare=False)
    """(N,) uint32."""
    listed: list[int] | None = field(default=None, compare=False)
    """The list that they are the ids of."""

    def __reduce__(self) -> tuple[type[Packed], tuple[()]]:
        return Packed, ()


class Call(Record):
    """One recorded LLM request and its reply."""

    id: str
    """Shared by the tries of one request. A try that completed is kept, and what completes under its id
    afterwards has an id made of both."""
    rollout_id: str | None
    attempt: Integer | None
    agent: str
    trained: bool
    """Whether the agent is one of those being trained."""
    dialect: str = "chat"
    model: str = ""
    request: dict[str, JsonValue] = Field(default_factory=dict)
    prompt_ids: list[int] | None = None
    choices: list[Choice] = Field(default_factory=list)
    temperature: FiniteFloat = 1.0
    policy_version: Integer | None = None
    """The version of the weights that answered."""
    policy: str | None = None
    """The named policy that the agent plays, whose version that is; None: the run's own policy."""
    status: CallStatus = "completed"
    error: str | None = None
    started_at: FiniteFloat
    ended_at: FiniteFloat
    response_id: str | None = None
    """The id of the reply, as the app was given it."""
    endpoint: str | None = None
    """Where the app sent it, when that was not the gateway: such a call was only seen, and is never
    trained on. None for a call that the gateway answered."""
    grammar: str | None = None
    """Grammar of its replies, as the engine wrote it down to be replayed over `completion_ids`; None if the
    request had no constraint."""
    _packed: Packed = PrivateAttr(default_factory=Packed)

    def with_read(
        self, request: dict[str, JsonValue], prompt_ids: list[int] | None, packed: memoryview | None
    ) -> Call:
        """The call with what a store has read, which was checked before it was stored. `packed` are the ids
        again."""
        call = self.model_copy(update={"request": request, "prompt_ids": prompt_ids})
        call._packed = Packed(packed, prompt_ids)
        return call

    @property
    def packed_prompt(self) -> memoryview | None:
        """Its prompt's ids as uint32, in memory that calls of one conversation share; None if no store has
        read them."""
        return self._packed.ids if self._packed.listed is self.prompt_ids else None


@dataclass(frozen=True, slots=True)
class Who:
    """A plugin's answer to "who is calling right now?"."""

    agent: str
    entered: int = 0
    """When the caller's innermost scope was entered (see `tracing.scope.enter_order`): larger is inner."""
    framework: str = ""


ToolErrorType = Literal["raised", "unknown_tool", "invalid_arguments", "timed_out"]


class ToolEvent(Record):
    """One run of a tool, or the refusal to run it."""

    kind: Literal["tool"] = "tool"
    id: str
    rollout_id: str
    attempt: Integer
    agent: str
    """Who asked for it."""
    framework: str = ""
    name: str
    arguments: str = ""
    """As the model wrote them, which need not be valid JSON."""
    result: str | None = None
    """Result for the model; None if the tool raised and the model got none."""
    error: str | None = None
    """Why it failed; None if it did not."""
    error_type: ToolErrorType | None = None
    tool_call_id: str | None = None
    """The id that the reply gave the request for it: the link to the call that asked."""
    call_id: str | None = None
    """Id of the call that asked for it; see `linking.link`."""
    started_at: FiniteFloat
    ended_at: FiniteFloat


class Span(Record):
    """A span of OpenTelemetry that belongs to a rollout."""

    kind: Literal["span"] = "span"
    id: str
    """Span id, 16 hex digits."""
    trace_id: str
    """32 hex digits."""
    parent_id: str | None = None
    rollout_id: str
    attempt: Integer
    agent: str | None = None
    """`gen_ai.agent.name` of the span or of the nearest span around it."""
    call_id: str | None = None
    """The recorded call that it describes; see `linking.link`."""
    name: str
    span_kind: Literal["internal", "server", "client", "producer", "consumer"] = "internal"
    attributes: dict[str, JsonValue] = Field(default_factory=dict)
    events: list[dict[str, JsonValue]] = Field(default_factory=list)
    """Each with `name`, `time` (Unix seconds) and `attributes`."""
    error: str | None = None
    """The description of an ERROR status, "" if it had none; None if the span did not fail."""
    started_at: FiniteFloat
    ended_at: FiniteFloat


Event = Annotated[ToolEvent | Span, Field(discriminator="kind")]
"""An event of a rollout beside its calls and rewards."""


class Credited(Record):
    """The credit of a transition in its step, for people who ask why."""

    rollout_id: str
    attempt: Integer
    call_id: str
    choice: Integer = 0
    advantage: float | None = None
    """None: it carried no loss."""
    value: float | None = None
    """The critic's estimate of the return from here, if the algorithm has a critic."""
    weight: float = 0.0
    """The weight of one of its tokens in the loss of its step."""


# runs -----------------------------------------------------------------------------------------------
Role = Literal["trainer", "gateway", "runner"]
TRIED: Final = "trial of"
"""Where the config of a trial says of which run it is. A trial may fork the rollouts of its run."""


class Run(Record):
    """One training run: its configuration and where its folder lies."""

    id: str
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings that may not change when the run is resumed; and under "rollouts" how every worker is to run
    them."""
    folder: str | None = None
    status: Literal["running", "finished", "stopped", "failed"] = "running"
    created_at: FiniteFloat = Field(default_factory=time.time)
    provenance: dict[str, JsonValue] = Field(default_factory=dict)
    """Where its numbers come from: versions of packages, git state, machine, command line, all settings."""
    secret: str = Field(default="", repr=False)
    """The key that signs its rollouts' tokens, in hexadecimal: whoever may read the store may have it."""


class ResourceVersion(Record):
    """One version of something an algorithm improves: model weights or a prompt template."""

    run_id: str
    name: str = "policy"
    version: Integer
    kind: Literal["weights", "prompt"] = "weights"
    uri: str | None
    """Where the content lies: a folder for weights, the text for a prompt. None once that was deleted."""
    parent: Integer | None = None
    """The version it was made from."""
    author: str = "trainer"
    """Who made it: "trainer", or a person's name."""
    metrics: dict[str, float] = Field(default_factory=dict)
    created_at: FiniteFloat = Field(default_factory=time.time)
    chosen_at: FiniteFloat | None = None
    """When it was last chosen to be served: the version chosen last is the current one. None: never."""


class Metrics(Record):
    """Numbers of one step of a run."""

    run_id: str
    step: Integer
    values: dict[str, float]
    created_at: FiniteFloat = Field(default_factory=time.time)


class Member(Record):
    """A process that plays a role in a run, as it last said of itself."""

    run_id: str
    role: Role
    name: str
    """Its own name in that role: a restarted process takes the place of the one that died."""
    url: str | None = None
    """Where it is reached: of a gateway, without `/v1`."""
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """Further facts: process id, host, slots, the policy versions it serves."""
    started_at: FiniteFloat = Field(default_factory=time.time)
    seen_at: FiniteFloat = Field(default_factory=time.time)
    """Unix seconds of its last sign of life."""


class Alert(Record):
    """Something about a run that a person should look at."""

    run_id: str
    id: str
    """Id of the alert; of several with one id the first counts."""
    rule: str
    """Who raised it, such as "reward_collapse"."""
    level: Literal["warning", "critical"] = "warning"
    message: str
    """The alert's message: the event, its subject, and the remedy."""
    step: Integer | None = None
    created_at: FiniteFloat = Field(default_factory=time.time)


# inside a training step -----------------------------------------------------------------------------
Key = tuple[str, str, int]
"""The address of a transition: (rollout_id, call_id, choice)."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A call as an MDP step: state `prompt_ids`, action `completion_ids`.

    Any sequence will do. The trainer's are arrays, or views of memory that prompts share, which equal no
    list: compare `list(t.prompt_ids)`.
    """

    rollout_id: str
    call_id: str
    choice: int
    agent: str
    trained: bool
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]
    """Log-probabilities of `completion_ids` under the policy that sampled them; NaN in a demonstration."""
    policy_version: int | None
    """The version of the weights that sampled it; None if no version did, as of a demonstration, or if the
    engine did not say."""
    temperature: float = 1.0
    policy: str | None = None
    """The named policy whose version that is; None: the run's own policy."""
    grammar: str | None = None
    """Grammar of its tokens (`Call.grammar`), or the masks that were recorded (`Choice.kept`): their
    log-probabilities are those under these masks."""
    observation: str = ""
    """Digest of what the agent was shown last, the last message before its reply: equal digests are the same
    observation. "" if that is not known."""
    reward: float = 0.0
    """Sum of the intermediate rewards addressed to this call; each choice of a call bears the same."""
    feedback: str = ""
    """The reasons of rewards about its call, or else of its rollout's or agent's final reward; "" for none.
    """
    started_at: float | None = None
    ended_at: float | None = None
    """When the call ran, in Unix seconds; None if not known. Calls that overlap led not to one another."""
    value: float | None = None
    """The critic's estimate of the return from here, if the algorithm has a critic."""
    advantage: float | None = None
    """None = not assigned yet; 0.0 = assigned zero."""
    target: float | None = None
    """The critic's target; None if the algorithm has no critic."""
    teacher_ids: Sequence[int] | None = None
    """The teacher's prompt: that of the call, and a text more; None if it has no teacher."""
    teacher_logprobs: Sequence[float] | None = None
    """Log-probabilities of `completion_ids` after `teacher_ids`; None if it has no teacher."""

    @property
    def key(self) -> Key:
        """Its address."""
        return self.rollout_id, self.call_id, self.choice


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The transitions of one rollout, in the order their calls started."""

    rollout_id: str
    group_id: str
    task_id: str
    reward: float
    """The final reward of the rollout."""
    transitions: tuple[Transition, ...]
    intermediate: float = 0.0
    """Sum of all intermediate rewards of the rollout, whether or not their calls became transitions."""
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    """Final rewards of single agents, which for them stand in place of `reward`."""

    def final(self, agent: str) -> float:
        """The final reward as it is for one agent."""
        return self.agent_rewards.get(agent, self.reward)
