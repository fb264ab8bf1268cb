"""Too little memory is refused before anything starts, with what would help."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.backends.verl.preflight import check_memory, estimate, networks_beside, policy_memory
from lightning_core.backends.verl.resources import Machine, Resources, find_resources
from lightning_core.backends.verl.settings import VerlSettings
from lightning_core.backends.weights.sizes import ModelSize, measure
from lightning_core.errors import BackendError, ConfigError, ModelError
from tests.verl.test_memory import LLAMA_8, QWEN_06, QWEN_8, graphics, shape

__all__ = ["graphics"]

GIB = 1 << 30


def have(count: int, size: float, *, memory: float = 2000) -> Resources:
    """One machine with so many GPUs of so many GiB."""
    return Resources((Machine((int(size * GIB),) * count, int(memory * GIB)),), "this machine")


def refusal(settings: VerlSettings, size: ModelSize, resources: Resources, *algorithms: Algorithm) -> str:
    """Why the model does not fit, and what would help."""
    found = check_memory(settings, size, resources, algorithms)
    assert found.verdict == "fails"
    return found.told


def fits(settings: VerlSettings, size: ModelSize, resources: Resources, *algorithms: Algorithm) -> bool:
    return check_memory(settings, size, resources, algorithms).verdict == "ok"


def needs(
    settings: VerlSettings, size: ModelSize, resources: Resources, *algorithms: Algorithm
) -> dict[str, int]:
    """Bytes, by what they are of."""
    return {use.what: use.need for use in estimate(settings, size, resources, algorithms).uses}


def test_a_small_model_fits_on_one_large_gpu():
    assert fits(VerlSettings("x", gpus=1), shape(QWEN_06), have(1, 80))


def test_eight_billion_parameters_do_not_fit_on_one_gpu_and_do_on_eight():
    settings = VerlSettings("x", gpus=1)
    told = refusal(settings, shape(QWEN_8), have(1, 80))
    assert "8.19 B parameters does not fit on this machine" in told
    # 16 bytes of each of 8.19 B parameters are 122 GiB, before any activation
    need, has, short = map(
        float, re.search(r"trains needs ([\d.]+) GiB and has ([\d.]+) GiB, ([\d.]+)", told).groups()
    )
    assert need > 122
    assert has == 80.0
    assert short == pytest.approx(need - has, abs=0.11)
    assert "lora=LoraOptions()" in told
    assert fits(replace(settings, gpus=8), shape(QWEN_8), have(8, 80))


def test_what_is_said_to_be_enough_is_enough():
    settings, resources = VerlSettings("x", gpus=2), have(8, 80)
    assert "enough would be gpus=4" in refusal(settings, shape(LLAMA_8), resources)
    assert fits(replace(settings, gpus=4), shape(LLAMA_8), resources)


def test_weights_that_stay_beside_vllm_ask_for_offload_or_a_smaller_share():
    """On four GPUs 32 GB of state are kept on each beside the 72 GiB that vLLM takes."""
    settings = VerlSettings("x", gpus=4, gpu_memory=0.9)
    told = refusal(settings, shape(LLAMA_8), have(4, 80))
    assert "each GPU while it serves needs" in told
    assert "offload=True" in told
    assert fits(replace(settings, offload=True), shape(LLAMA_8), have(4, 80))


def test_a_context_that_vllm_s_share_can_t_hold_is_refused():
    """131,072 tokens of 128 KiB are 16 GiB; with weights of 15 GiB they don't fit into a half of 48."""
    settings = VerlSettings("x", gpus=8, serving_gpus=8, pack_tokens=8192)
    told = refusal(settings, replace(shape(LLAMA_8), context=131072), have(16, 48))
    assert "vLLM's share of each GPU needs" in told
    assert "gpu_memory=0.9" in told
    assert "context=65536" in told


def test_offload_needs_main_memory():
    settings = VerlSettings("x", gpus=4, offload=True)
    told = refusal(settings, shape(LLAMA_8), have(4, 80, memory=64))
    assert "main memory of each machine needs" in told


def test_a_critic_is_counted():
    settings = VerlSettings("x", gpus=4)
    assert fits(settings, shape(LLAMA_8), have(4, 80), lightning.GRPO())
    assert refusal(settings, shape(LLAMA_8), have(4, 80), lightning.PPO())


def test_a_critic_that_tells_values_while_servers_answer_is_counted_there():
    """Its state of 12 bytes a parameter, and a pass: what is gathered of it, and one layer's activations."""
    layer = 16384 * (2 * (6 * 1024 + 4 * 3072 + 4 * 3072) + 8 * 1024 + 4 * 3072)
    gathered = policy_memory(VerlSettings("x"), shape(QWEN_06), 1).gathered
    beside = 12 * 596_049_920 + gathered + layer
    for offload, moved in ((False, 0), (True, 8 * 596_049_920)):
        settings = VerlSettings("x", gpus=1, offload=offload)
        plain, valued = (
            needs(settings, shape(QWEN_06), have(1, 80), algorithm)["each GPU while it serves"]
            for algorithm in (lightning.GRPO(), lightning.PPO())
        )
        assert valued - plain == beside - moved


def test_a_reference_is_counted_in_main_memory_and_in_the_advice():
    """Four bytes of 8 B parameters are 30 GiB, and four processes more."""
    settings, resources = VerlSettings("x", gpus=4), have(4, 80, memory=30)
    assert fits(settings, shape(LLAMA_8), resources)
    held = lightning.GRPO(kl=0.1)
    told = refusal(settings, shape(LLAMA_8), resources, held)
    assert "main memory of each machine needs" in told
    assert "enough would be lora=LoraOptions();" in told  # with LoRA the start itself is the reference
    assert fits(replace(settings, lora=LoraOptions()), shape(LLAMA_8), resources, held)


def test_what_a_run_needs_beside_the_policy_is_that_of_all_its_phases():
    plain, with_lora = VerlSettings("x"), VerlSettings("x", lora=LoraOptions())
    grpo, held, ppo = lightning.GRPO(), lightning.GRPO(kl=0.1), lightning.PPO()
    assert networks_beside(plain, [grpo]) == (False, False)
    assert networks_beside(plain, [held, ppo]) == networks_beside(plain, [ppo, held]) == (True, True)
    assert networks_beside(with_lora, [held, grpo]) == (False, False)
    assert networks_beside(with_lora, [grpo, held]) == (False, True)


def test_without_sleep_serving_and_training_share_a_gpu_all_the_time():
    size = have(1, 40)
    turns = needs(VerlSettings("x", gpus=1), shape(QWEN_06), size)
    at_once = needs(VerlSettings("x", gpus=1, sleep=False), shape(QWEN_06), size)
    apart = needs(VerlSettings("x", gpus=1, serving_gpus=1), shape(QWEN_06), size)
    trains = "each GPU while it trains"
    assert at_once[trains] - turns[trains] == 20 * GIB
    assert [what for what in apart if "serves" in what] == []


def test_where_nothing_is_known_of_gpus_the_needs_are_told():
    unknown = Resources((Machine((), None),), "this machine")
    found = check_memory(VerlSettings("x", gpus=8), shape(LLAMA_8), unknown, [])
    assert found.verdict == "unknown"
    assert re.search(r"each GPU while it trains [\d.]+ GiB, vLLM's share", found.told)


def test_on_a_cpu_main_memory_is_what_counts(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    settings, here = VerlSettings("x", gpus=2), Resources((Machine((), 24 * GIB),), "this machine")
    assert fits(settings, measure("tiny", None), here)
    told = refusal(settings, shape(LLAMA_8), here)
    assert "main memory needs" in told
    assert "lora=LoraOptions()" in told


def test_lora_is_told_to_be_enough_only_where_it_is():
    settings = VerlSettings("x", gpus=1, lora=LoraOptions())
    assert fits(settings, shape(QWEN_8, 4096), have(1, 141))
    told = refusal(VerlSettings("x", gpus=1), shape(QWEN_8, 4096), have(1, 141))
    assert "lora=LoraOptions()" in told.partition("some help")[0]


def test_a_backend_object_is_refused_as_its_settings_are():
    assert "does not fit" in refusal(VerlBackend("tiny", gpus=1), shape(QWEN_8), have(1, 80))


def test_the_machine_s_own_memory_is_found():
    resources = find_resources(VerlSettings("x"))
    assert resources.memory
    assert resources.memory > GIB


def test_a_cluster_that_is_not_there_is_named():
    with pytest.raises(BackendError, match=r"address='ray://127\.0\.0\.1:1'"):
        find_resources(VerlSettings("x", address="ray://127.0.0.1:1"))


def test_a_cluster_says_what_its_machines_have():
    """A real one, which says that it has two GPUs; how large they are only they could tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        ray.init("local", num_cpus=1, num_gpus=2, include_dashboard=False, log_to_driver=False)
        try:
            resources = find_resources(VerlSettings("x", address="auto"))
            assert ray.is_initialized()  # it was there before, so it stays
        finally:
            ray.shutdown()
    assert (resources.counts, resources.source) == ((2,), "Ray at 'auto'")
    assert resources.smallest is None or resources.smallest > GIB
    assert resources.memory


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
