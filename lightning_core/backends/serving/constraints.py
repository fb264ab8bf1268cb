"""A request's constraint as one grammar, and the grammar as masks over a model's vocabulary.

The grammar is a text, made here from the constraint and from how the model writes a tool call. It is recorded
with the call. Grammar and recorded ids alone give the same masks again: the update takes them from `replay`.

The work is llguidance's, imported when a request has a constraint. It was chosen by measurement beside
xgrammar 0.2.8 and outlines-core 0.2.14, for five schemas, with the vocabularies of SmolLM2 (49,152) and Qwen
(151,672), one thread of a busy machine:

| | llguidance 1.9.1 | xgrammar | outlines-core |
|---|---|---|---|
| start of a schema, 49 k, ms | 0.2 to 0.4 | 1 to 12,338 | 53 to 31,259 |
| the same, 152 k | 0.2 to 0.4 | 1 to 34,303 | 4,443 to 139,802 (two schemas) |
| mask and step, 49 k, us a token, mean | 12 to 16; 397 with maxLength | 2 to 7; 427 | 1 to 426 |
| the same, 152 k | 15 to 29; 710 | 2 to 241; 4,741 | 2,038 to 2,503 |
| reading the vocabulary, 49 k and 152 k, s | 1 to 2.6 and 7.2 | 22 and 18 | 0.3 and 1.5 |
| memory for it, MiB | 28 and 119 | 236 and 279 | 13 and 38 |
| needs | nothing (3 MB wheel) | torch, a compiler's runtime | nothing |

Of the 383 schemas of the JSON-Schema-Test-Suite for draft 2020-12 llguidance refuses 214 by name and ignores
a keyword in none; xgrammar refuses 28 and ignores a keyword in 181. So what is refused here needs no list of
our own, but for one case: a `$ref` beside an `$id`, which draft 7 and earlier read otherwise.

A schema's properties come in the order it names them, and JSON is written on one line, with a space after
"," and ":", as chat templates write it. Free blank space would be tokens that say nothing, to be learnt.

vLLM's servers get the same text, for their own use of the library ("guidance"). There a reply ends with the
tokenizer's end token alone, so it does here: both engines and both backends make the same masks.
"""

from __future__ import annotations

import json
import re
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from lightning_core.backends.serving import trial_process
from lightning_core.backends.serving.channels import CHANNEL, MESSAGE
from lightning_core.backends.serving.forced import Calls
from lightning_core.backends.serving.forms import OPENAI, find_form, has_form
from lightning_core.backends.serving.schemas import json_grammar
from lightning_core.backends.serving.trials import Trials
from lightning_core.dialects.upstream import ChatRequest, Constraint
from lightning_core.errors import ConstraintError, TrainingError, UnsupportedError
from lightning_core.records.sequences import KEPT as KEPT_MASKS
from lightning_core.records.sequences import read_masks

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from transformers import PreTrainedTokenizerBase

Words = NDArray[np.uint32]
"""A mask: bit i of word w is token 32 * w + i, set where the token may come next."""
KEPT: Final = 64
"""Grammars that are kept ready."""
KEPT_BYTES: Final = 256 << 20
"""Memory that they may take together."""
LARGEST: Final = 1 << 19
"""Bytes of JSON that a constraint, and that a request's tools, may have."""
SECONDS: Final = 0.25
"""Processor time that the masks of all replies to a request may take, beside `EACH` for every token."""
EACH: Final = 0.005
"""Ten times what the slowest schema takes that was measured."""
_EIGHT: Final = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") > 0,
    np.float32(0),
    np.float32("-inf"),
)
"""(256, 8) for each byte of a mask what it adds to eight logits."""
_EIGHT.setflags(write=False)


@dataclass(frozen=True, slots=True)
class Composed:
    """A grammar, and the grammars that it is made of, each with what it holds a reply to."""

    grammar: str
    parts: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class MaskMeter:
    """Time and tokens of the masks of one request's replies, together."""

    spent: float = 0.0
    """Seconds of processor time."""
    tokens: int = 0


class Matcher:
    """Where one reply stands in its grammar."""

    __slots__ = ("_failed", "_matcher", "_meter", "grammar")

    def __init__(
        self, matcher: LLMatcher, grammar: str, failed: Callable[[], None], meter: MaskMeter | None
    ) -> None:
        """`failed` is called once the library can't go on. Without a meter a reply may take its time."""
        self._matcher, self.grammar, self._failed, self._meter = matcher, grammar, failed, meter

    def fill(self, words: Words) -> None:
        """Write which tokens may come next. The end token is among them exactly where the grammar accepts.

        Raises ConstraintError if the grammar is too much for the library from here on, or takes too long.
        """
        began = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check("has no next token", began)

    def take(self, token_id: int) -> None:
        """Go on after a token. Raises ConstraintError for one that the mask did not hold, and as `fill`."""
        began = time.thread_time()
        self._matcher.consume_token(token_id)
        if self._meter is not None:
            self._meter.tokens += 1
        self._check(f"can't go on after token {token_id}", began)

    def _check(self, what: str, began: float) -> None:
        if self._matcher.is_error():
            self._failed()
            reason = _reason(self._matcher.get_error())
            raise ConstraintError(f"the grammar of this reply {what}: {reason}")
        meter = self._meter
        if meter is None:
            return
        meter.spent += time.thread_time() - began
        if meter.spent > SECONDS + EACH * meter.tokens:
            raise ConstraintError(
                f"the grammar of this reply took {meter.spent:.1f} s of processor time for {meter.tokens} "
                "tokens, and others wait meanwhile; use simpler patterns or fewer and shorter texts"
            )


class Grammars:
    """Grammars and their masks for one model. Methods may be called from any thread."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
        """Token ids go from 0 to `vocabulary` - 1; the tokenizer is read when it is first needed."""
        self._tokenizer = tokenizer
        self.vocabulary, self.words = vocabulary, (vocabulary + 31) // 32
        self._read: LLTokenizer | None = None
        self._reading = threading.Lock()
        self._ready: OrderedDict[tuple[str, bool], tuple[LLMatcher, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._trials = Trials(partial(_settings, tokenizer, vocabulary))

    def compose(self, request: ChatRequest) -> Composed | None:
        """The grammar of a request's replies, not yet tried; None without a constraint.

        Raises UnsupportedError, naming what can't be held to.
        """
        constraint = request.constraint
        if constraint is None:
            return None
        self._check_size([constraint.schema, constraint.regex, constraint.choice, constraint.grammar])
        self._check_size(request.tools)
        self._trials.begin()
        self._vocabulary()
        tools = request.tools or []
        kind = "calls of these tools" if constraint.tools is not None else f"this {constraint.kind}"
        parts = {"reply": (self._written(constraint, tools), kind)}
        if constraint.tools is None and tools:
            parts["calls"] = (self._calls(tools, parallel=request.parallel), "calls of these tools")
        written = {name: grammar for name, (grammar, _) in parts.items()}
        if constraint.tools is None and has_form(self._tokenizer, OPENAI):
            header = " ".join(map(self._tag, (CHANNEL, "final", MESSAGE)))
            written["reply"] = f"start: {header} text\ntext: %lark {{\n{written['reply']}\n}}"
        whole = written["reply"] if len(written) == 1 else _either(written)
        return Composed(whole, tuple(parts.values()))

    def admit(self, composed: Composed, stop: threading.Event | None = None) -> None:
        """Try a grammar in a process of its own, then prepare it here; one that is ready is not tried again.

        Raises UnsupportedError for one that can't be read or is too much to prepare, `trials.StoppedError`
        once `stop` is set.
        """
        if self.is_ready(composed.grammar):
            return
        verdict = self._trials.run(composed.grammar, stop)
        if verdict.reason:  # each part by itself: an error then speaks of what the request gave
            for grammar, what in composed.parts:
                reason = verdict.reason
                if len(composed.parts) > 1:
                    reason = self._trials.run(grammar, stop).reason
                if reason:
                    raise _unsupported(what, reason)
            raise _unsupported(composed.parts[0][1], verdict.reason)
        self._prepared(composed.grammar, composed.parts[0][1], verdict.grown)

    def write(self, request: ChatRequest) -> str | None:
        """The grammar of a request's replies, tried and ready; None without a constraint.

        Raises UnsupportedError, naming what can't be held to.
        """
        composed = self.compose(request)
        if composed is None:
            return None
        self.admit(composed)
        return composed.grammar

    def is_ready(self, grammar: str) -> bool:
        """Whether `start` has nothing to prepare."""
        return (grammar, True) in self._ready

    def start(self, grammar: str, meter: MaskMeter | None = None) -> Matcher:
        """The beginning of a reply, whose grammar was admitted. Replies to one request share a meter."""
        return self._start(grammar, meter or MaskMeter())

    def _start(self, grammar: str, meter: MaskMeter | None) -> Matcher:
        """Without a meter: of a reply that was recorded."""
        bounded = meter is not None
        matcher = self._prepared(grammar, "this grammar", bounded=bounded).deep_copy()
        return Matcher(matcher, grammar, partial(self._forget, (grammar, bounded)), meter)

    def replay(self, grammar: str, token_ids: Sequence[int], where: str) -> Words:
        """(N, words) the masks under which N recorded tokens were sampled: those of a grammar, or those that
        were recorded as a text (`sequences.write_masks`).

        Raises TrainingError, which names `where`, if they could not have been sampled so.
        """
        if grammar.startswith(KEPT_MASKS):
            return self._recorded(grammar, token_ids, where)
        try:
            return self._masks(grammar, token_ids)
        except (
            ConstraintError
        ):  # perhaps for the replies before it: the grammar is prepared again for this one
            try:
                return self._masks(grammar, token_ids)
            except ConstraintError as error:
                raise TrainingError(
                    f"{where}: the recorded reply does not follow its grammar: {error}. It was sampled under "
                    "another vocabulary or another version of llguidance; leave it out"
                ) from error

    def _masks(self, grammar: str, token_ids: Sequence[int]) -> Words:
        matcher, masks = self._start(grammar, None), np.zeros((len(token_ids), self.words), np.uint32)
        for place, token_id in enumerate(token_ids):
            try:
                matcher.fill(masks[place])
                matcher.take(token_id)
            except ConstraintError as error:
                raise ConstraintError(f"at token {place}, {error}") from error
        return masks

    def _recorded(self, text: str, token_ids: Sequence[int], where: str) -> Words:
        try:
            masks = read_masks(text, self.vocabulary)
        except (ValueError, zlib.error) as error:
            raise TrainingError(
                f"{where}: its record of the tokens that were left is broken: {error}"
            ) from error
        ids = np.asarray(token_ids, dtype=np.int64)
        if len(masks) != len(ids) or not (masks[np.arange(len(ids)), ids // 32] >> (ids % 32) & 1).all():
            raise TrainingError(
                f"{where}: its tokens are not those that its record says were left; leave it out"
            )
        return masks

    def _forget(self, key: tuple[str, bool]) -> None:
        """All replies under a grammar share what the library has learned of it, and a bound on that. Once it
        is reached, the next reply begins with the grammar prepared again."""
        with self._lock:
            self._ready.pop(key, None)

    def _prepared(self, grammar: str, what: str, grown: int = 0, *, bounded: bool = True) -> LLMatcher:
        """`grown` is the memory that it takes, in bytes. Two threads may prepare one grammar at once: none
        waits for another's. Recorded replies were sampled within bounds, those of today or earlier ones."""
        key = (grammar, bounded)
        with self._lock:
            if key in self._ready:
                self._ready.move_to_end(key)
                return self._ready[key][0]
        limits = trial_process.limits(grammar) if bounded else None
        matcher, reason = trial_process.prepare(self._vocabulary(), grammar, limits)
        if reason:
            raise _unsupported(what, reason)
        with self._lock:
            self._ready[key] = matcher, grown
            while len(self._ready) > KEPT or (
                len(self._ready) > 1 and sum(each for _, each in self._ready.values()) > KEPT_BYTES
            ):
                self._ready.popitem(last=False)
        return matcher

    def _vocabulary(self) -> LLTokenizer:
        with self._reading:
            if self._read is None:
                from llguidance import LLTokenizer

                settings = _settings(self._tokenizer, self.vocabulary)
                try:
                    if settings["end"] is None:
                        raise ValueError("it names no eos_token to end a reply with")
                    self._read = LLTokenizer(
                        settings["tokenizer"], n_vocab=settings["size"], eos_token=settings["end"]
                    )
                except ValueError as error:
                    raise UnsupportedError(
                        f"this model's tokenizer can't be read for constraints: {error}; ask without one"
                    ) from error
            return self._read

    def _check_size(self, given: Any) -> None:
        """Raise UnsupportedError for what is too long to look through."""
        size = len(orjson.dumps(given))
        if size > LARGEST:
            raise UnsupportedError(
                f"the constraint has {size} bytes of JSON, more than {LARGEST}; send fewer alternatives, "
                "or fewer tools"
            )

    def _written(self, constraint: Constraint, tools: list[dict[str, Any]]) -> str:
        """Returns the grammar of the allowed replies, in Lark's notation."""
        if constraint.grammar is not None:
            return constraint.grammar
        if constraint.tools is not None:
            wanted = [tool for tool in tools if tool["function"]["name"] in constraint.tools]
            return self._calls(wanted, parallel=constraint.parallel)
        if constraint.choice is not None:
            self._check_text("\n".join(constraint.choice), constraint.kind)
            return f"start: CHOICE\nCHOICE: {' | '.join(map(_literal, constraint.choice))}"
        written = (
            _regex(constraint.regex or "") if constraint.schema is None else json_grammar(constraint.schema)
        )
        self._check_text(written, constraint.kind)
        return f"start: {written}"

    def _calls(self, tools: list[dict[str, Any]], *, parallel: bool) -> str:
        """At least one call of these functions, as `tool_calls.ToolCalls` reads them."""
        if not tools:
            raise UnsupportedError("a call of a tool is asked for, and the request has no such tool; send it")
        form = find_form(self._tokenizer)
        return Calls(form, self._tag, json_grammar, self._check_text).write(tools, parallel=parallel)

    def _tag(self, tag: str) -> str:
        """A tag is one token where the model has it so, else text."""
        if tag not in self._tokens:
            return _literal(tag)
        named = re.fullmatch("<[a-z_|/]+>", tag, re.IGNORECASE | re.ASCII)
        return tag if named else f"<[{self._tokenizer.convert_tokens_to_ids(tag)}]>"

    @property
    def _tokens(self) -> set[str]:
        """Texts that the tokenizer takes out of any text, as tokens of their own."""
        return {token.content for token in self._tokenizer.added_tokens_decoder.values()}

    def _check_text(self, constraint: str, kind: str) -> None:
        """Raise UnsupportedError for a text that the grammar may force and the model's tokens can't spell.

        A vocabulary may lack bytes: SmolLM2 has no token for 0xF1, which begins characters such as U+40000.
        """
        vocabulary = self._vocabulary()
        for character in sorted(set(constraint)):
            if vocabulary.decode_bytes(vocabulary.tokenize_str(character)) != character.encode():
                raise UnsupportedError(
                    f"no reply can be held to this {kind}: this model has no tokens for {character!r}; "
                    "take it out"
                )
        inside = sorted(token for token in self._tokens if token in constraint)
        if inside:
            raise UnsupportedError(
                f"no reply can be held to this {kind}: {inside[0]!r} in it is a token of its own for this "
                "model, not text; take it out"
            )


def penalties(words: Words, vocabulary: int) -> NDArray[np.float32]:
    """(N, V) what masks (N, W) add to logits: 0 where a token may come next, minus infinity elsewhere.

    Eight tokens are looked up at once: 32 masks over 49,152 tokens take 0.4 ms. Filling logits by a boolean
    mask took 16 to 40.
    """
    found = _EIGHT.take(words.astype("<u4", copy=False).view(np.uint8), axis=0)
    return found.reshape(*words.shape[:-1], -1)[..., :vocabulary]


def _settings(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> dict[str, Any]:
    """The vocabulary as the library reads it, here and in the processes of trials."""
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    return {"tokenizer": backend.to_str(), "size": vocabulary, "end": tokenizer.eos_token_id}


def _unsupported(what: str, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"no reply can be held to {what}: {_reason(reason)}; leave that out, or ask without a constraint"
    )


def _either(parts: dict[str, str]) -> str:
    """Any one of several grammars, each with names of its own."""
    named = [f"{name}: %lark {{\n{grammar}\n}}" for name, grammar in parts.items()]
    return "\n".join([f"start: {' | '.join(parts)}", *named])


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _regex(pattern: str) -> str:
    from llguidance import regex_to_lark

    return f"/{regex_to_lark(pattern, '')}/"


def _reason(message: str) -> str:
    """Returns the library's message, without the place in a grammar that the app has not seen."""
    lines = message.strip().splitlines() or ["it gives no reason"]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    first = lines[0].partition("): ")[2] if lines[0].startswith("at ") else lines[0]
    return "; ".join([first.rstrip(":"), *causes])
