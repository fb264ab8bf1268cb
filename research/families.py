"""Which families of causal language models run exactly here: `python -m research.families [FAMILY …]`.

Without names it judges all, and writes the record and the table in docs/own-model.md. With `--bfloat16`
before the names it prints how far rounding moves log-probabilities.

A small random network of every family that transformers has, from its own mapping of names, is served step by
step and trained in one pass, and compared with the plain network as at each start of a run.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lightning_core.backends.local.attention import takes_plans
from lightning_core.backends.local.decoder import make_decoder
from lightning_core.backends.local.exactness import Exactness
from lightning_core.backends.local.model import make_ready
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.packing import make_plan
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.local.versions import make_engine
from lightning_core.backends.settings import TrainingSettings
from lightning_core.backends.weights.model import Model, parameter_count
from lightning_core.backends.weights.sources import load_tokenizer, tiny_folder
from lightning_core.errors import LightningError, ModelError

RECORD = Path(__file__).parent / "results" / "families.json"
DOCS = Path(__file__).parents[1] / "docs" / "own-model.md"
BEGIN, END = "<!-- families table -->", "<!-- end of families table -->"
CONTEXT = 128
MOST = 5_000_000
"""Parameters of a small network."""
SMALL: dict[str, Any] = {
    "vocab_size": 820, "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embedding_size": 64,
    "intermediate_size": 96, "intermediate_size_mlp": 96, "ffn_dim": 96, "n_inner": 96, "d_inner": 96,
    "ffn_hidden_size": 96, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "moe_latent_size": 32, "block_size": 64,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "decoder_layers": 2,
    "encoder_layers": 1, "decoder_ffn_dim": 96, "encoder_ffn_dim": 96, "encoder_attention_heads": 4,
    "max_position_embeddings": 256, "n_positions": 256, "n_ctx": 256, "max_seq_len": 256,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "n_shared_experts": 1, "num_shared_experts": 1, "moe_num_shared_experts": 1, "num_experts_per_tok": 2,
    "num_experts_per_token": 2, "moe_k": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1,
    "num_expert_group": 1,
    "first_k_dense_replace": 1, "num_dense_layers": 1, "top_k_experts": 2,
    "q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "qk_head_dim": 16, "rotary_dim": 8,
    "sliding_window": 8, "attention_chunk_size": 8, "attention_window_size": 8, "window_size": 8,
    "sliding_window_size": 8, "index_topk": 8, "index_n_heads": 4,
    "index_head_dim": 16, "index_topk_blocks": 2, "index_block_size": 4,
    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 820, "laurel_rank": 8,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16,
    "mamba_d_ssm": 128, "mamba_n_groups": 1, "mamba_dt_rank": 8, "mamba_chunk_size": 16, "chunk_size": 16,
    "state_size": 16, "lru_width": 64, "time_step_rank": 8, "n_mamba_heads": 2, "mamba_headdim": 16,
    "conv_dim": 64, "conv_dim_out": 64, "ssm_state_size": 16, "mamba_num_heads": 8, "mamba_head_dim": 16,
    "n_groups": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Sizes by the names that configurations give them."""


STATES: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "minimax": {
        "layer_types": ["linear_attention", "full_attention"],
        "block_size": 16,
        "sliding_window": None,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "llama4_text": {"no_rope_layers": [1, 0]},
    "doge": {"sliding_window": None},
    "laguna": {"layer_types": ["full_attention", "sliding_attention"]},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "index_topk": 3,
    },
}
"""Layers of each kind, of families whose configurations don't list them. MiniMax's published models have no
window; with one it is refused."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A family, and whether it runs exactly."""

    family: str
    status: str
    """ "exact and fast", "exact", "refused", "composite" or "not made"."""
    reason: str = ""
    """Why it is refused or was not made; of a composite one, what its text part is."""


def family_names() -> list[str]:
    """Every causal LM family that transformers has."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def small_config(family: str) -> PreTrainedConfig:
    """A configuration of the family's own class with each kind of layer, small.

    Raises ModelError for a family whose configuration only wraps that of another one.
    """
    made = CONFIG_MAPPING[family]
    plain = made()
    text = plain.get_text_config(decoder=True)
    if text is not plain:
        raise ModelError(f"its text part is a {text.model_type}")
    known = plain.to_dict()
    sizes = {name: value for name, value in SMALL.items() if name in known}
    if kinds := known.get("layer_types"):
        kinds = list(dict.fromkeys(kinds))
        sizes["layer_types"] = kinds * (2 if known.get("num_kv_shared_layers") else 1)
        sizes["layer_types"] *= 2 if len(sizes["layer_types"]) == 1 else 1
    if "qk_rope_head_dim" in sizes:  # there a head is what is turned
        sizes |= {"head_dim": sizes["qk_rope_head_dim"], "num_key_value_heads": 4}
    if known.get("num_kv_shared_layers"):
        sizes["num_kv_shared_layers"] = len(sizes["layer_types"]) // 2
    sizes |= STATES.get(family, {})
    if "layer_types" in sizes:
        sizes["num_hidden_layers"] = len(sizes["layer_types"])
    return made(**sizes)


def random_network(config: PreTrainedConfig, *, seed: int = 0) -> PreTrainedModel:
    """Random weights, large enough that a token that is missed shows."""
    with torch.device("meta"):
        count = parameter_count(AutoModelForCausalLM.from_config(config))
    if count > MOST:
        raise ValueError(f"{count:,} parameters: its configuration has sizes of other names")
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return network


def judge(network: PreTrainedModel) -> str:
    """The status of a family whose network runs exactly here. Raises ModelError if it does not."""
    make_ready(network, torch.device("cpu"))
    model = Model("random", network, load_tokenizer(str(tiny_folder())), CONTEXT, frozenset({2}))
    check = Exactness(network, model.sample, CONTEXT)
    with check.refusing("served"):
        make_engine(model, network, 1, torch.float32, 4, check)
    with check.refusing("trained"):
        optimizer = Optimizer(Policy(model, None), TrainingSettings(), source="")
        check.check_training(optimizer.logprobs, torch.float32)
    return "exact and fast" if takes_plans(network) else "exact"


def verdict(family: str) -> Verdict:
    """Whether a small random network of the family runs exactly."""
    try:
        network = random_network(small_config(family))
    except ModelError as error:
        return Verdict(family, "composite", str(error))
    except Exception as error:  # boundary: shapes that a family does not take
        return Verdict(family, "not made", f"{type(error).__name__}: {error}".splitlines()[0])
    try:
        return Verdict(family, judge(network))
    except LightningError as error:
        return Verdict(family, "refused", str(error))


@torch.no_grad()
def rounding(family: str) -> tuple[float, float, float]:
    """Nats between what an engine samples and a training pass computes, both in bfloat16: the mean over
    tokens and the most, and the mean entropy of the distributions that they are sampled from."""
    network = random_network(small_config(family))
    make_ready(network, torch.device("cpu"))
    torch.manual_seed(0)
    text = torch.randint(5, network.config.vocab_size, (CONTEXT,))
    served = make_decoder(network, torch.bfloat16, CONTEXT).text_logits(text).float().log_softmax(-1)
    places = torch.arange(CONTEXT)
    with torch.autocast("cpu", torch.bfloat16):
        logits = make_plan(network, torch.full_like(places, CONTEXT)).logits(network, text, places, places)
    sampled = served.exp().multinomial(1)
    gap = (logits.float().log_softmax(-1) - served).gather(-1, sampled).abs()
    entropy = -(served.exp() * served).sum(-1).mean()
    return float(gap.mean()), float(gap.max()), float(entropy)


STATUSES = {
    "exact and fast": "exact and fast: our attention, shared prefixes computed once",
    "exact": "exact, on transformers' own layers and caches",
    "composite": "wraps a text part, which counts",
    "refused": "refused at the start, by name",
    "not made": "not tried: its configuration could not be made small",
}
"""Each status as the table in docs says it."""


def table(verdicts: Sequence[Verdict]) -> str:
    """The families of each status, as Markdown."""
    lines = ["| | families of transformers |", "|---|---|"]
    for status, said in STATUSES.items():
        names = [f"`{each.family}`" for each in verdicts if each.status == status]
        lines.append(f"| {said} | {len(names)}: {', '.join(names)} |")
    return "\n".join(lines)


def insert(page: str, verdicts: Sequence[Verdict]) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(verdicts)}\n{END}{rest.partition(END)[2]}"


def read_record() -> list[Verdict]:
    """The verdicts that the last run wrote."""
    return [Verdict(**each) for each in json.loads(RECORD.read_text())]


def main() -> None:
    transformers.logging.set_verbosity_error()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--bfloat16"]:
        for family in sys.argv[2:]:
            mean, most, entropy = rounding(family)
            print(
                f"{family:28}mean {mean:.4f} most {most:.3f} nats at {entropy:.2f} nats of entropy",
                flush=True,
            )
        return
    verdicts = []
    for family in sys.argv[1:] or family_names():
        verdicts.append(verdict(family))
        print(f"{family:28}{verdicts[-1].status:16}{verdicts[-1].reason[:150]}", flush=True)
    if not sys.argv[1:]:
        RECORD.write_text(json.dumps([asdict(v) for v in verdicts], indent=1) + "\n")
        DOCS.write_text(insert(DOCS.read_text(), verdicts))


if __name__ == "__main__":
    main()
