"""Memory that training takes: `python -m benchmarks.memory [NAME ...]`.

Each row is a run of two steps by default settings, in a process of its own: 2 tasks with 4 rollouts of one
call, whose prompt has some 800 tokens and whose reply has 64. What is told is the most memory the process
ever had (peak resident set), beside what `--dry-run` says is needed at most. "0.5b" has the sizes of
Qwen2.5-0.5B and random weights: memory does not depend on what is in them.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
from rich.console import Console
from rich.table import Table

import lightning_core as lightning
from lightning_core.backends.weights.sources import find_source

GIB = 1 << 30
ROWS: Mapping[str, tuple[str, bool]] = {
    "smollm2": ("smollm2", False),
    "smollm2-lora": ("smollm2", True),
    "0.5b": ("0.5b", False),
    "0.5b-lora": ("0.5b", True),
}
"""Model, and whether LoRA is trained."""
SIZES: Mapping[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4_864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
"""Sizes in https://huggingface.co/Qwen/Qwen2.5-0.5B/blob/main/config.json"""


def make_model(folder: Path) -> None:
    """A model of half a billion random weights, with SmolLM2's tokenizer."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(find_source("smollm2")[0])
    tokenizer.save_pretrained(folder)
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    Qwen2ForCausalLM(Qwen2Config(**SIZES, **ends)).save_pretrained(folder)


def train(name: str, folder: Path) -> dict[str, Any]:
    """One row, in this process."""
    model, lora = ROWS[name]
    if model != "smollm2":
        model = str(folder / "model")
    backend = lightning.LocalBackend(model, lora=lightning.LoraOptions() if lora else None)
    words = [f"item{number}" for number in range(160)]

    def solve(task: lightning.Task) -> float:
        chat = openai.OpenAI(api_key="none").chat.completions.create(
            model="policy", max_tokens=64, messages=[{"role": "user", "content": str(task.input["text"])}]
        )
        return len(chat.choices[0].message.content or "") / 256 + random.random()

    tasks = []
    for seed in range(2):
        random.Random(seed).shuffle(words)
        tasks.append({"text": " ".join(words)})
    algorithm = lightning.GRPO(group_size=4, tasks_per_step=2)
    trainer = lightning.Trainer(
        backend=backend, algorithm=algorithm, steps=2, folder=folder / "run", progress=False, concurrency=8
    )
    (told,) = (value for fact, value in trainer.plan(train=tasks).facts if fact == "memory to train")
    started = time.monotonic()
    trainer.fit(solve, train=tasks)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak": peak, "seconds": time.monotonic() - started, "told": told}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ROWS))
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        found = train(options.names[0], options.here)
        (options.here / "found.json").write_text(json.dumps(found))
        return
    table = Table("run", "peak memory", "training told beforehand, at most", "seconds")
    for name in options.names or ROWS:
        with tempfile.TemporaryDirectory() as folder:
            if ROWS[name][0] != "smollm2":
                make = f"from benchmarks.memory import *; make_model(Path({folder!r}) / 'model')"
                subprocess.run([sys.executable, "-c", make], check=True)
            command = [sys.executable, "-m", "benchmarks.memory", "--here", folder, name]
            subprocess.run(command, check=True)
            found = json.loads((Path(folder) / "found.json").read_text())
        table.add_row(name, f"{found['peak'] / GIB:.1f} GiB", found["told"], f"{found['seconds']:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
