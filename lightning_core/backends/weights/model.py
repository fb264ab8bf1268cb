"""A transformers folder read whole: the network, its tokenizer, its context and its stop tokens."""

from __future__ import annotations

import ctypes
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lightning_core.backends.serving.upstream import ChatModel
from lightning_core.backends.weights.folders import check_complete
from lightning_core.backends.weights.sizes import DEFAULT_CONTEXT, count_numbers, longest_context
from lightning_core.backends.weights.sources import (
    check_weights,
    find_source,
    find_stop_ids,
    keep_ends,
    load_config,
    load_part,
    load_tokenizer,
)
from lightning_core.errors import ModelError

NESTED_TEXT = ("gemma3", "mistral3")
"""Families of text and images whose text part is loaded by its own class, with the weights renamed."""
TEXT_NAMES = {
    r"^(model\.)?language_model\.(?!model\.|lm_head)": "model.",
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head": "lm_head",
}
"""Beginnings of the names of their weights, and those that the text part has."""


_loading = threading.Lock()
"""transformers makes networks under settings of the whole process."""
_M_MMAP_THRESHOLD, _LARGE = -3, 1 << 20
_M_TOP_PAD, _KEPT = -2, 1 << 26
_SAMPLE = "A train leaves at nine and travels 120 kilometres in two hours. How fast does it go?"


@dataclass(frozen=True, slots=True)
class Model:
    """A causal language model ready to serve and to train."""

    name: str
    network: PreTrainedModel
    """float32 weights, evaluation mode (no dropout); `local.model.make_ready` gives it attention by plans."""
    tokenizer: PreTrainedTokenizerBase
    context: int
    """Longest prompt plus completion, in tokens."""
    stop_ids: frozenset[int]
    """Token ids that end a reply."""

    @property
    def sample(self) -> list[int]:
        """Token ids of a chat in plain English, for measurements."""
        messages = [{"role": "user", "content": _SAMPLE}]
        text = str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    @property
    def chat(self) -> ChatModel:
        """As far as talking to it goes."""
        vocabulary, (longest, _) = self.network.config.vocab_size, longest_context(self.network.config)
        return ChatModel(self.name, self.tokenizer, self.context, self.stop_ids, vocabulary, longest)


def read_model(model: str | Path, *, context: int | None = None) -> Model:
    """Read a folder (or a hub name that transformers resolves; "tiny" is the shipped model).

    Raises ModelError naming the folder if weights, configuration, tokenizer or chat template are missing.
    """
    _set_allocator()
    source, name = find_source(model)
    tokenizer = load_tokenizer(source)
    check_weights(Path(source))
    network = _load_network(load_config(source)[0], source)
    return Model(
        name=name,
        network=network,
        tokenizer=tokenizer,
        context=_context(network, context, source),
        stop_ids=find_stop_ids(network.generation_config, tokenizer),
    )


def _load_network(config: Any, source: str) -> PreTrainedModel:
    """The network with all its weights, of text alone. Raises ModelError where a weight is missing."""
    options = {"config": config, "use_safetensors": True, **_text_options(config, source)}
    with _loading:
        network, report = load_part(
            AutoModelForCausalLM,
            source,
            "weights",
            dtype=torch.float32,
            output_loading_info=True,
            **options,
        )
    advice = "copy the whole folder, or save it again with model.save_pretrained(folder)"
    check_complete(network, report["missing_keys"], source, advice)
    found: PreTrainedModel = network
    found.config.architectures = [type(found).__name__]  # a text part's configuration has none
    return found


def _text_options(config: Any, source: str) -> dict[str, Any]:
    """Options with which transformers loads the text part alone of a model with more than text in it.

    Raises ModelError for a family of which that was not tried.
    """
    text = config.get_text_config()
    kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, "")
    if text is config or str(kind).endswith("ForCausalLM"):  # transformers does it by itself
        return {}
    if config.model_type not in NESTED_TEXT:
        raise ModelError(
            f"model {source!r} of the family {config.model_type!r} is more than a text model, and its text "
            "part can't be loaded alone; take a checkpoint of the text model (such as "
            f"{text.model_type!r}), or save that part as a folder of its own"
        )
    text.tie_word_embeddings = config.tie_word_embeddings  # the whole model's counts
    return {"config": text, "key_mapping": TEXT_NAMES}


def _set_allocator() -> None:
    """Have each large tensor mapped alone, so that freeing it gives its memory back to the system, and keep
    64 MiB of what smaller ones free.

    glibc would learn from the first large ones to carve later ones out of its heap, where small blocks
    between them keep freed memory: half a billion weights with LoRA then took over 8 GiB in place of 4.2.
    Told where large begins, it gives back the end of its heap at once, and asks for it again with the next
    tensor: a fifth of an update's time. https://man7.org/linux/man-pages/man3/mallopt.3.html
    """
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TOP_PAD, _KEPT)


def _context(network: PreTrainedModel, asked: int | None, source: str) -> int:
    longest, why = longest_context(network.config)
    if asked is None:
        return min(longest, DEFAULT_CONTEXT)
    if not 1 < asked <= longest:
        raise ModelError(f"context={asked!r} is outside what model {source!r} {why}: 2 to {longest} tokens")
    return asked


def network_below(network: torch.nn.Module) -> PreTrainedModel:
    """The transformers network itself, also where LoRA's layers are in it."""
    found: PreTrainedModel = network.get_base_model() if isinstance(network, PeftModel) else network
    return found


def parameter_count(network: torch.nn.Module) -> int:
    """Parameters, tied ones counted once."""
    return count_numbers(network.parameters())


def tied_names(network: PreTrainedModel) -> frozenset[str]:
    """Names in its `state_dict` that are another name's weight."""
    seen: set[int] = set()
    tied = set()
    for name, weight in network.state_dict().items():
        if weight.data_ptr() in seen:
            tied.add(name)
        seen.add(weight.data_ptr())
    return frozenset(tied)


def plain_files(model: Model) -> dict[str, bytes]:
    """Tokenizer, chat template, configuration and stop tokens of the model itself, by the file's name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.tokenizer.save_pretrained(folder)
        model.network.config.save_pretrained(folder)
        keep_ends(folder, model.tokenizer, model.stop_ids)
        return read_files(folder)


def read_files(folder: Path) -> dict[str, bytes]:
    """The folder's files by their names."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
