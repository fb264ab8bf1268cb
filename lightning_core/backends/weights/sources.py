"""A model's folder as far as talking to the model goes: its tokenizer, its template, its stop tokens.

Two models have short names: "tiny" is shipped, "smollm2" is made of a package (`gguf`).
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import HTTPError, RepositoryNotFoundError
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from lightning_core.backends.weights.folders import recover
from lightning_core.backends.weights.gguf import SMOLLM2, SUFFIX, gguf_folder, smollm2_folder
from lightning_core.errors import ModelError

logger = logging.getLogger(__name__)

TINY = "tiny"
_MODELS: Final = Path(__file__).parents[2] / "models"
HUB_SECONDS = 10.0
"""Seconds the hub may take to say whether it has a model."""
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MOST_IDS: Final = 1 << 31
_MARK = "\u2423mark\u2423"


def tiny_folder() -> Path:
    """Where the tiny model that the package ships lies."""
    return _MODELS / TINY


def check_folder(model: str | Path) -> Path:
    """The folder that `model` means; a GGUF file's is made in the user's cache.

    Raises ModelError if it is plainly none; a name on the hub may not exist here.
    """
    asked = str(model)
    if asked.lower().endswith(SUFFIX):
        return gguf_folder(Path(model))
    shipped = {TINY: tiny_folder, SMOLLM2: smollm2_folder}
    folder = shipped[asked]() if asked in shipped else Path(model)
    recover(folder)
    on_hub = isinstance(model, str) and asked.count("/") == 1 and not asked.startswith((".", "/", "~"))
    if not folder.exists() and not on_hub:
        alike = difflib.get_close_matches(asked.lower(), shipped, n=1)
        meant = f"did you mean {alike[0]!r}? Else " if alike else ""
        raise ModelError(
            f"no model folder {str(folder)!r}; {meant}give a transformers folder, a model's name on the "
            f'hub, or "{SMOLLM2}", a small model that reads English'
        )
    if folder.exists() and not (folder / "config.json").is_file():
        raise ModelError(
            f"{str(folder)!r} is not a transformers folder: it has no config.json; "
            "save one with model.save_pretrained(folder) and tokenizer.save_pretrained(folder)"
        )
    return folder


def find_source(model: str | Path) -> tuple[str, str]:
    """(what transformers is to load, what the model is called). Raises ModelError as `check_folder` does."""
    folder = check_folder(model)
    return (str(folder), folder.name) if folder.exists() else (str(model), str(model))


def load_part(kind: Any, source: str, part: str, **options: Any) -> Any:
    """Loads a part of the source with `kind`, and runs no code of it. Raises ModelError, naming the source
    and the part."""
    if not Path(source).exists():
        check_hub(source)
    try:
        with _quiet():
            return kind.from_pretrained(source, trust_remote_code=False, **options)
    except Exception as error:  # boundary: a foreign folder makes its readers raise anything
        raise ModelError(
            f"can't read the {part} of model {source!r}: {error}; check that the folder is complete "
            "(config.json, model.safetensors, tokenizer.json)"
        ) from error


def check_hub(name: str) -> None:
    """Raise ModelError for a model that is neither in this machine's cache nor to be had from the hub.

    Asked once, before anything is loaded: loading itself tries again for most of a minute.
    """
    if constants.HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    hub = constants.ENDPOINT
    try:
        HfApi(endpoint=hub).model_info(name, timeout=HUB_SECONDS)
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"the hub {hub} has no model {name!r} that you may read: check the name, and log in with "
            "`hf auth login` if it is private"
        ) from error
    except (HTTPError, OSError) as error:
        raise ModelError(
            f"model {name!r} is not on this machine, and the hub {hub} can't be reached ({error}): check "
            f"network and proxy, or run `hf download {name} --local-dir FOLDER` where there is a network and "
            "give model=FOLDER"
        ) from error


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer, which has a chat template. Raises ModelError."""
    tokenizer: PreTrainedTokenizerBase = load_part(AutoTokenizer, source, "tokenizer")
    if not tokenizer.chat_template:
        raise ModelError(
            f"the tokenizer in {source!r} has no chat template, so messages can't be turned into a prompt; "
            "add the model's own as chat_template.jinja to a copy of the folder, or, for a base model, a "
            "plain one (docs/own-model.md)"
        )
    return tokenizer


def load_config(source: str) -> tuple[Any, Any]:
    """(the model's configuration, its generation configuration). Raises ModelError."""
    config = load_part(AutoConfig, source, "configuration")
    config._attn_implementation = None  # it may name code on the hub
    try:
        return config, GenerationConfig.from_pretrained(source)
    except Exception as error:  # boundary, as in `load_part`
        if isinstance(error, OSError) and not Path(source, "generation_config.json").exists():
            return config, GenerationConfig.from_model_config(config)  # as for a model loaded whole
        raise ModelError(
            f"can't read generation_config.json of model {source!r}: {error}; restore the file, or delete it "
            "if config.json says where a reply ends"
        ) from error


def check_weights(folder: Path) -> None:
    """Raise ModelError for a folder whose weights are pickles, which may hold a program, and nothing else."""
    pickles = sorted(path.name for path in folder.glob("*") if path.suffix in _PICKLES)
    if pickles and not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"the weights of model {str(folder)!r} are pickles ({pickles[0]}), which may run code when "
            "they are read: take a version with model.safetensors. If you trust its author, read it with "
            "transformers, and write it again with model.save_pretrained(folder)"
        )


def find_stop_ids(generation_config: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that ends a reply: the generation config's, the tokenizer's, and the one the chat template
    writes after an assistant's message. Raises ModelError for ids, or a template, that can't be used."""
    ids: set[int] = set()
    configured = getattr(generation_config, "eos_token_id", None)
    found = configured if isinstance(configured, list) else [] if configured is None else [configured]
    if not all(isinstance(each, int) and 0 <= each < _MOST_IDS for each in found):
        raise ModelError(f"eos_token_id of generation_config.json is {configured!r}: give ids of tokens")
    ids.update(found)
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception as error:  # boundary: a template is a program
        raise ModelError(f"the chat template can't write a plain conversation: {error!r}") from error
    tail = tokenizer(str(text).rpartition(_MARK)[2], add_special_tokens=False)["input_ids"]
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    if tail and tail[0] in special:
        ids.add(tail[0])
    return frozenset(ids)


def keep_ends(folder: Path, tokenizer: PreTrainedTokenizerBase, stop_ids: frozenset[int]) -> None:
    """Let a model's folder say how its replies were sampled and ended in training.

    `generation_config.json` gets the ids that end a reply, and what a request without options means here:
    temperature 1, all tokens. The base's own `top_k`, penalties and the like had no part in training.
    `config.json` gets the ids too: some programs read them there.
    """
    ends = sorted(stop_ids)
    GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=ends[0] if len(ends) == 1 else ends,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(
        json.dumps({**config, "eos_token_id": ends[0] if len(ends) == 1 else ends}, indent=2) + "\n"
    )


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
