"""Reading a transformers folder: the network, its tokenizer, its context and its stop tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from lightning_core.backends.local.attention import use_plans
from lightning_core.errors import ModelError

TINY = "tiny"
DEFAULT_CONTEXT = 4096
_MARK = "\u2423mark\u2423"


@dataclass(frozen=True, slots=True)
class Model:
    """A causal language model ready to serve and to train."""

    name: str
    network: PreTrainedModel
    """float32 weights, evaluation mode (no dropout), attention through `attention.Plan`."""
    tokenizer: PreTrainedTokenizerBase
    context: int
    """Longest prompt plus completion, in tokens."""
    stop_ids: frozenset[int]
    """Token ids that end a reply."""


def tiny_folder() -> Path:
    """Where the tiny model that the package ships lies."""
    return Path(__file__).parents[2] / "models" / TINY


def pick_device(device: str) -> torch.device:
    """ "auto" is CUDA where there is one, then Apple's MPS, then the CPU."""
    if device != "auto":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_model(model: str | Path, *, context: int | None = None, device: str = "auto") -> Model:
    """Load a folder (or a hub name that transformers resolves; "tiny" is the shipped model).

    Raises ModelError naming the folder if weights, configuration, tokenizer or chat template are missing.
    """
    folder = check_folder(model)
    source = str(folder) if folder.exists() else str(model)
    tokenizer = _load(AutoTokenizer, source, "tokenizer", {})
    network = _load(AutoModelForCausalLM, source, "weights", {"dtype": torch.float32})
    if not tokenizer.chat_template:
        raise ModelError(
            f"the tokenizer in {source!r} has no chat template, so messages can't be turned into a prompt; "
            "add chat_template.jinja (or `chat_template` in tokenizer_config.json) to the folder"
        )
    use_plans(network)
    network.requires_grad_(False).eval().to(pick_device(device))
    return Model(
        name=folder.name if folder.exists() else str(model),
        network=network,
        tokenizer=tokenizer,
        context=_context(network, context, source),
        stop_ids=find_stop_ids(network, tokenizer),
    )


def check_folder(model: str | Path) -> Path:
    """The folder that `model` means. Raises ModelError if it is plainly none; a name on the hub may not exist
    here."""
    asked = str(model)
    folder = tiny_folder() if asked == TINY else Path(model)
    on_hub = isinstance(model, str) and asked.count("/") == 1 and not asked.startswith((".", "/", "~"))
    if not folder.exists() and not on_hub:
        raise ModelError(
            f"no model folder {str(folder)!r}; give a transformers folder or the name of a model on the hub"
        )
    if folder.exists() and not (folder / "config.json").is_file():
        raise ModelError(
            f"{str(folder)!r} is not a transformers folder: it has no config.json; "
            "save one with model.save_pretrained(folder) and tokenizer.save_pretrained(folder)"
        )
    return folder


def _load(kind: Any, source: str, part: str, options: dict[str, Any]) -> Any:
    try:
        with _quiet():
            return kind.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(
            f"can't read the {part} of model {source!r}: {error}; check that the folder is complete "
            "(config.json, model.safetensors, tokenizer.json)"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of transformers: a model's start is not this library's to narrate."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _context(network: PreTrainedModel, asked: int | None, source: str) -> int:
    longest = getattr(network.config, "max_position_embeddings", None) or DEFAULT_CONTEXT
    if asked is None:
        return int(min(longest, DEFAULT_CONTEXT))
    if not 1 < asked <= longest:
        raise ModelError(
            f"context={asked!r} is outside what model {source!r} was made for: 2 to {longest} tokens"
        )
    return asked


def find_stop_ids(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that ends a reply: the generation config's, the tokenizer's, and the one the chat template
    writes after an assistant's message."""
    ids: set[int] = set()
    configured = getattr(network.generation_config, "eos_token_id", None)
    ids.update(configured if isinstance(configured, list) else [] if configured is None else [configured])
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    tail = tokenizer(str(text).rpartition(_MARK)[2], add_special_tokens=False)["input_ids"]
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    if tail and tail[0] in special:
        ids.add(tail[0])
    return frozenset(ids)


def parameter_count(network: torch.nn.Module) -> int:
    """Parameters, tied ones counted once."""
    return sum(p.numel() for p in network.parameters())


def kv_heads(network: PreTrainedModel) -> int:
    """Key/value heads of each layer."""
    config = network.config
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def head_size(network: PreTrainedModel) -> int:
    """Size of one attention head."""
    config = network.config
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
