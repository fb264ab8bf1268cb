"""Replies that are held to something: they match it, and the update sees the probabilities they were sampled
with."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import UUID4, BaseModel, Field, SecretStr
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from lightning_core.algorithms.policy_gradient import GRPO
from lightning_core.backends.base import Batch
from lightning_core.backends.local.model import load_model
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.serving.constraints import Grammars
from lightning_core.backends.settings import LoraOptions, TrainingSettings
from lightning_core.backends.weights.sources import load_tokenizer, tiny_folder
from lightning_core.dialects.upstream import ChatRequest, Constraint, Shaping
from lightning_core.errors import TrainingError, UnsupportedError
from lightning_core.experience.trajectories import make_packs
from lightning_core.experience.transitions import to_trajectory
from lightning_core.records.sequences import write_masks
from lightning_core.records.types import Rollout, Sampling, Task, Trajectory, Transition
from tests.backends.schemas import SCHEMAS, UNFINISHED, walk
from tests.backends.serving import Reply, as_transition, ask, ask_all, gateway, serving, user

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/digit"}, "b": {"$ref": "#/$defs/digit"}},
            "required": ["a", "b"],
            "additionalProperties": False,
            "$defs": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop"}}
KINDS: dict[str, dict[str, Any]] = {
    "schema": {"constraint": Constraint(schema=PERSON)},
    "tools": {"constraint": Constraint(tools=("add", "stop")), "tools": [ADD, STOP]},
    "regex": {"constraint": Constraint(regex=r"[0-9]{3}-[a-c]+(é|日)?")},
    "choice": {"constraint": Constraint(choice=("yes", "no", 'say "no"\n'))},
    "grammar": {"constraint": Constraint(grammar='start: "(" (start | "x") ")"')},
}


def matches(kind: str, reply: Reply) -> bool:
    """Whether a reply that ended by itself is what was asked for, judged without the engine's library."""
    if kind == "schema":
        return Draft202012Validator(PERSON).is_valid(json.loads(reply.text))
    if kind == "tools":
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in reply.tool_calls
        ]
        schema = ADD["function"]["parameters"]
        right = [a == {} if n == "stop" else Draft202012Validator(schema).is_valid(a) for n, a in calls]
        return bool(right) and all(right) and reply.text == "" and reply.finish_reason == "tool_calls"
    if kind == "regex":
        return re.fullmatch(r"[0-9]{3}-[a-c]+(é|日)?", reply.text) is not None
    if kind == "choice":
        return reply.text in ("yes", "no", 'say "no"\n')
    return re.fullmatch(r"\(+x\)+", reply.text) is not None and reply.text.count("(") == reply.text.count(")")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"temperature": 2.0, "top_p": 0.7}])
async def test_every_reply_that_ends_by_itself_matches(
    qwen: Path, kind: str, sampling: dict[str, float]
) -> None:
    async with serving(qwen) as backend:
        replies = await ask_all(backend, user("hello"), n=4, max_tokens=200, **KINDS[kind], **sampling)
        ended = [reply for reply in replies if reply.finish_reason != "length"]
        assert ended or kind in ("grammar", "regex")  # these may go on for ever
        assert all(matches(kind, reply) for reply in ended)
        assert all(math.isfinite(p) for reply in replies for p in reply.logprobs)


async def test_one_batch_holds_constrained_and_free_replies(qwen: Path) -> None:
    """A free reply is the same beside constrained ones."""
    async with serving(qwen) as backend:
        alone = await ask(backend, "hello", max_tokens=20, seed=1)
        together = await asyncio.gather(
            ask(backend, "hello", max_tokens=20, seed=1),
            *(ask(backend, "hello", max_tokens=99, **options) for options in KINDS.values()),
        )
        assert together[0].ids == alone.ids
        assert together[0].logprobs == pytest.approx(alone.logprobs, abs=1e-4)
        assert together[0].deltas


async def test_recorded_logprobs_are_those_of_the_tokens_allowed(qwen: Path) -> None:
    """Computed by hand: softmax over the tokens that begin a text that is still possible, and the stop."""
    texts = ("yes", "no", "nothing")
    async with serving(qwen) as backend:
        asked = {"constraint": Constraint(choice=texts), "max_tokens": 20, "temperature": 0.7, "n": 8}
        replies = await ask_all(backend, user("hello"), **asked, top_logprobs=5)
        model, network = load_model(qwen, device="cpu"), AutoModelForCausalLM.from_pretrained(qwen)
        written = [model.tokenizer.decode([i]) for i in range(len(model.tokenizer))]
        free = 0
        for reply in replies:
            logits = network(torch.tensor([[*reply.prompt_ids, *reply.ids]])).logits[0].detach() / 0.7
            so_far = ""
            for place, (token, logprob) in enumerate(zip(reply.ids, reply.logprobs, strict=True)):
                left = [text[len(so_far) :] for text in texts if text.startswith(so_far)]
                may = [i for i, text in enumerate(written) if text and any(t.startswith(text) for t in left)]
                may += [model.tokenizer.eos_token_id] if "" in left else []
                row = logits[len(reply.prompt_ids) + place - 1]
                expected = float(row[token] - row[may].logsumexp(0)) if len(left) > 1 or left == [""] else 0.0
                assert logprob == pytest.approx(expected, abs=1e-4)
                assert {i for i, _ in reply.best[place]} <= set(may)
                free += expected < -1e-3
                so_far += written[token]
        assert free


async def test_a_reply_stops_exactly_where_the_grammar_accepts(qwen: Path) -> None:
    """The mask of every place, one by one: the end token is in it where the text so far matches."""
    async with serving(qwen) as backend:
        grammars = backend.upstream.grammars
        tokenizer = backend.upstream.model.tokenizer
        stops = [tokenizer.eos_token_id]
        grammar = grammars.write(ChatRequest([], constraint=Constraint(regex="a{2,4}")))
        assert grammar is not None
        token = tokenizer.convert_tokens_to_ids("a")
        words = grammars.replay(grammar, [token] * 4 + stops, "here")
        bits = [[bool(word[i // 32] >> (i % 32) & 1) for i in stops] for word in words]
        assert bits == [[count >= 2] for count in range(5)]


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        (Constraint(schema={"type": "array", "uniqueItems": True}), "uniqueItems"),
        (Constraint(schema={"type": "object", "propertyNames": {"enum": ["a"]}}), "propertyNames"),
        (Constraint(schema={"not": {"type": "string"}}), "not"),
        (Constraint(schema={"not": {}, "x-guidance": {"lenient": True}}), "not"),
        (Constraint(schema={"$ref": "https://example.org/a.json"}), "example.org"),
        (Constraint(schema={"$ref": "#/$defs/a", "$id": "b", "$defs": {"a": {}}}), r"\$id beside \$ref"),
        (Constraint(schema=False), "false"),
        (Constraint(schema={"const": "<|im_end|>"}), "token of its own"),
        (Constraint(regex="(?=a)b"), "look-around"),
        (Constraint(grammar="start: other"), "other"),
        (Constraint(grammar="start: a\na: start"), "no next token"),
        (Constraint(tools=("add",)), "no such tool"),
    ],
)
async def test_what_can_not_be_held_to_is_refused_by_name_before_sampling(
    qwen: Path, constraint: Constraint, named: str
) -> None:
    async with serving(qwen) as backend:
        with pytest.raises(UnsupportedError, match=named):
            await backend.upstream.chat(ChatRequest(user("hello"), constraint=constraint))
        assert backend.sampler.sampled_tokens == 0


async def test_beside_a_schema_a_reply_may_be_a_call_of_a_tool(qwen: Path) -> None:
    async with serving(qwen) as backend:
        asked = {"constraint": Constraint(schema=PERSON), "tools": [ADD], "max_tokens": 200}
        replies = [await ask(backend, "hello", seed=seed, temperature=3.0, **asked) for seed in range(20)]
        ended = [reply for reply in replies if reply.finish_reason != "length"]
        called = [reply for reply in ended if reply.tool_calls]
        assert 0 < len(called) < len(ended)
        assert all(matches("tools" if reply.tool_calls else "schema", reply) for reply in ended)


async def test_one_call_where_several_are_not_wanted(qwen: Path) -> None:
    async with serving(qwen) as backend:
        asked = {"constraint": Constraint(tools=("add", "stop"), parallel=False), "tools": [ADD, STOP]}
        replies = await ask_all(backend, user("hello"), n=6, max_tokens=200, temperature=2.0, **asked)
        assert all(len(reply.tool_calls) == 1 for reply in replies)


async def test_a_stop_text_and_the_length_end_a_reply_in_the_middle(qwen: Path) -> None:
    async with serving(qwen) as backend:
        cut = await ask(backend, "hello", max_tokens=3, constraint=Constraint(schema=PERSON))
        stopped = await ask(
            backend, "hello", max_tokens=99, stop=('"age"',), constraint=Constraint(schema=PERSON)
        )
        assert (cut.finish_reason, len(cut.ids)) == ("length", 3)
        assert stopped.finish_reason == "stop"
        assert stopped.text.startswith('{"name": "')
        grammars = backend.upstream.grammars
        grammar = grammars.write(ChatRequest([], constraint=Constraint(schema=PERSON)))
        assert grammar is not None
        for reply in (cut, stopped):
            assert len(grammars.replay(grammar, reply.ids, "here")) == len(reply.ids)


# the update -----------------------------------------------------------------------------------
CUTS: list[dict[str, Any]] = [
    {},
    {"top_p": 0.8},
    {"shaping": Shaping(top_k=7)},
    {"top_p": 0.9, "shaping": Shaping(min_p=0.05, top_k=90)},
]
"""Sampling options that cut tokens off, as rollouts' requests do. vLLM does not say which tokens, so calls
with them are left out of its updates."""


async def sample(backend: Any, temperature: float = 1.0) -> tuple[Trajectory, ...]:
    """Rollouts whose calls are free, held to a schema, forced to call tools, and go on from one another."""
    batch = []
    options: list[dict[str, Any]] = [{}, *KINDS.values()]
    for r in range(4):
        messages, transitions = user("hello"), []
        for turn, asked in enumerate(options):
            request = ChatRequest(messages, max_tokens=24, temperature=temperature, **asked)
            sampling: dict[str, Any] = {"temperature": temperature, "trained": True}
            sampling |= CUTS[r % len(CUTS)] if backend.upstream.replays_cuts else {}
            reply = await ask(backend, messages, max_tokens=24, **sampling, **asked)
            held = write_masks(reply.kept) if reply.kept else backend.upstream.grammars.write(request)
            transitions.append(
                as_transition(
                    reply, f"r{r}", f"c{turn}", advantage=1.0 - 2 * (r % 2), temperature=temperature,
                    grammar=held,
                )
            )  # fmt: skip
            messages = [*messages, {"role": "assistant", "content": reply.text}, *user("go on")]
        batch.append(Trajectory(f"r{r}", "g", "t", 0.0, tuple(transitions)))
    return tuple(batch)


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=4)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("logits_bytes", [1 << 26, 1 << 14])
async def test_at_the_first_pass_every_ratio_is_one(
    qwen: Path,
    lora: LoraOptions | None,
    temperature: float,
    sharing: bool,
    logits_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lightning_core.backends.local.packing.LOGITS_BYTES", logits_bytes)
    async with serving(qwen, lora=lora, merge=sharing) as backend:
        batch = await sample(backend, temperature)
        metrics = await backend.update(Batch(0, batch), GRPO(kl=0.1))
        assert metrics["logprob_gap_max"] < 1e-4
        assert metrics["kl_reference"] == pytest.approx(0.0, abs=1e-6)


def prepare(folder: Path, **options: Any) -> tuple[Policy, Optimizer]:
    policy = Policy(load_model(folder, device="cpu"), None)
    return policy, Optimizer(policy, TrainingSettings(**options), source=str(folder))


def gradients(policy: Policy) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in policy.parameters if p.grad is not None])


async def test_merging_changes_no_gradient_under_masks(qwen: Path) -> None:
    async with serving(qwen) as backend:
        batch = await sample(backend)
    policy, optimizer = prepare(qwen)
    algorithm, found = GRPO(), []
    for merge, size in ((True, 100_000), (True, 200), (False, 100_000)):
        packs = make_packs(batch, algorithm.weigh(batch), pack_tokens=size, merge=merge)
        optimizer.accumulate(packs, algorithm)
        found.append(gradients(policy).clone())
    assert float(found[0].norm()) > 1e-3
    for other in found[1:]:
        assert float((other - found[0]).norm() / found[0].norm()) < 1e-5


async def test_the_gradient_is_that_of_a_plain_masked_softmax(qwen: Path) -> None:
    """Against transformers' own forward pass, masked call by call."""
    async with serving(qwen) as backend:
        batch = await sample(backend)
        grammars = backend.upstream.grammars
    policy, optimizer = prepare(qwen)
    algorithm = GRPO(entropy=0, correction=None, clip=(1.0, 100.0))
    weights = algorithm.weigh(batch)
    optimizer.accumulate(make_packs(batch, weights, pack_tokens=4096), algorithm)
    network, total = AutoModelForCausalLM.from_pretrained(qwen, dtype=torch.float32).eval(), torch.zeros(())
    for t in (t for each in batch for t in each.transitions):
        logits = network(torch.tensor([[*t.prompt_ids, *t.completion_ids]])).logits[0]
        logits = logits[len(t.prompt_ids) - 1 : -1]
        if t.grammar is not None:
            words = grammars.replay(t.grammar, t.completion_ids, "here")
            bits = [[bool(w[i // 32] >> (i % 32) & 1) for i in range(logits.shape[1])] for w in words]
            logits = logits.masked_fill(~torch.tensor(bits), -1e9)
        own = logits.log_softmax(-1)[
            torch.arange(len(t.completion_ids)), torch.tensor(list(t.completion_ids))
        ]
        ratio = torch.exp(own - torch.tensor(list(t.logprobs)))
        total = total - (weights[t.key] * (t.advantage or 0.0) * ratio).sum()
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
    assert float((gradients(policy) - expected).norm() / expected.norm()) < 1e-4


async def test_a_reply_whose_record_of_what_was_left_does_not_fit_is_refused_by_name(qwen: Path) -> None:
    async with serving(qwen) as backend:
        reply = await ask(backend, "hello", max_tokens=4, top_p=0.5, trained=True)
    good, (_, optimizer) = write_masks(reply.kept), prepare(qwen)
    for held, words in (
        (write_masks(reply.kept[:-1]), "are not those that its record says were left"),
        (write_masks([reply.kept[-1], *reply.kept[:-1]]), "are not those that its record says were left"),
        (good[:-8], "is broken"),
        ("kept:" + "AAAA", "is broken"),
    ):
        t = as_transition(reply, "r7", "c9", advantage=1.0, grammar=held)
        with pytest.raises(TrainingError, match=f"'c9' of 'r7'.*{words}"):
            optimizer.update((Trajectory("r7", "g", "t", 0.0, (t,)),), GRPO())


async def test_tokens_that_the_grammar_forced_carry_no_gradient(qwen: Path) -> None:
    async with serving(qwen) as backend:
        only = Constraint(choice=("there is one thing to say",))
        reply = await ask(backend, "hello", max_tokens=50, constraint=only, temperature=0.5)
        grammar = backend.upstream.grammars.write(ChatRequest([], constraint=only))
    assert reply.text == "there is one thing to say"
    assert reply.logprobs == [0.0] * len(reply.ids)
    t = as_transition(reply, "r", "c", advantage=1.0, temperature=0.5, grammar=grammar)
    policy, optimizer = prepare(qwen)
    optimizer.accumulate(
        make_packs([Trajectory("r", "g", "t", 0.0, (t,))], {t.key: 1.0}, pack_tokens=99), GRPO()
    )
    assert float(gradients(policy).abs().max()) == 0.0


def test_a_reply_that_does_not_follow_its_grammar_is_refused_by_name(qwen: Path) -> None:
    _, optimizer = prepare(qwen)
    t = Transition(
        "r7", "c9", 0, "a", True, [5, 6], [7, 8], [-1.0, -1.0], 0, advantage=1.0, grammar='start: "x"'
    )
    with pytest.raises(TrainingError, match=r"'c9' of 'r7'.*token 0"):
        optimizer.update((Trajectory("r7", "g", "t", 0.0, (t,)),), GRPO())


# every schema ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """Returns the tokenizer of the model that the package ships."""
    return load_tokenizer(str(tiny_folder()))


@pytest.fixture(scope="module")
def grammars(tokenizer: PreTrainedTokenizerBase) -> Grammars:
    return Grammars(tokenizer, len(tokenizer))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS, st.randoms(use_true_random=False))
def test_a_walk_through_any_small_schema_ends_in_what_validates(
    tokenizer: PreTrainedTokenizerBase, grammars: Grammars, schema: dict[str, Any], draw: random.Random
) -> None:
    value = walk(grammars, tokenizer, schema, draw)
    if value is not UNFINISHED:
        Draft202012Validator(schema).validate(value)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SCHEMAS, min_size=8, max_size=8))
def test_the_tiny_model_answers_any_small_schema_with_what_validates(schemas: list[dict[str, Any]]) -> None:
    async def answers() -> list[Reply]:
        async with serving(tiny_folder()) as backend:
            return await asyncio.gather(
                *(ask(backend, "hello", max_tokens=150, constraint=Constraint(schema=s)) for s in schemas)
            )

    for schema, reply in zip(schemas, asyncio.run(answers()), strict=True):
        if reply.finish_reason == "stop":
            Draft202012Validator(schema).validate(json.loads(reply.text))


class Bill(BaseModel):
    """Types whose schemas only pydantic writes so, and fields named as annotations are."""

    title: Decimal
    default: Path
    examples: SecretStr
    stamp: bytes
    pattern: re.Pattern[str]
    number: UUID4
    description: bool = Field(description="whether it ends with <|im_end|>")


@pytest.mark.parametrize(
    ("total", "more", "fits"),
    [
        ('"-1.50"', "", True),
        ("2", "", True),
        ('"-."', "", False),
        ('"1a"', "", False),
        ("2", ', "extra": 1', False),
    ],
)
def test_a_reply_is_held_to_the_schema_of_pydantics_own_types(
    tokenizer: PreTrainedTokenizerBase, grammars: Grammars, total: str, more: str, fits: bool
) -> None:
    number = "12345678-1234-4234-9234-1234567890ab"
    fits = fits or (not more and "(?!" not in str(Bill.model_json_schema()))  # pydantic 2.14 takes any text
    schema = {**Bill.model_json_schema(), "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "pay", "parameters": schema}}
    bill = f'{{"title": {total}, "default": "a/b", "examples": "c", "stamp": "d", '
    bill += f'"pattern": "[a-z]", "number": "{number}", "description": true{more}}}'
    call = f'<tool_call>\n{{"name": "pay", "arguments": {bill}}}\n</tool_call>'
    for text, constraint in ((bill, Constraint(schema=schema)), (call, Constraint(tools=("pay",)))):
        grammar = grammars.write(ChatRequest([], tools=[tool], constraint=constraint))
        assert grammar is not None
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        with nullcontext() if fits else pytest.raises(TrainingError, match="does not follow its grammar"):
            assert len(grammars.replay(grammar, ids, "here")) == len(ids)


NEXT = {"type": "object", "properties": {"next": {"enum": ["coder", "end"]}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("schema", "others"),
    [
        (NEXT, False),  # as LangChain writes a TypedDict
        ({"anyOf": [{"$ref": "#/$defs/next"}], "$defs": {"next": NEXT}}, False),
        ({**NEXT, "additionalProperties": True}, True),
        ({"allOf": [NEXT, {"properties": {"why": {"type": "string"}}}]}, True),
        ({"type": "object"}, True),
        ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": True}, True),  # zod
    ],
)
def test_an_object_holds_the_properties_that_its_schema_names_and_no_others(
    tokenizer: PreTrainedTokenizerBase, grammars: Grammars, schema: dict[str, Any], others: bool
) -> None:
    grammar = grammars.write(ChatRequest([], constraint=Constraint(schema=schema)))
    assert grammar is not None
    for text, fits in (('{"next": "end"}', True), ('{"next": "end", "why": "x"}', others)):
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        with nullcontext() if fits else pytest.raises(TrainingError, match="does not follow its grammar"):
            assert len(grammars.replay(grammar, ids, "here")) == len(ids)


# through the gateway --------------------------------------------------------------------------
FORMAT = {"name": "person", "schema": PERSON, "strict": True}
FUNCTION = ADD["function"]
SENT: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "messages": user("hello"),
            "response_format": {"type": "json_schema", "json_schema": FORMAT},
            "max_tokens": 99,
            "n": 2,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": user("hello"),
            "tools": [ADD, STOP],
            "tool_choice": "required",
            "max_tokens": 120,
            "stream": True,
        },
    ),
    (
        "/v1/responses",
        {
            "input": "hello",
            "text": {"format": {"type": "json_schema", **FORMAT}},
            "max_output_tokens": 99,
            "temperature": 0.8,
        },
    ),
    (
        "/v1/messages",
        {
            "messages": user("hello"),
            "max_tokens": 120,
            "tools": [{"name": "add", "input_schema": FUNCTION["parameters"]}],
            "tool_choice": {"type": "tool", "name": "add"},
        },
    ),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 99, "structured_outputs": {"regex": "[ab]{2,9}"}}),
    ("/v1/chat/completions", {"messages": user("hello"), "max_tokens": 9}),
]


async def test_what_apps_ask_for_is_recorded_and_trained_under_its_masks(qwen: Path) -> None:
    async with serving(qwen) as backend, gateway(backend) as (web, store):
        for path, body in SENT:
            reply = await web.post(path, json={"model": "m", **body})
            assert reply.status_code == 200, reply.text
        calls = (await store.get_calls(["r1"]))["r1"]
        assert [call.grammar is not None for call in calls] == [True] * 5 + [False]
        person, tools, _, named, *_ = calls
        for choice in person.choices:
            if choice.finish_reason == "stop":
                Draft202012Validator(PERSON).validate(json.loads(str(choice.message["content"])))
        for call in (tools, named):
            assert call.choices[0].message.get("tool_calls") or call.choices[0].finish_reason == "length"
        rollout = Rollout(
            id="r1",
            run_id="run",
            task=Task(input={"q": 1}),
            group_id="g",
            step=0,
            sampling=Sampling(),
            reward=1.0,
        )
        trajectory = to_trajectory(rollout, calls, [])
        praised = replace(
            trajectory, transitions=tuple(replace(t, advantage=1.0) for t in trajectory.transitions)
        )
        metrics = await backend.update(Batch(0, (praised,)), GRPO())
        assert metrics["logprob_gap_max"] < 1e-4
        refused = await web.post(
            "/v1/chat/completions",
            json={
                "model": "m",
                "messages": user("hello"),
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}},
                },
            },
        )
        assert refused.status_code == 400
        assert "uniqueItems" in refused.text
