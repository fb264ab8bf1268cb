"""No request disturbs another: what one asks for is refused, or ends that one alone."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from lightning_core.backends.local import LocalBackend
from lightning_core.backends.serving.encoding import Encoder
from lightning_core.backends.serving.prompts import LONG
from lightning_core.errors import UnsupportedError
from lightning_core.records.types import Call, Demonstration, Sampling
from lightning_core.stores.sqlite import MemoryStore
from tests.backends.models import TEMPLATE, make_network, make_tokenizer
from tests.backends.serving import ask, gateway, plain_logprobs, serving, user
from tests.backends.test_engine import load_plain

CHAT, MESSAGES, RESPONSES, RAW = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"
TRAINED = {"x-lightning-agent": "trained"}
LOOPS = "{% for i in range(90) %}{% for j in range(90) %}{% endfor %}{% endfor %}"


@dataclass
class Place:
    """A gateway with a small model behind it. What is not said to be the trained agent's call is sampled as
    the request says."""

    backend: LocalBackend
    web: httpx.AsyncClient
    store: MemoryStore

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.web.post(path, json=body)

    async def chat(self, text: str = "the fox", **body: Any) -> httpx.Response:
        return await self.post(CHAT, messages=user(text), **body)

    async def calls(self) -> list[Call]:
        return (await self.store.get_calls(["r1"]))["r1"]

    @asynccontextmanager
    async def bystanders(self, count: int = 8, tokens: int = 200) -> AsyncIterator[None]:
        """Replies that stream when the body begins, and that are whole when it has ended."""
        streams = [Stream() for _ in range(count)]
        async with asyncio.TaskGroup() as group:
            for index, stream in enumerate(streams):
                group.create_task(stream.read(self.web, f"dog {index}", tokens))
            for stream in streams:
                await stream.begun.wait()
            yield
        for stream in streams:
            assert stream.status == 200
            assert stream.lines[-1] == "data: [DONE]"
            assert not [line for line in stream.lines if '"error"' in line]


class Stream:
    """A streamed reply."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.lines: list[str] = []
        self.status = 0

    async def read(self, web: httpx.AsyncClient, text: str, tokens: int) -> None:
        body = {"messages": user(text), "max_tokens": tokens, "stream": True}
        try:
            async with web.stream("POST", CHAT, json=body, headers=TRAINED) as reply:
                self.status = reply.status_code
                async for line in reply.aiter_lines():
                    if line:
                        self.lines.append(line)
                        self.begun.set()
        finally:
            self.begun.set()


@asynccontextmanager
async def open_place(
    folder: Path, *, sampling: Sampling | None = None, **options: Any
) -> AsyncIterator[Place]:
    async with (
        serving(folder, **options) as backend,
        gateway(backend, agents=("trained",), sampling=sampling) as (web, store),
    ):
        yield Place(backend, web, store)


def save(
    folder: Path, tokenizer: PreTrainedTokenizerBase, *, vocabulary: int = 0, positions: int = 512
) -> Path:
    """A model for this tokenizer."""
    make_network("qwen3", vocabulary or len(tokenizer), max_position_embeddings=positions).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
async def place(qwen: Path) -> AsyncIterator[Place]:
    async with open_place(qwen) as place:
        yield place


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template reads arguments, sets a variable and marks what it generates."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{%- if not date_string is defined %}{%- set date_string = 'today' %}{%- endif %}"
        "{%- set ns = namespace(last=0) %}{{ bos_token }}{{ strftime_now('') }}{{ date_string }}"
        "{%- if documents %}{{ documents }}{%- endif %}{% generation %}{% endgeneration %}"
        + TEMPLATE
        + "{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
        + "<think>no</think>{%- endif %}"
    )
    return save(tmp_path_factory.mktemp("thinking") / "model", tokenizer)


def bodies(**fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """A request with these fields in each dialect that has a template."""
    return [
        (CHAT, {"messages": user("hi"), "max_tokens": 2, **fields}),
        (MESSAGES, {"messages": user("hi"), "max_tokens": 2, **fields}),
        (RESPONSES, {"input": "hi", "max_output_tokens": 2, **fields}),
    ]


@pytest.mark.parametrize("template", [LOOPS, "{{ 'a' * 3 }}", "{{ 1 // 0 }}", "default"])
async def test_a_request_can_not_bring_a_template_in_any_dialect(place: Place, template: str) -> None:
    async with place.bystanders():
        for path, body in bodies(chat_template_kwargs={"chat_template": template}):
            reply = await place.post(path, **body)
            assert reply.status_code == 400, reply.text
            assert "'chat_template'" in reply.json()["error"]["message"]


async def test_no_parameter_of_the_renderer_can_be_given_and_the_error_tells_what_can(thinking: Path) -> None:
    parameters = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    supplied = (
        "messages",
        "conversations",
        "bos_token",
        "namespace",
        "strftime_now",
        "raise_exception",
        "ns",
    )
    async with open_place(thinking) as place:
        for name in (*parameters, *supplied):
            reply = await place.chat(max_tokens=2, chat_template_kwargs={name: True})
            message = reply.json()["error"]["message"]
            assert reply.status_code == 400
            assert f"no argument {name!r}" in message
            assert "it takes date_string, enable_thinking;" in message


async def test_arguments_that_the_models_own_template_reads_reach_it(thinking: Path) -> None:
    async with open_place(thinking) as place:
        given: list[dict[str, Any]] = [{}, {"enable_thinking": False}, {"date_string": "1 May"}]
        for arguments in given:
            assert (await place.chat(max_tokens=2, chat_template_kwargs=arguments)).status_code == 200
        calls = sorted(await place.calls(), key=lambda call: call.started_at)
        texts = [make_tokenizer().decode(call.prompt_ids) for call in calls]
        assert [text.endswith("<think>no</think>") for text in texts] == [False, True, False]
        assert ["1 May" in text for text in texts] == [False, False, True]
        large = await place.chat(max_tokens=2, chat_template_kwargs={"date_string": "x" * 100_000})
        assert large.status_code == 400
        assert "65536" in large.json()["error"]["message"]


async def test_a_demonstration_can_not_bring_a_template_either(thinking: Path) -> None:
    async with serving(thinking) as backend:
        row = Demonstration(messages=user("hi"), reply="yes", template={"date_string": "1 May"})
        assert "1 May" in make_tokenizer().decode(backend.encode(row)[0])
        for name in ("chat_template", "documents", "tokenize"):
            with pytest.raises(UnsupportedError, match=f"no argument '{name}'"):
                backend.encode(row.model_copy(update={"template": {name: "x"}}))


@pytest.mark.parametrize(
    "fields",
    [
        *({"temperature": t} for t in (1e-38, 1e-40, 1e-46, 5e-324, 1e-6, 0, 2)),
        *({"top_p": p} for p in (1e-50, 5e-324, 1e-8, 0.999999999)),
        {"temperature": 1e-40, "top_p": 1e-50},
        {"top_k": 2**62},
        {"min_p": 1.0},
        {"repetition_penalty": 0.01, "presence_penalty": -2},
        {"repetition_penalty": 100, "logit_bias": {"7": -100}},
        {"n": 128, "temperature": 1e-45},
        {"logprobs": True, "top_logprobs": 20, "temperature": 1e-46},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"stop": ["x"] * 64},
        {"max_tokens": 1},
    ],
    ids=lambda fields: repr(fields)[:40],
)
async def test_no_sampling_setting_disturbs_the_others_of_the_batch(
    place: Place, fields: dict[str, Any]
) -> None:
    async with place.bystanders():
        replies = [await place.chat(f"fox {i}", **{"max_tokens": 5, **fields}) for i in range(3)]
        assert [reply.status_code for reply in replies] == [200] * 3, replies[0].text


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"stop": ["x"] * 65},
        {"stop": "x" * 257},
        {"logprobs": True, "top_logprobs": 10_000},
        {"temperature": 1e300},
        {"top_p": 0.0},
    ],
    ids=lambda fields: repr(fields)[:40],
)
async def test_a_setting_out_of_bounds_is_refused(place: Place, fields: dict[str, Any]) -> None:
    async with place.bystanders():
        assert (await place.chat(**fields)).status_code == 400


async def test_a_temperature_too_low_to_sample_at_is_greedy_and_is_recorded_so(qwen: Path) -> None:
    network = load_plain(qwen)
    async with open_place(qwen) as place:
        for temperature in (0.0, 1e-40, 0.009):
            assert (await place.chat(max_tokens=12, temperature=temperature)).status_code == 200
        greedy, *cold = sorted(await place.calls(), key=lambda call: call.started_at)
        for call in cold:
            assert call.temperature == 0.0
            assert call.choices[0].completion_ids == greedy.choices[0].completion_ids
            assert call.choices[0].completion_ids is not None
            wanted = plain_logprobs(network, call.prompt_ids, call.choices[0].completion_ids)
            assert call.choices[0].logprobs == pytest.approx(wanted, abs=1e-4)


async def test_settings_that_a_rollout_imposes_disturb_nobody_either(qwen: Path) -> None:
    async with open_place(qwen, sampling=Sampling(temperature=1e-45, top_p=1e-50)) as place:
        async with place.bystanders():
            assert (await place.chat(max_tokens=5)).status_code == 200
        assert {call.temperature for call in await place.calls()} == {0.0, 1.0}
    with pytest.raises(ValidationError, match="finite"):
        Sampling(temperature=float("inf"))


async def test_the_smallest_nucleus_is_the_most_probable_token(place: Place) -> None:
    greedy = await ask(place.backend, "fox", max_tokens=12, temperature=0.0)
    for top_p in (1e-50, 1e-8):
        assert (await ask(place.backend, "fox", max_tokens=12, top_p=top_p)).ids == greedy.ids


async def test_a_prompt_of_tokens_that_the_model_does_not_have_ends_alone(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    vocabulary = len(tokenizer)
    tokenizer.add_tokens(["<beyond>"])
    async with open_place(save(tmp_path / "model", tokenizer, vocabulary=vocabulary)) as place:
        async with place.bystanders():
            raw = [await place.post(RAW, prompt=p) for p in ("<beyond>", [vocabulary], [-1], [2**60])]
            replies = [await place.chat("a <beyond>"), *raw]
        for reply in replies:
            assert reply.status_code == 400
            assert f"go from 0 to {vocabulary - 1}" in reply.json()["error"]["message"]


async def test_a_prompt_without_a_token_is_refused(tmp_path: Path) -> None:
    from tokenizers import normalizers

    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Strip()
    async with open_place(save(tmp_path / "model", tokenizer)) as place:
        async with place.bystanders():
            reply = await place.post(RAW, prompt="   ")
        assert reply.status_code == 400
        assert "has no tokens" in reply.json()["error"]["message"]


async def test_prompts_at_the_edge_of_the_context_disturb_nobody(place: Place) -> None:
    async with place.bystanders():
        for length, status in ((511, 200), (512, 400), (513, 400), (100_000, 400)):
            reply = await place.post(RAW, prompt=[9] * length, max_tokens=1)
            assert reply.status_code == status
            assert status == 200 or reply.json()["error"]["code"] == "context_length_exceeded"


async def test_text_that_can_not_fit_the_context_is_refused_and_disturbs_nobody(place: Place) -> None:
    async with place.bystanders(1):
        for text in ("lazy dog " * 400_000, "7" * 10_000, " " * 20_000, "ü" * 10_000):
            for path, body in ((CHAT, {"messages": user(text)}), (RAW, {"prompt": text})):
                reply = await place.post(path, **body)
                assert reply.json()["error"]["code"] == "context_length_exceeded"
        many = await place.post(CHAT, messages=user("") * 20_000)
        assert many.json()["error"]["code"] == "context_length_exceeded"


async def test_replies_stream_and_short_prompts_are_answered_while_long_ones_are_encoded(
    tmp_path: Path,
) -> None:
    words = "the quick brown fox jumps " * 60_000
    folder = save(tmp_path / "model", make_tokenizer(), positions=262_144)
    async with open_place(folder, context=262_144, dtype="float32") as place:
        assert len(words) > LONG
        long = [asyncio.create_task(place.chat(words + str(i))) for i in range(2)]
        async with place.bystanders(2, tokens=20):
            for i in range(4):
                assert (await place.chat(f"fox {i}", max_tokens=4)).status_code == 200
        assert not any(task.done() for task in long)
        for reply in await asyncio.gather(*long):
            assert reply.json()["error"]["code"] == "context_length_exceeded"


async def test_a_conversation_that_goes_on_has_only_its_new_messages_encoded(place: Place) -> None:
    encoder: Encoder = place.backend.upstream.prompts.encoder
    messages: list[dict[str, Any]] = user("the lazy dog")
    written = 0
    for turn in range(10):
        reply = await place.post(CHAT, messages=messages, max_tokens=8, seed=turn)
        said = reply.json()["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": said}, *user(f"and what then, in turn {turn}?")]
        written = len("".join(str(message["content"]) for message in messages)) + 30 * len(messages)
    assert 0 < encoder.encoded <= written
    calls = sorted(await place.calls(), key=lambda call: call.started_at)
    tokenizer = AutoTokenizer.from_pretrained(place.backend.model)
    plain = tokenizer.apply_chat_template(messages[:-2], add_generation_prompt=True, return_dict=False)
    assert calls[-1].prompt_ids == plain
