"""The plan of a run on verl and vLLM starts nothing, also where neither is installed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

import lightning_core as lightning
from lightning_core.backends.preflight import RunPlan
from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.backends.verl.preflight import plan_run
from lightning_core.backends.verl.resources import Machine, Resources
from lightning_core.backends.verl.settings import VerlSettings
from tests.verl.test_fit import have
from tests.verl.test_memory import LLAMA_8, QWEN_06, graphics, shape

__all__ = ["graphics"]
pytestmark = pytest.mark.filterwarnings("ignore")  # of verl and its dependencies, at their import
HERE = importlib.util.find_spec("verl") is not None


def told(found: RunPlan, name: str) -> str:
    (value,) = (value for fact, value in found.facts if fact == name)
    return value


def verdict(found: RunPlan, name: str) -> tuple[str, str]:
    (check,) = (check for check in found.checks if check.name == name)
    return check.verdict, check.told


def test_a_plan_tells_model_machines_memory_and_rate():
    settings = VerlSettings("x", gpus=8, nodes=2, tensor_parallel=2)
    cluster = Resources(tuple(Machine((80 << 30,) * 8, 2000 << 30) for _ in range(2)), "Ray at 'auto'")
    found = plan_run(settings, shape(LLAMA_8), [lightning.GRPO()], cluster)
    assert told(found, "model") == "model, 8.03 B parameters"
    assert told(found, "machines") == "2 x 8 GPUs train (fsdp2) and serve in turn; 8 vLLM replicas of 2"
    assert told(found, "learning rate") == "1.31e-06 after 3 steps"
    assert "weights 1.9 GiB, gradients 1.9 GiB, Adam 3.7 GiB" in told(found, "memory to train")
    assert "weights 7.5 GiB" in told(found, "memory to serve")
    assert verdict(found, "GPUs") == ("ok", "8 GPUs on each of 2 machines needed, Ray at 'auto' has 8 + 8")
    assert verdict(found, "memory")[0] == "ok"
    assert told(found, "context").startswith("8,192 tokens")


def test_gpus_that_serve_apart_and_lora_are_told():
    settings = VerlSettings("x", gpus=4, serving_gpus=2, lora=lightning.LoraOptions(rank=16))
    found = plan_run(settings, shape(QWEN_06), [lightning.GRPO()], have(6, 80))
    assert told(found, "machines") == "1 x 4 GPUs train (fsdp2) and 1 x 2 others serve; 2 vLLM replicas of 1"
    assert told(found, "trained").startswith("LoRA of rank 16: 10.1 M parameters")


def test_too_few_gpus_and_too_little_memory_fail_and_say_what_to_do():
    found = plan_run(VerlSettings("x", gpus=2), shape(LLAMA_8), [lightning.GRPO()], have(1, 80))
    assert verdict(found, "GPUs")[0] == verdict(found, "memory")[0] == "fails"
    assert "needs 2 GPUs and this machine has 1; lower gpus" in verdict(found, "GPUs")[1]
    assert "enough would be gpus=4" in verdict(found, "memory")[1]


def test_critic_and_reference_come_on_top():
    settings, resources = VerlSettings("x", gpus=1), have(1, 80)
    plain, critic, both = (
        plan_run(settings, shape(QWEN_06), algorithms, resources)
        for algorithms in (
            [lightning.GRPO()],
            [lightning.PPO()],
            [lightning.GRPO(kl=0.1), lightning.PPO()],
        )
    )
    assert "on top" not in told(plain, "memory to train")
    assert told(critic, "memory to train").endswith("; on top of that a critic")
    assert told(both, "memory to train").endswith("; on top of that a critic and a reference")
    assert verdict(plain, "memory")[1] != verdict(critic, "memory")[1] != verdict(both, "memory")[1]


def test_a_cluster_that_is_away_is_a_check_that_fails():
    found = plan_run(VerlSettings("x", address="ray://127.0.0.1:1"), shape(QWEN_06), [lightning.GRPO()])
    assert verdict(found, "Ray")[0] == "fails"
    assert "address='ray://127.0.0.1:1'" in verdict(found, "Ray")[1]
    assert verdict(found, "GPUs")[0] == verdict(found, "memory")[0] == "unknown"


@pytest.mark.skipif(HERE, reason="verl is installed here")
def test_where_verl_is_missing_that_is_told():
    found = plan_run(VerlSettings("x"), shape(QWEN_06), [lightning.GRPO()], have(1, 80))
    assert verdict(found, "verl") == (
        "fails",
        "not installed here: pip install 'agent-lightning-core[verl]'",
    )


@pytest.mark.skipif(not HERE, reason="needs verl")
def test_verl_checks_version_and_overrides():
    settings = VerlSettings("x", overrides={"actor_rollout_ref.rollout.max_num_batched_tokens": 4096})
    good = plan_run(settings, shape(QWEN_06), [lightning.GRPO()], have(1, 80))
    assert verdict(good, "verl")[0] == "ok"
    wrong = replace(settings, overrides={"actor_rollout_ref.rollout.max_num_batched_token": 4096})
    found = verdict(plan_run(wrong, shape(QWEN_06), [lightning.GRPO()], have(1, 80)), "verl")
    assert found[0] == "fails"
    assert "max_num_batched_tokens" in found[1]


def test_a_backend_that_is_not_started_tells_its_plan():
    found = VerlBackend("tiny", gpus=2).plan_run([lightning.GRPO()])
    assert told(found, "machines").startswith("1 x 2 GPUs train")
