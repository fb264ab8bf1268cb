"""A model's folder of a stranger: nothing of it is run, and what is malformed is refused by name."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.backends.local.model import load_model
from lightning_core.errors import ModelError

WEIGHTS = "model.safetensors"


class Program:
    """A pickle of it runs a command when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def theirs(qwen: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(qwen, tmp_path / "theirs"))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that appears once their code has run."""
    return tmp_path / "ran"


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write_code(folder: Path, mark: Path) -> None:
    (folder / "theirs.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\nclass C: ...\n")


def test_weights_that_are_pickles_are_refused_and_not_read(theirs: Path, mark: Path) -> None:
    (theirs / WEIGHTS).unlink()
    (theirs / "pytorch_model.bin").write_bytes(pickle.dumps(Program(mark)))
    with pytest.raises(ModelError, match=r"are pickles \(pytorch_model\.bin\), which may run code"):
        load_model(theirs, device="cpu")
    assert not mark.exists()


def test_pickles_beside_safetensors_are_not_read(theirs: Path, mark: Path) -> None:
    (theirs / "pytorch_model.bin").write_bytes(pickle.dumps(Program(mark)))
    assert load_model(theirs, device="cpu").network is not None
    assert not mark.exists()


def test_code_that_a_configuration_names_is_neither_run_nor_asked_about(
    theirs: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question"))
    write_code(theirs, mark)
    edit(theirs / "tokenizer_config.json", auto_map={"AutoTokenizer": ["theirs.C", None]})
    edit(theirs / "config.json", auto_map={"AutoConfig": "theirs.C", "AutoModelForCausalLM": "theirs.C"})
    load_model(theirs, device="cpu")
    edit(theirs / "config.json", model_type="theirs")
    with pytest.raises(ModelError, match="contains custom code"):
        load_model(theirs, device="cpu")
    assert not mark.exists()


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_an_attention_that_a_configuration_names_is_not_followed(theirs: Path, name: str) -> None:
    wanted = load_model(theirs, device="cpu").network.config._attn_implementation
    edit(theirs / "config.json", **{name: "their-org/their-kernel"})
    assert load_model(theirs, device="cpu").network.config._attn_implementation == wanted


def test_weights_that_lack_a_tensor_are_refused(theirs: Path) -> None:
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    (theirs / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ModelError, match=r"lacks \d+ of the weights of"):
        load_model(theirs, device="cpu")


HUGE = json.dumps({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 2**63 - 1) + b"{}",
        struct.pack("<Q", 1 << 20) + b" " * (1 << 20),
        struct.pack("<Q", 1 << 20) + b'{"__metadata__":' + b"[" * ((1 << 20) - 16),
        struct.pack("<Q", len(HUGE)) + HUGE + b"\0" * 8,
    ],
    ids=["empty", "header of 8 EiB", "blank header", "deep header", "shape of 2**80"],
)
def test_a_header_of_weights_that_makes_no_sense_is_refused(theirs: Path, content: bytes) -> None:
    (theirs / WEIGHTS).write_bytes(content)
    with pytest.raises(ModelError, match=r"can't read the weights of model .*theirs"):
        load_model(theirs, device="cpu")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", [1]),
        ("config.json", {"model_type": "qwen3", "num_hidden_layers": "many"}),
        ("config.json", {"model_type": "qwen3", "quantization_config": 7}),
        ("generation_config.json", []),
        ("generation_config.json", {"eos_token_id": "x"}),
        ("generation_config.json", {"eos_token_id": [5, None, -1]}),
        ("tokenizer.json", {}),
        ("chat_template.jinja", "{% for"),
        ("chat_template.jinja", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    ],
)
def test_a_part_that_is_malformed_is_refused_by_its_name(theirs: Path, file: str, content: Any) -> None:
    (theirs / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ModelError, match=r"theirs|eos_token_id|chat template"):
        load_model(theirs, device="cpu")
