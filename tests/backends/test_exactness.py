"""A network that would be served or trained as another one is refused when it is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import lightning_core as lightning
from lightning_core.backends.local import LocalBackend
from lightning_core.backends.local.decoder import LlamaDecoder, NetworkDecoder, make_decoder
from lightning_core.backends.local.exactness import Exactness
from lightning_core.backends.local.model import load_model, make_ready
from lightning_core.backends.local.optimizer import Optimizer
from lightning_core.backends.local.policy import Policy
from lightning_core.backends.local.versions import make_engine
from lightning_core.backends.settings import TrainingSettings
from lightning_core.backends.weights.model import Model
from lightning_core.backends.weights.sources import load_tokenizer, tiny_folder
from lightning_core.errors import ConfigError, ModelError
from research.families import CONTEXT, random_network, small_config
from tests.backends.serving import ask, serving


class LeakyConfig(Qwen3Config):  # type: ignore[misc]
    model_type = "leaky"


class LeakyForCausalLM(Qwen3ForCausalLM):  # type: ignore[misc]
    """Each token's embedding has a share of the one before it in the pass, whosever that is."""

    config_class = LeakyConfig

    def __init__(self, config: LeakyConfig) -> None:
        super().__init__(config)
        self.model.embed_tokens.register_forward_hook(lambda module, args, x: x + 0.3 * x.roll(1, 1))


@pytest.fixture
def leaky(qwen: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder of a family that an app has registered."""
    AutoConfig.register("leaky", LeakyConfig)
    AutoModelForCausalLM.register(LeakyConfig, LeakyForCausalLM)
    yield changed(qwen, tmp_path / "leaky", model_type="leaky", architectures=["LeakyForCausalLM"])
    CONFIG_MAPPING._extra_content.pop("leaky")
    MODEL_FOR_CAUSAL_LM_MAPPING._extra_content.pop(LeakyConfig)


def changed(source: Path, folder: Path, **config: Any) -> Path:
    """A copy of a model's folder with another configuration."""
    shutil.copytree(source, folder)
    (folder / "config.json").write_text(json.dumps(json.loads((source / "config.json").read_text()) | config))
    return folder


def check_of(model: Model) -> Exactness:
    return Exactness(model.network, model.sample, model.context)


async def test_a_family_whose_layers_leak_between_sequences_is_refused_by_name_and_nats(leaky: Path) -> None:
    with pytest.raises(ModelError, match=r"family 'leaky' can't be served exactly.* nats from .* plain"):
        await LocalBackend(leaky).start()
    with pytest.raises(ModelError, match="'leaky'"):
        await LocalBackend(leaky).open_engine(str(leaky), 1)


def test_a_run_with_it_ends_before_its_first_rollout(leaky: Path, tmp_path: Path) -> None:
    asked: list[lightning.Task] = []

    def solve(task: lightning.Task) -> float:
        asked.append(task)
        return 0.0

    trainer = lightning.Trainer(
        model=str(leaky), folder=tmp_path / "run", algorithm=lightning.GRPO(group_size=2), progress=False
    )
    with pytest.raises(ModelError, match="'leaky'"):
        trainer.fit(solve, train=[{"n": 1}])
    assert not asked


def test_the_training_pass_is_checked_apart_from_the_engine(leaky: Path) -> None:
    model = load_model(leaky, device="cpu")
    optimizer = Optimizer(Policy(model, None), TrainingSettings(), source=str(leaky))
    with pytest.raises(ModelError, match="family 'leaky' can't be trained exactly"):
        check_of(model).check_training(optimizer.logprobs, torch.float32)


def test_the_check_leaves_the_network_as_it_was(folder: Path) -> None:
    model = load_model(folder, device="cpu")
    optimizer = Optimizer(Policy(model, None), TrainingSettings(), source=str(folder))
    before = model.network.config.to_dict()
    check_of(model).check_training(optimizer.logprobs, torch.float32)
    assert model.network.config.to_dict() == before
    assert all(p.grad is None for p in model.network.parameters())


def test_an_error_that_a_network_raises_in_the_check_names_its_family(qwen: Path) -> None:
    check = check_of(load_model(qwen, device="cpu"))
    with pytest.raises(ModelError, match=r"family 'qwen3' can't be trained .*RuntimeError: sizes differ"):
        check.check_training(
            lambda trajectories: (_ for _ in ()).throw(RuntimeError("sizes differ")), torch.float32
        )


def test_an_error_before_the_first_token_names_the_family_too() -> None:
    network = random_network(small_config("recurrent_gemma"))
    make_ready(network, torch.device("cpu"))
    model = Model("random", network, load_tokenizer(str(tiny_folder())), CONTEXT, frozenset())
    with pytest.raises(ModelError, match=r"family 'recurrent_gemma' can't be served .*ValueError"):
        make_engine(model, network, 1, torch.float32, 4, check_of(model))


def test_a_network_the_fused_decoder_gets_wrong_is_run_as_it_is(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(llama, device="cpu")
    model.network.model.layers[0].mlp.act_fn = torch.nn.GELU()  # its config still says silu
    assert isinstance(make_decoder(model.network, torch.float32, 64), LlamaDecoder)
    engine = make_engine(model, model.network, 1, torch.float32, 4, check_of(model))
    assert isinstance(engine._decoder, NetworkDecoder)
    assert "LlamaDecoder is not exact, so a slower way is tried" in caplog.text


ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("limit", "config"),
    [
        ("longrope's original_max_position_embeddings", {"rope_parameters": ROPE}),
        ("floor_scale", {"attn_temperature_tuning": True, "floor_scale": 64}),
    ],
)
async def test_the_context_ends_where_all_positions_would_turn_otherwise(
    llama: Path, tmp_path: Path, limit: str, config: dict[str, Any]
) -> None:
    long = changed(llama, tmp_path / "long", **config)
    with pytest.raises(ModelError, match=f"{limit}: 2 to 64 tokens"):
        load_model(long, context=65)
    with pytest.raises(ConfigError, match=f"{limit}: 64 tokens"):
        LocalBackend(long, context=65).plan_run([])
    assert load_model(long).context == 64
    async with serving(long) as backend:
        assert (await ask(backend, "fox", max_tokens=4)).ids
