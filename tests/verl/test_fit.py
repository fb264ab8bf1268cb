"""Too little memory is refused before anything starts, with what would help."""

from __future__ import annotations

import logging
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.shape import measure
from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.backends.verl.memory import check_memory, fit, networks_beside
from lightning_core.backends.verl.resources import Machine, Supply, find_supply
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.errors import BackendError, ConfigError, ModelError
from tests.verl.test_memory import LLAMA_8, QWEN_06, QWEN_8, shape

GIB = 1 << 30


@pytest.fixture(autouse=True)
def graphics(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine for GPUs, whatever the environment of the tests says."""
    monkeypatch.delenv("VERL_PLATFORM", raising=False)


def have(count: int, size: float, *, memory: float = 2000) -> Supply:
    """One machine with so many GPUs of so many GiB."""
    return Supply((Machine((int(size * GIB),) * count, int(memory * GIB)),), "this machine")


def test_a_small_model_fits_on_one_large_gpu():
    check_memory(VerlSettings("x", gpus=1), shape(QWEN_06), have(1, 80))


def test_eight_billion_parameters_do_not_fit_on_one_gpu_and_do_on_eight():
    settings = VerlSettings("x", gpus=1)
    with pytest.raises(ConfigError, match=r"8\.19 B parameters does not fit on this machine") as refused:
        check_memory(settings, shape(QWEN_8), have(1, 80))
    told = str(refused.value)
    # 16 bytes of each of 8.19 B parameters are 122 GiB, before any activation
    need, has, short = map(
        float, re.search(r"trains needs ([\d.]+) GiB and has ([\d.]+) GiB, ([\d.]+)", told).groups()
    )
    assert need > 122
    assert has == 80.0
    assert short == pytest.approx(need - has, abs=0.11)
    assert "lora=LoraOptions()" in told
    check_memory(replace(settings, gpus=8), shape(QWEN_8), have(8, 80))


def test_what_is_said_to_be_enough_is_enough():
    settings, supply = VerlSettings("x", gpus=2), have(8, 80)
    with pytest.raises(ConfigError) as refused:
        check_memory(settings, shape(LLAMA_8), supply)
    assert "enough would be gpus=4" in str(refused.value)
    check_memory(replace(settings, gpus=4), shape(LLAMA_8), supply)


def test_weights_that_stay_beside_vllm_ask_for_offload_or_a_smaller_share():
    """On four GPUs 32 GB of state are kept on each beside the 72 GiB that vLLM takes."""
    settings = VerlSettings("x", gpus=4, gpu_memory=0.9)
    with pytest.raises(ConfigError, match="each GPU while it serves needs") as refused:
        check_memory(settings, shape(LLAMA_8), have(4, 80))
    assert "offload=True" in str(refused.value)
    check_memory(replace(settings, offload=True), shape(LLAMA_8), have(4, 80))


def test_a_context_that_vllm_s_share_can_t_hold_is_refused():
    """131,072 tokens of 128 KiB are 16 GiB; with weights of 15 GiB they don't fit into a half of 48."""
    settings = VerlSettings("x", gpus=8, serving_gpus=8, pack_tokens=8192)
    big = replace(shape(LLAMA_8), context=131072)
    with pytest.raises(ConfigError, match="vLLM's share of each GPU needs") as refused:
        check_memory(settings, big, have(16, 48))
    assert "gpu_memory=0.9" in str(refused.value)
    assert "context=65536" in str(refused.value)


def test_offload_needs_main_memory():
    settings = VerlSettings("x", gpus=4, offload=True)
    with pytest.raises(ConfigError, match="main memory of each machine needs"):
        check_memory(settings, shape(LLAMA_8), have(4, 80, memory=64))


def test_a_critic_is_counted():
    settings = VerlSettings("x", gpus=4)
    check_memory(settings, shape(LLAMA_8), have(4, 80))
    with pytest.raises(ConfigError):
        check_memory(settings, shape(LLAMA_8), have(4, 80), critic=True)


def test_a_critic_that_tells_values_while_servers_answer_is_counted_there():
    """Its state of 12 bytes a parameter, and a pass: what is gathered of it, and one layer's activations."""
    plain, valued = (
        fit(VerlSettings("x", gpus=1), shape(QWEN_06), have(1, 80), critic=critic) for critic in (False, True)
    )
    layer = 16384 * (2 * (6 * 1024 + 4 * 3072 + 4 * 3072) + 8 * 1024 + 4 * 3072)
    assert plain.uses[2].what == "each GPU while it serves"
    beside = 12 * 596_049_920 + plain.training.gathered + layer
    assert valued.uses[2].need - plain.uses[2].need == beside
    moved = VerlSettings("x", gpus=1, offload=True)
    plain, valued = (fit(moved, shape(QWEN_06), have(1, 80), critic=critic) for critic in (False, True))
    assert valued.uses[2].need - plain.uses[2].need == beside - 8 * 596_049_920


def test_a_reference_is_counted_in_main_memory_and_in_the_advice():
    """Four bytes of 8 B parameters are 30 GiB, and four processes more."""
    settings, supply = VerlSettings("x", gpus=4), have(4, 80, memory=30)
    check_memory(settings, shape(LLAMA_8), supply)
    with pytest.raises(ConfigError, match="main memory of each machine needs") as refused:
        check_memory(settings, shape(LLAMA_8), supply, reference=True)
    assert "enough would be" not in str(refused.value)


def test_what_a_run_needs_beside_the_policy_is_that_of_all_its_phases():
    plain, with_lora = VerlSettings("x"), VerlSettings("x", lora=LoraOptions())
    grpo, held, ppo = lightning.GRPO(), lightning.GRPO(kl=0.1), lightning.PPO()
    assert networks_beside(plain, [grpo]) == (False, False)
    assert networks_beside(plain, [held, ppo]) == networks_beside(plain, [ppo, held]) == (True, True)
    assert networks_beside(with_lora, [held, grpo]) == (False, False)
    assert networks_beside(with_lora, [grpo, held]) == (False, True)


def test_without_sleep_serving_and_training_share_a_gpu_all_the_time():
    size = have(1, 40)
    turns = fit(VerlSettings("x", gpus=1), shape(QWEN_06), size)
    at_once = fit(VerlSettings("x", gpus=1, sleep=False), shape(QWEN_06), size)
    apart = fit(VerlSettings("x", gpus=1, serving_gpus=1), shape(QWEN_06), size)
    assert at_once.uses[0].need - turns.uses[0].need == 20 * GIB
    assert [use.what for use in apart.uses if "serves" in use.what] == []


def test_nothing_known_of_gpus_is_noted_and_no_error(caplog):
    with caplog.at_level(logging.INFO):
        check_memory(VerlSettings("x", gpus=8), shape(LLAMA_8), Supply((Machine((), None),), "this machine"))
    assert "whether the model fits was not checked" in caplog.text


def test_on_a_cpu_main_memory_is_what_counts(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    settings, here = VerlSettings("x", gpus=2), Supply((Machine((), 24 * GIB),), "this machine")
    check_memory(settings, measure("tiny", None), here)
    with pytest.raises(ConfigError, match="main memory needs") as refused:
        check_memory(settings, shape(LLAMA_8), here)
    assert "lora=LoraOptions()" in str(refused.value)


def test_lora_is_told_to_be_enough_only_where_it_is():
    settings = VerlSettings("x", gpus=1, lora=LoraOptions())
    check_memory(settings, shape(QWEN_8, 4096), have(1, 141))
    with pytest.raises(ConfigError) as refused:
        check_memory(VerlSettings("x", gpus=1), shape(QWEN_8, 4096), have(1, 141))
    assert "lora=LoraOptions()" in str(refused.value).partition("some help")[0]


def test_a_backend_object_is_refused_as_its_settings_are():
    with pytest.raises(ConfigError, match="does not fit"):
        check_memory(VerlBackend("tiny", gpus=1), shape(QWEN_8), have(1, 80))


def test_the_machine_s_own_memory_is_found():
    supply = find_supply(VerlSettings("x"))
    assert supply.memory
    assert supply.memory > GIB


def test_a_cluster_that_is_not_there_is_named():
    with pytest.raises(BackendError, match=r"address='ray://127\.0\.0\.1:1'"):
        find_supply(VerlSettings("x", address="ray://127.0.0.1:1"))


def test_a_cluster_says_what_its_machines_have():
    """A real one, which says that it has two GPUs; how large they are only they could tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        ray.init("local", num_cpus=1, num_gpus=2, include_dashboard=False, log_to_driver=False)
        try:
            supply = find_supply(VerlSettings("x", address="auto"))
            assert ray.is_initialized()  # it was there before, so it stays
        finally:
            ray.shutdown()
    assert (supply.counts, supply.source) == ((2,), "Ray at 'auto'")
    assert supply.smallest is None or supply.smallest > GIB
    assert supply.memory


# reading a model ------------------------------------------------------------------------------
def test_the_shipped_model_is_measured_without_its_weights(tmp_path):
    found = measure("tiny", None)
    (tmp_path / "config.json").write_bytes((found.folder / "config.json").read_bytes())
    assert replace(measure(tmp_path, None), folder=found.folder) == found


def test_a_context_above_the_model_s_is_refused():
    longest = measure("tiny", None).context
    assert measure("tiny", 64).context == 64
    assert measure("tiny", None, most=32).context == 32
    with pytest.raises(ConfigError, match=f"context={longest + 1} is above what model 'tiny' was made for"):
        measure("tiny", longest + 1)


def test_a_folder_without_a_language_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ModelError, match=r"can't tell how big|can't read the configuration"):
        measure(Path(tmp_path), None)
