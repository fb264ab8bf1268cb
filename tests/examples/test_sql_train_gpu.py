"""The script for GPUs as far as a machine without any goes: its plan, its data, and its refusal to start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.models import save_model
from tests.examples.test_sql_spider import spider

ROOT = Path(__file__).parents[2]
__all__ = ["spider"]


def start(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    return subprocess.run(
        [sys.executable, "-m", "lightning_core.cli", "train", str(ROOT / "examples/sql/train_gpu.py")]
        + [str(argument) for argument in arguments],
        cwd=cwd,
        # no GPU, wherever the test runs
        env=environment
        | {"PYTHONPATH": f"{ROOT}:{environment.get('PYTHONPATH', '')}"}
        | {"OPENAI_API_KEY": "none", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=800,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with Qwen3's architecture and Qwen3-1.7B's sizes; of its weights there is nothing."""
    folder = save_model(tmp_path / "qwen", "qwen3")
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    config |= {"max_position_embeddings": 40960, "layer_types": ["full_attention"] * 28}
    config |= {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_its_plan_is_what_was_published(folder, spider, tmp_path):
    told = start("--dry-run", "--", "--model", folder, "--data", spider, cwd=tmp_path)
    assert told.returncode == 1, told.stderr  # there is no GPU
    facts = dict(line.strip("│ ").split(" │ ", 1) for line in told.stdout.splitlines() if " │ " in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    assert facts["agents"] == "write_query, rewrite_query"
    assert facts["algorithm"].startswith("grpo, credit uniform, baseline mean, scale std, 1 pass")
    assert facts["a step"] == "128 rollouts: 32 tasks, 4 of each"
    assert facts["context"].startswith("6,144 tokens")
    assert facts["tasks"].startswith("2 to train on")
    assert facts["model"].endswith("1.72 B parameters")
    assert facts["learning rate"] == "1e-06 after 3 steps"
    assert facts["machines"].startswith("1 x 1 GPU train (fsdp2) and serve in turn")
    assert "GPUs" in told.stdout
    assert "needs 1 GPU and this machine has 0" in told.stdout
    assert not (tmp_path / "runs").exists()


def test_a_machine_without_a_gpu_is_refused_by_name(folder, spider, tmp_path):
    refused = start("--", "--model", folder, "--data", spider, cwd=tmp_path)
    assert refused.returncode == 1
    assert "ConfigError" in refused.stderr
    assert "the verl backend needs" in refused.stderr


def test_data_that_is_not_there_is_named(folder, tmp_path):
    refused = start("--", "--model", folder, "--data", tmp_path / "nowhere", cwd=tmp_path)
    assert refused.returncode == 2
    assert "no tables.json" in refused.stderr
