"""The options of an API: each is honoured, ignored because it can't matter here, or refused by name.

Every dialect has one table of them. docs/gateway.md prints the tables, and a test holds them against the
request types of the SDKs, so that an option that a new OpenAI or Anthropic SDK brings is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from lightning_core.dialects.strict import read_object, short, unsupported
from lightning_core.errors import ApiError


@dataclass(frozen=True, slots=True)
class Option:
    """The handling of one option."""

    answer: Literal["honoured", "ignored", "refused"]
    note: str = ""
    """How it is honoured, why it can't matter, or what to do instead."""
    neutral: tuple[Any, ...] = ()
    """Values of a refused option that ask for nothing, and are accepted."""


def honoured(*names: str, note: str = "") -> dict[str, Option]:
    """Options that do what their API says."""
    return dict.fromkeys(names, Option("honoured", note))


def ignored(note: str, *names: str) -> dict[str, Option]:
    """Options that change nothing in what is sampled here; `note` says why."""
    return dict.fromkeys(names, Option("ignored", note))


def refused(note: str, *names: str, **neutral: tuple[Any, ...]) -> dict[str, Option]:
    """Options that can't be honoured, some with values that ask for nothing; `note` says what to do."""
    return {name: Option("refused", note, neutral.get(name, ())) for name in (*names, *neutral)}


class Options:
    """The options of one API by name. `reasoning.effort` is the option `effort` within `reasoning`."""

    def __init__(self, *groups: Mapping[str, Option]) -> None:
        self.by_name = MappingProxyType({name: option for group in groups for name, option in group.items()})
        self._parents = frozenset(name.rpartition(".")[0] for name in self.by_name)

    def read(self, content: bytes) -> dict[str, Any]:
        """The JSON object in `content`. Raises ApiError for an option that can't be honoured."""
        body = read_object(content)
        self._check(body, "")
        return body

    def _check(self, given: dict[str, Any], within: str) -> None:
        for name, value in given.items():
            full = within + name
            option = self.by_name.get(full)
            if option is None or option.answer == "refused":
                _refuse_unless_neutral(full, value, option)
            elif full in self._parents and isinstance(value, dict):
                self._check(value, full + ".")


def _refuse_unless_neutral(name: str, value: Any, option: Option | None) -> None:
    if value is None or (option is not None and value in option.neutral):
        return
    if option is not None:
        raise unsupported(name, f"{name} = {short(value)} is not supported here: {option.note}")
    raise ApiError(
        f"{name!r} is not a parameter of this endpoint; leave it out", code="unknown_parameter", param=name
    )


LABELS: Final = ignored(
    "a label for the provider's own records", "user", "metadata", "safety_identifier", "service_tier"
)
CACHING: Final = ignored(
    "prefixes are always reused", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"
)
FROM_VLLM: Final = "as vLLM has it"
EFFORT: Final = (
    "given to the chat template if it reads `reasoning_effort`; if it reads `enable_thinking`, "
    "`none` turns thinking off and any other value on; other models have no such grades"
)
ON_OR_OFF: Final = "`disabled` or `false` is the effort `none`; else the model thinks as much as by itself"
VERBOSITY: Final = "no chat template has such grades; say in the prompt how long a reply should be"
RESHAPING: Final = honoured(
    *("frequency_penalty", "presence_penalty", "logit_bias", "top_k", "min_p", "repetition_penalty"),
    note="a trained agent's calls are sampled so too; see Sampling options, below",
)
THINKING_BUDGET: Final = "max_tokens bounds thinking and reply together"
FROM_SERVERS: Final = {
    **ignored(
        "requests of a rollout are told apart by its token, and answered as they come",
        *("request_id", "session_id", "cache_salt", "priority", "cache_prompt", "id_slot", "keep_alive"),
    ),
    **ignored("the text has no special tokens", "spaces_between_special_tokens"),
    **ignored("there is one provider and one model", "provider", "models", "route"),
    **ignored("nothing is cut out of a conversation: one that is too long is refused", "transforms"),
    **refused(
        "the text has no special tokens; leave it out, and read token ids with return_token_ids",
        skip_special_tokens=(True,),
        return_tokens_as_token_ids=(False,),
        detokenize=(True,),
    ),
    **refused(
        "a reply ends with the model's own end tokens; use stop or max_tokens, and leave it out",
        stop_token_ids=([],),
        min_tokens=(0,),
        ignore_eos=(False,),
        include_stop_str_in_output=(False,),
    ),
    **refused(
        "it is none of the ways to sample here; use temperature, top_p, top_k, min_p or a penalty",
        length_penalty=(1,),
        use_beam_search=(False,),
        early_stopping=(False,),
        best_of=(1,),
        bad_words=([],),
        allowed_token_ids=([],),
        logits_processors=([],),
        typical_p=(1,),
        tfs_z=(1,),
        top_a=(0,),
        mirostat=(0,),
        repeat_penalty=(1,),
        dry_multiplier=(0,),
        xtc_probability=(0,),
        dynatemp_range=(0,),
    ),
    **refused("the prompt is what was sent; leave it out", echo=(False,), truncate_prompt_tokens=(-1,)),
    **refused("log-probabilities are those of the reply; leave it out", prompt_logprobs=(0, False)),
    **refused("tools run in the app; give them as tools", plugins=([],)),
}
"""Options that clients of vLLM, SGLang, llama.cpp and OpenRouter send, whatever the API."""
STREAMING: Final = {
    **honoured("stream", "stream_options", "stream_options.include_usage"),
    **ignored("chunks are never padded", "stream_options.include_obfuscation"),
    "stream_options.continuous_usage_stats": Option(
        "refused", "tokens are counted once, at the end; use include_usage", (False,)
    ),
}
