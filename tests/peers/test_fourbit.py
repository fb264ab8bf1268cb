"""Frozen weights in 4 bits and AdamW's moments in 8: by their papers, and in every copy of a policy."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("bitsandbytes", reason="bitsandbytes lies in an environment of its own: make peers")

import torch
from transformers import AutoModelForCausalLM

from lightning_core.algorithms.policy_gradient import GRPO, PPO
from lightning_core.backends.base import Batch
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.local.decoder import LlamaDecoder, NetworkDecoder, StateDecoder
from lightning_core.backends.local.optimizer import Descent
from lightning_core.backends.settings import LoraOptions, PolicyOptions, TrainingSettings
from lightning_core.backends.weights.fourbit import FourBitLinear, pack, plain_weights, round_weights, unpack
from lightning_core.backends.weights.model import parameter_count, read_model
from lightning_core.backends.weights.sizes import measure
from lightning_core.errors import ConfigError, ModelError
from research.families import random_network, small_config
from tests.backends.models import make_network, make_tokenizer, save_model
from tests.backends.serving import ask, plain_logprobs, sample_batch, serving
from tests.backends.test_critic import with_targets
from tests.backends.test_versions import greedy

LORA = LoraOptions(rank=4, load_in_4bit=True)
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip
"""The 16 numbers of arXiv 2305.14314, appendix E."""


def test_a_weight_is_the_nearest_of_the_papers_numbers_in_its_block() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(192, 40)
    blocks = plain.weight.detach().reshape(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    codes = torch.tensor(NF4)
    nearest = ((blocks / scale)[..., None] - codes).abs().argmin(-1)
    wanted = (codes[nearest] * scale).reshape(40, 192)
    layer = FourBitLinear(plain)
    assert torch.allclose(layer.plain_weight(), wanted, atol=1e-7)
    assert layer.weight.numel() == 192 * 40 // 2
    inputs = torch.randn(5, 192, requires_grad=True)
    outputs = layer(inputs)
    assert torch.allclose(outputs, inputs @ wanted.T + plain.bias, atol=1e-5)
    outputs.square().sum().backward()
    assert inputs.grad is not None
    assert torch.allclose(inputs.grad, 2 * outputs.detach() @ wanted, atol=1e-4)


def test_what_was_rounded_is_rounded_to_itself_and_counts_as_many_parameters() -> None:
    packed, rounded = make_network("qwen3", 300), make_network("qwen3", 300)
    count = parameter_count(packed)
    round_weights(rounded)
    pack(packed)
    assert parameter_count(packed) == count
    weights = dict(plain_weights(packed))
    for name, weight in rounded.state_dict().items():
        assert torch.equal(weights[name], weight), name
    round_weights(rounded)
    unpack(packed)
    for name, weight in rounded.state_dict().items():
        assert torch.equal(packed.state_dict()[name], weight), name


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small products gain nothing from more threads."""
    torch.set_num_threads(1)


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    """A folder with a random Qwen3-architecture model."""
    return make_folder(tmp_path / "model", "qwen3")


def make_folder(folder: Path, family: str) -> Path:
    """A small random model of a family, as an ordinary transformers folder."""
    if family != "gemma3_text":
        return save_model(folder, family, **({"scale": 4.0} if family == "qwen3_5_text" else {}))
    config, tokenizer = small_config(family), make_tokenizer()
    config.vocab_size = len(tokenizer)
    random_network(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("family", "decoder"),
    [("qwen3", LlamaDecoder), ("gemma3_text", NetworkDecoder), ("qwen3_5_text", StateDecoder)],
)
async def test_every_copy_of_the_policy_is_the_rounded_model(
    family: str, decoder: type, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "model", family)
    async with serving(folder, lora=LORA, learning_rate=1e-2, warmup_steps=0) as backend:
        assert isinstance(backend.sampler._decoder, decoder)
        policy = backend._started.policy
        packed = {n: p.clone() for n, p in policy.network.named_parameters() if p.dtype == torch.uint8}
        assert packed
        metrics = await backend.update(Batch(0, await sample_batch(backend)), GRPO(kl=0.1))
        assert metrics["logprob_gap_max"] < 1e-4
        assert metrics["kl_reference"] == pytest.approx(0.0, abs=1e-6)
        await backend.publish()
        again = await backend.update(Batch(1, await sample_batch(backend)), GRPO())
        assert again["logprob_gap_max"] < 1e-4
        assert all(torch.equal(p, packed[n]) for n, p in policy.network.named_parameters() if n in packed)
        await backend.publish()
        reply = await ask(backend, "hello", max_tokens=8, temperature=0.0)
        await backend.export(tmp_path / "policy")
        await backend.save(tmp_path / "checkpoint")
        await backend.export_version(str(tmp_path / "checkpoint"), tmp_path / "version")
        opened = await backend.open_engine(str(tmp_path / "checkpoint"), 2)
        try:
            _, ids, logprobs, _ = await greedy(opened)
        finally:
            await opened.close()
    shared = min(len(ids), len(reply.ids))
    assert ids[:shared] == reply.ids[:shared]
    assert logprobs[:shared] == pytest.approx(reply.logprobs[:shared], abs=1e-4)
    for exported in ("policy", "version"):
        network = AutoModelForCausalLM.from_pretrained(tmp_path / exported, dtype=torch.float32).eval()
        wanted = plain_logprobs(network, reply.prompt_ids, reply.ids)
        assert reply.logprobs == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("options", [{"lora": LORA}, {"optimizer": "adamw_8bit"}])
async def test_going_on_from_a_checkpoint_equals_never_having_stopped(
    qwen: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    async with serving(qwen, learning_rate=1e-2, **options) as backend:
        batch = with_targets(await sample_batch(backend))
        for step in range(2):
            await backend.update(Batch(step, batch), PPO())
            await backend.publish()
        await backend.save(tmp_path / "checkpoint")
        second = with_targets(await sample_batch(backend))
        metrics = await backend.update(Batch(2, second), PPO())
        weights = {n: w.clone() for n, w in backend._started.policy.network.state_dict().items()}
    async with serving(qwen, learning_rate=1e-2, seed=99, **options) as backend:
        await backend.load(tmp_path / "checkpoint")
        again = await backend.update(Batch(2, second), PPO())
        for name in ("loss", "grad_norm", "value_loss"):
            assert again[name] == metrics[name], name
        for name, weight in backend._started.policy.network.state_dict().items():
            assert torch.equal(weight, weights[name]), name


@pytest.mark.parametrize("alike", [True, False])
async def test_policies_share_packed_weights_where_both_pack_them(qwen: Path, alike: bool) -> None:
    async with serving(qwen, lora=LORA, learning_rate=1e-2) as backend:
        other = backend.another(PolicyOptions("b", lora=replace(LORA, load_in_4bit=alike)))
        await other.start()
        try:
            own, theirs = backend._started.policy.base, other._started.policy.base
            shared = {
                a.weight.data_ptr() == b.weight.data_ptr()
                for a, b in zip(own.modules(), theirs.modules(), strict=True)
                if isinstance(a, FourBitLinear)
            }
            assert shared == {alike}
            metrics = await other.update(Batch(0, await sample_batch(other)), GRPO())
            assert metrics["logprob_gap_max"] < 1e-4
        finally:
            await other.close()


async def test_a_checkpoint_of_weights_in_4_bits_is_not_gone_on_from_in_32(
    qwen: Path, tmp_path: Path
) -> None:
    async with serving(qwen, lora=LORA) as backend:
        await backend.save(tmp_path / "checkpoint")
    async with serving(qwen, lora=replace(LORA, load_in_4bit=False)) as backend:
        with pytest.raises(ModelError, match="load_in_4bit is True, that of this run is False"):
            await backend.load(tmp_path / "checkpoint")


def test_a_step_in_8_bits_is_near_one_in_32() -> None:
    torch.manual_seed(0)
    starts = torch.randn(128, 96)
    parameters = [torch.nn.Parameter(starts.clone()) for _ in range(2)]
    kinds = ("adamw", "adamw_8bit")
    descents = [
        Descent([p], TrainingSettings(warmup_steps=0), adamw=kind)
        for p, kind in zip(parameters, kinds, strict=True)
    ]
    for _ in range(20):
        gradient = torch.randn_like(starts) + 0.5
        for parameter, descent in zip(parameters, descents, strict=True):
            parameter.grad = gradient.clone()
            descent.step(1e-3)
    moved = [p.detach() - starts for p in parameters]
    assert float((moved[0] - moved[1]).norm() / moved[0].norm()) < 0.05
    sizes = [sum(m.nbytes for n, m in d.moments().items() if "qmap" not in n) for d in descents]
    assert sizes[1] / sizes[0] == pytest.approx(2 * (1 + 4 / 256) / 8, rel=0.01)


def test_the_plan_counts_what_is_held(qwen: Path) -> None:
    network, size = read_model(qwen).network, measure(qwen, None)
    pack(network)
    held = [*network.parameters(), *(m.absmax for m in network.modules() if isinstance(m, FourBitLinear))]
    assert size.weight_bytes(LORA) == sum(each.nbytes for each in held)
    assert size.weight_bytes(replace(LORA, load_in_4bit=False)) == 4 * size.parameters


def test_what_cannot_be_is_refused(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="optimizer='sgd' is not one of adamw, adamw_8bit"):
        LocalBackend(qwen, optimizer="sgd")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="load_in_4bit"):
        LoraOptions(load_in_4bit=4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"GPT2LMHeadModel has no layer of torch\.nn\.Linear"):
        pack(make_network("gpt2", 300))
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"pip install 'agent-lightning-core\[bitsandbytes\]'"):
        pack(make_network("qwen3", 300))
