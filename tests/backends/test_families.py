"""Attention in all its forms: the engine's and the trainer's log-probabilities are the plain network's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lightning_core.backends.local import exactness
from lightning_core.backends.local.attention import survey
from lightning_core.backends.local.decoder import LlamaDecoder, NetworkDecoder, make_decoder
from lightning_core.backends.local.exactness import Exactness, narrowed, plain_attention, plain_logprobs
from lightning_core.backends.local.model import make_ready
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.packing import TreePlan, make_plan, recompute_layers
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.local.tuning import kv_shape
from lightning_core.backends.settings import TrainingSettings
from lightning_core.backends.weights.model import Model
from lightning_core.backends.weights.sources import load_tokenizer, tiny_folder
from lightning_core.errors import ModelError
from lightning_core.experience.trajectories import make_packs
from lightning_core.records.types import Trajectory, Transition
from research.families import (
    CONTEXT,
    DOCS,
    STATUSES,
    family_names,
    insert,
    judge,
    random_network,
    read_record,
    small_config,
    verdict,
)
from tests.backends.test_update import Reinforce

FORMS = {
    "mistral": "a window in each layer",
    "gemma2": "softcap, and a window in every second layer",
    "gemma3_text": "a window and other angles in most layers",
    "gpt_oss": "sinks",
    "gemma3n_text": "layers that share keys and values",
    "llama4_text": "chunks",
    "deepseek_v3": "value heads of another size",
    "diffllama": "two calls of attention in each layer",
    "opt": "learned positions",
}


def ready(family: str, **config: Any) -> PreTrainedModel:
    """A small random network that takes its attention from plans."""
    made = small_config(family)
    for name, value in config.items():
        setattr(made, name, value)
    network = random_network(made)
    make_ready(network, torch.device("cpu"))
    return network


def model_of(network: PreTrainedModel) -> Model:
    return Model("random", network, load_tokenizer(str(tiny_folder())), CONTEXT, frozenset())


@pytest.mark.parametrize("family", FORMS)
def test_a_form_of_attention_is_served_and_trained_exactly(family: str) -> None:
    found = verdict(family)
    assert found.status == "exact and fast", found.reason


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "gemma3n_text", "deepseek_v3"])
def test_the_gradient_of_a_packed_pass_is_that_of_plain_passes(family: str) -> None:
    network = ready(family)
    policy = Policy(model_of(network), None)
    optimizer = Optimizer(policy, TrainingSettings(), source="")
    first = list(range(5, 45))
    sequences = [first, first[:20] + list(range(60, 85)), list(range(100, 131))]
    batch = tuple(
        Transition(
            "r", str(i), 0, "a", True, ids[:7], ids[7:], [-1.0] * len(ids[7:]), 0, advantage=1.0 - 0.7 * i
        )
        for i, ids in enumerate(sequences)
    )
    trajectories = (Trajectory("r", "g", "t", 0.0, batch),)
    algorithm = Reinforce()
    packs = make_packs(trajectories, algorithm.weigh(trajectories), pack_tokens=512)
    assert sum(len(pack.tokens) for pack in packs) < sum(map(len, sequences))
    optimizer.accumulate(packs, algorithm)
    packed = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    with plain_attention(network):
        for t in batch:
            tokens = torch.tensor([[*t.prompt_ids, *t.completion_ids]])
            logits = network(input_ids=tokens, use_cache=False).logits[0, 6:-1].log_softmax(-1)
            chosen = logits.gather(-1, tokens[0, 7:, None]).sum()
            torch.autograd.backward(-chosen * t.advantage * algorithm.weigh(trajectories)[t.key])
    plain = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    assert packed.keys() == plain.keys()
    for name, wanted in plain.items():
        assert torch.allclose(packed[name], wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max())), name


@pytest.mark.parametrize("family", ["opt", "xglm"])
def test_layers_with_dropout_that_are_computed_again_are_trained_without_it(family: str) -> None:
    network = ready(family).requires_grad_(True)
    assert network.config.dropout > 0
    tokens = torch.arange(5, 45)
    plan, passes = make_plan(network, torch.full_like(tokens, len(tokens))), []
    for on in (False, True):
        recompute_layers(network, on)
        network.zero_grad()
        logits = plan.logits(network, tokens, tokens - 5, tokens - 5)
        logits.logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]
        gradient = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        passes.append((logits.detach(), gradient))
    (plain, wanted), (found, gradient) = passes
    assert torch.allclose(found, plain, atol=1e-4)
    assert torch.allclose(gradient, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_a_window_is_measured_along_a_tokens_own_branch() -> None:
    """Two branches of one root: the second one's first token still sees the root's last tokens."""
    network = ready("mistral", sliding_window=3)
    (call, *_) = survey(network)
    plan = TreePlan(torch.tensor([6, 6, 4, 4, 6, 6]), torch.float32)  # 0 1 (2 3) (4 5)
    (chunk,) = plan._find(call.sees, 1)
    seen = torch.zeros(6, 6)
    seen[:, chunk.keys] = chunk.bias.exp()
    assert seen.tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [0, 1, 0, 0, 1, 1],
    ]


@pytest.mark.parametrize("family", ["mistral", "gemma3_text", "llama4_text"])
@pytest.mark.parametrize("size", [8, 100])
def test_a_window_that_is_one_token_off_is_refused_though_no_prompt_of_the_check_is_as_long(
    family: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "attention_chunk_size" if family == "llama4_text" else "sliding_window"
    network = ready(family, **{name: size})
    check = Exactness(network, list(range(5, 60)), CONTEXT)
    decoder = make_decoder(network, torch.float32, CONTEXT)
    assert isinstance(decoder, LlamaDecoder if family == "mistral" else NetworkDecoder)
    check.check_engine(decoder, torch.float32, 1)
    assert getattr(network.config, name) == size

    def off_by_one(*given: Any) -> Any:
        shown = getattr(network.config, name)
        setattr(network.config, name, shown - 1)
        try:
            return kv_shape(*given)
        finally:
            setattr(network.config, name, shown)

    monkeypatch.setattr(exactness, "kv_shape", off_by_one)
    with pytest.raises(ModelError, match=f"family '{family}' can't be served exactly"):
        check.check_engine(decoder, torch.float32, 1)


def test_a_pack_longer_than_any_sequence_changes_no_temperature() -> None:
    """Llama 4 scales queries by their place in the pass, from `floor_scale` on."""
    config = small_config("llama4_text")
    config.floor_scale = 40
    plain, network = random_network(config), ready("llama4_text", floor_scale=40)
    sequences = [[(start + 7 * i) % 800 + 5 for i in range(36)] for start in (0, 200, 500)]
    batch = tuple(
        Transition("r", str(i), 0, "a", True, ids[:1], ids[1:], [0.0] * 35, None, advantage=1.0)
        for i, ids in enumerate(sequences)
    )
    optimizer = Optimizer(Policy(model_of(network), None), TrainingSettings(), source="")
    found = optimizer.logprobs((Trajectory("r", "g", "t", 0.0, batch),))
    for ids, own in zip(sequences, found, strict=True):
        assert torch.allclose(torch.tensor(own), plain_logprobs(plain, ids), atol=1e-3)


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("deepseek_v32", "index_topk"),
        ("glm_moe_dsa", "index_topk"),
        ("axk2", "index_topk"),
        ("hy_v4", "index_topk"),
        ("minimax_m3_vl_text", "index_topk_blocks"),
        ("deepseek_v4", "index_topk"),
    ],
)
def test_a_family_that_selects_tokens_is_exact_where_it_leaves_some_out(family: str, setting: str) -> None:
    config, ids = small_config(family), [i * 7919 % 800 + 5 for i in range(1, 28)]
    sparse = plain_logprobs(random_network(config), ids)
    setattr(config, setting, 2048)
    assert not torch.allclose(sparse, plain_logprobs(random_network(config), ids), atol=0.01)
    assert verdict(family).status == "exact"


def test_a_selection_that_is_not_exact_is_refused_once_the_context_reaches_it() -> None:
    config = small_config("doge")
    assert config.sliding_window is None
    config.keep_window_size = CONTEXT
    assert judge(random_network(config)) == "exact"
    config.keep_window_size = CONTEXT - 1
    with pytest.raises(ModelError, match="family 'doge' can't be served exactly"):
        judge(random_network(config))


def test_a_selection_of_tokens_is_narrowed_for_the_check() -> None:
    config, ids = small_config("minimax_m3_vl_text"), [i * 7919 % 800 + 5 for i in range(1, 28)]
    config.index_topk_blocks, config.index_block_size = 16, 128
    network = random_network(config)
    wide = plain_logprobs(network, ids)
    with narrowed(4096, network):
        assert not torch.allclose(plain_logprobs(network, ids), wide, atol=0.01)
    assert torch.equal(plain_logprobs(network, ids), wide)


def test_layers_that_share_keys_and_values_keep_them_once() -> None:
    network = ready("gemma3n_text")
    assert kv_shape(network, torch.float32).layers == network.config.num_hidden_layers // 2


def test_a_family_that_hands_nothing_to_its_attention_runs_on_transformers_own_caches() -> None:
    assert verdict("stablelm").status == "exact"


def test_a_family_that_reads_in_both_directions_is_refused_by_name() -> None:
    found = verdict("bert")
    assert found.status == "refused"
    assert "'bert'" in found.reason


MUST = [
    "llama", "qwen2", "qwen3", "qwen3_moe", "qwen2_moe", "gemma", "phi", "phi3", "phimoe", "olmo2",
    "granite", "granitemoe", "smollm3", "glm", "glm4", "glm4_moe", "mixtral", "gpt2", "gpt_neox",
    "opt", "hunyuan_v1_dense", "starcoder2", "seed_oss", "ernie4_5", "qwen3_5_text",
    "qwen3_5_moe_text", "qwen3_next", "lfm2", "lfm2_moe", "falcon_h1", "bamba", "granitemoehybrid",
    "jamba", "minimax", "mistral", "ministral", "gemma2", "gemma3_text", "gemma3n_text", "olmo3",
    "cohere2", "exaone4", "gpt_oss",
]  # fmt: skip
"""Families that people train, which must be exact."""


@pytest.mark.parametrize("family", sorted({*family_names(), *MUST}))
def test_every_family_of_transformers_is_exact_or_refused_with_a_reason(family: str) -> None:
    found = verdict(family)
    assert found.status in STATUSES
    assert found.status.startswith("exact") or found.reason
    if family in MUST:
        assert found.status in ("exact and fast", "exact"), found.reason


def test_the_page_has_what_the_record_says_of_every_family() -> None:
    verdicts, page = read_record(), DOCS.read_text()
    assert [each.family for each in verdicts] == family_names()
    assert insert(page, verdicts) == page
