"""The verl backend's refusals, by name, before anything is started."""

from __future__ import annotations

import fnmatch
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

import ray
from omegaconf import OmegaConf

from lightning_core.algorithms.policy_gradient import GRPO, PPO
from lightning_core.backends.settings import LoraOptions
from lightning_core.backends.verl.backend import VerlBackend
from lightning_core.backends.verl.preflight import estimate
from lightning_core.backends.verl.resources import Machine, Resources, check_gpus, find_resources
from lightning_core.backends.verl.settings import INSTEAD, PARTS, VerlSettings, flat
from lightning_core.backends.weights.sizes import measure
from lightning_core.errors import BackendError, ConfigError, TrainingError, UnsupportedError
from tests.verl.conftest import import_verl

ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(scope="module", autouse=True)
def verl() -> None:
    import_verl()


async def refused(error: type[Exception], words: str, **options: Any) -> None:
    """A start with these options ends in that error, and leaves no Ray behind that was not there."""
    before = ray.is_initialized()
    with pytest.raises(error, match=words):
        await VerlBackend("tiny", **options).start()
    assert ray.is_initialized() == before


async def test_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_PLATFORM")
    await refused(ConfigError, r"needs 999 GPUs and this machine has \d+; .*backend=\"local\"", gpus=999)


async def test_a_critic_that_does_not_fit_beside_the_policy() -> None:
    """As many processes as main memory holds without one; the critic takes one more for each."""
    size, resources = measure("tiny", None), find_resources(VerlSettings("tiny"))
    most = max(
        n for n in range(1, 999) if not estimate(VerlSettings("tiny", gpus=n), size, resources, []).missing
    )
    backend = VerlBackend("tiny", gpus=most)
    backend.check(PPO())
    with pytest.raises(ConfigError, match="does not fit on this machine: main memory needs"):
        await backend.start()


@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
async def test_what_does_not_train_on_a_processor(strategy: Any) -> None:
    await refused(ConfigError, f"strategy='{strategy}' needs GPUs: .*'fsdp2' alone", strategy=strategy)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (f"{ROLLOUT}.max_num_seq", 8, r"rollout has no 'max_num_seq'; did you mean 'max_num_seqs'\?"),
        ("actor_rollout_ref.rolout.n", 8, r"has no 'rolout'; did you mean 'rollout'\?"),
        (f"{ROLLOUT}.max_num_seqs", "many", r"max_num_seqs='many': it is a number, such as \d+"),
        (f"{ROLLOUT}.enforce_eager", 3, "enforce_eager=3: it is true or false"),
    ],
)
async def test_overrides_that_verl_does_not_know(key: str, value: object, words: str) -> None:
    await refused(ConfigError, words, gpus=1, overrides={key: value})


async def test_overrides_of_verls_own_are_taken_over_ours_and_engine_options_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lightning_core.backends.verl.configuration import make_config
    from lightning_core.backends.verl.settings import verl_values

    engine = f"{ROLLOUT}.engine_kwargs.vllm"
    overrides = {f"{ROLLOUT}.max_num_seqs": 7, f"{engine}.swap_space": 2, f"{engine}.block_size": 32}
    settings = VerlSettings("tiny", overrides=overrides)
    for device in ("cpu", "cuda"):
        monkeypatch.setenv("VERL_PLATFORM", device)
        values = verl_values(settings, folder=Path("model"), context=64, gpus=1)
        rollout = make_config(values, "fsdp2").actor_rollout_ref.rollout
        assert rollout.max_num_seqs == 7
        assert rollout.engine_kwargs.vllm.items() >= {"swap_space": 2, "block_size": 32}.items()


@pytest.mark.parametrize("installed", [True, False])
async def test_without_flash_attention_torchs_own_is_used_and_a_critic_refused(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    from lightning_core.backends.verl import settings as read
    from lightning_core.backends.verl.configuration import make_config

    monkeypatch.setenv("VERL_PLATFORM", "cuda")
    monkeypatch.setattr(read, "find_spec", lambda name: object() if installed else None)
    backend = VerlBackend("tiny")
    values = read.verl_values(backend, folder=Path("model"), context=64, gpus=1)
    model = make_config(values, "fsdp2").actor_rollout_ref.model
    assert model.use_remove_padding is installed
    assert model.override_config.get("attn_implementation", "flash") == ("flash" if installed else "sdpa")
    backend._check_attention([GRPO()])
    with nullcontext() if installed else pytest.raises(ConfigError, match="pip install flash-attn"):
        backend._check_attention([PPO()])


def test_what_is_refused_among_overrides_is_verl_s() -> None:
    """Each pattern meets a key that verl has, so that no refusal outlives what it is about."""
    from lightning_core.backends.verl.configuration import make_config

    config = make_config({f"{ROLLOUT}.enable_sleep_mode": False}, "fsdp2")  # a field that no file has
    assert set(PARTS) < set(config)
    known = [key for key, _ in flat(OmegaConf.to_container(config.actor_rollout_ref))]
    likes = [like for each in INSTEAD.values() for like in each.split()]
    assert [like for like in likes if not fnmatch.filter(known, like)] == []


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2", "megatron"])
def test_verl_has_every_setting_of_ours(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_core.backends.verl.configuration import make_config
    from lightning_core.backends.verl.settings import verl_values

    lora = LoraOptions(rank=8) if strategy != "megatron" else None
    settings = VerlSettings("tiny", strategy=strategy, lora=lora, serving_gpus=1)
    for device in ("cuda", "cpu") if strategy != "megatron" else ("cuda",):
        monkeypatch.setenv("VERL_PLATFORM", device)
        values = verl_values(settings, folder=Path("model"), context=64, gpus=1)
        engines = make_config(values, strategy).actor_rollout_ref
        engine = "megatron" if strategy == "megatron" else "fsdp_config"
        policy, reference = engines.actor[engine], engines.ref[engine]
        assert policy.dtype == reference.dtype == ("bfloat16" if device == "cuda" else "float32")
        assert policy.get("mixed_precision") == reference.get("mixed_precision")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379"])
async def test_a_ray_cluster_that_is_not_there(address: str) -> None:
    words = rf"can't reach a Ray cluster at address='{address}': .*ray status"
    await refused(BackendError, words, gpus=1, address=address)


@pytest.mark.parametrize("found", ["0.8.3", "0.10.0"])
def test_a_verl_outside_the_range(found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_core.backends.verl.cluster import _check_version

    folder = tmp_path / f"verl-{found}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: verl\nVersion: {found}\n")
    _check_version()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"verl {found} is outside .*pip install 'verl>=0\.9\.1,<0\.10'"):
        _check_version()


def test_settings_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel=3 does not divide the 2 GPUs"):
        check_gpus(VerlSettings("tiny", gpus=2, tensor_parallel=3), Resources((Machine((1, 1), 1),), "here"))
    with pytest.raises(ConfigError, match="sleep=True is for GPUs that serve and train in turn"):
        VerlBackend("tiny", serving_gpus=1, sleep=True)
    with pytest.raises(UnsupportedError, match=r"staleness=1 .*sleep=False"):
        VerlBackend("tiny", gpus=1, sleep=True).check(GRPO(staleness=1))
    VerlBackend("tiny", gpus=1, sleep=False).check(GRPO(staleness=1))


def test_weights_in_4_bits_are_for_the_local_backend() -> None:
    with pytest.raises(UnsupportedError, match=r"load_in_4bit=True.* is for the local backend: verl holds"):
        VerlBackend("tiny", lora=LoraOptions(load_in_4bit=True))


def test_what_is_not_passed_on_to_megatron() -> None:
    with pytest.raises(
        UnsupportedError, match=r"lora=\.\.\. with strategy='megatron' .*'fsdp2', or leave lora"
    ):
        VerlBackend("tiny", strategy="megatron", lora=LoraOptions())
    backend = VerlBackend("tiny", gpus=1, strategy="megatron")
    backend.check(GRPO())
    with pytest.raises(UnsupportedError, match=r"'ppo' has a critic, .*'fsdp2', or an algorithm without"):
        backend.check(PPO())


@pytest.mark.parametrize(("strategy", "error"), [("fsdp2", TrainingError), ("megatron", BackendError)])
def test_a_gradient_that_is_not_finite_ends_the_run_where_its_step_was_made(
    strategy: Any, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning_core.backends.verl.cluster import Cluster
    from lightning_core.backends.verl.learning import Learner

    monkeypatch.delenv("VERL_PLATFORM")  # Megatron needs GPUs
    settings = VerlSettings("tiny", strategy=strategy)
    learner = Learner(Cluster(settings, Path("model"), 64, 1), settings, 1000)
    with pytest.raises(error, match=r"the gradient is not finite \(norm nan"):
        learner._refuse({"grad_norm": float("nan"), "loss": 0.5}, 0)


async def test_a_model_whose_context_is_too_short() -> None:
    await refused(ConfigError, r"context=999999 is above what model .* was made for", context=999999)
