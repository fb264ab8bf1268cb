"""Laws of a backend that the loop relies on: the same for the local one and for that of the tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import lightning_core as lightning
from lightning_core.backends.base import Batch, check_backend, check_versions
from lightning_core.dialects.upstream import ChatRequest, Upstream
from lightning_core.errors import ModelError
from lightning_core.records.types import Demonstration, Trajectory, Transition
from tests.backends.models import save_model
from tests.backends.scripted import ScriptedBackend

ASK = [{"role": "user", "content": "List the boats"}]
Make = Callable[[], Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model", "qwen3")


@pytest.fixture(params=["local", "scripted"])
def make(request: pytest.FixtureRequest, model: Path) -> Make:
    """Another backend of the same model."""
    if request.param == "scripted":
        return lambda: ScriptedBackend(model)
    return lambda: lightning.LocalBackend(model)


@pytest.fixture
async def backend(make: Make) -> AsyncIterator[Any]:
    made = make()
    await made.start()
    yield made
    await made.close()


async def ask(upstream: Upstream) -> tuple[int, list[int], list[int], list[float]]:
    """(version that answered, prompt ids, sampled ids, their log-probabilities)."""
    generation = await upstream.chat(ChatRequest(messages=ASK, max_tokens=3))
    deltas = [delta async for delta in generation]
    await generation.aclose()
    ids = [token for delta in deltas for token in delta.token_ids]
    assert deltas[-1].finish_reason in ("length", "stop")
    return (
        generation.policy_version,
        generation.prompt_ids,
        ids,
        [each for delta in deltas for each in delta.logprobs],
    )


async def batch(backend: Any) -> Batch:
    """Two rollouts of one call each, one better than the other."""
    trajectories = []
    for number, advantage in enumerate((1.0, -1.0)):
        version, prompt, ids, logprobs = await ask(backend.upstream)
        call = Transition(
            f"r{number}", "c", 0, "a", True, prompt, ids, logprobs, version, advantage=advantage
        )
        trajectories.append(Trajectory(f"r{number}", "g", "t", 0.5, (call,)))
    return Batch(0, tuple(trajectories))


async def test_every_sampled_token_has_an_id_and_a_log_probability(backend: Any) -> None:
    version, prompt, ids, logprobs = await ask(backend.upstream)
    assert version == backend.policy_version == 0
    assert prompt
    assert 0 < len(ids) == len(logprobs) <= 3
    assert all(value <= 0 for value in logprobs)
    assert isinstance(backend.upstream.decode(ids[0]), str)


async def test_an_update_is_seen_by_new_requests_once_it_is_published(backend: Any) -> None:
    metrics = await backend.update(await batch(backend), lightning.GRPO())
    assert {"loss", "grad_norm", "tokens"} <= metrics.keys()
    assert all(isinstance(value, float) for value in metrics.values())
    assert (await ask(backend.upstream))[0] == backend.policy_version == 0
    assert await backend.publish() == 1
    assert (await ask(backend.upstream))[0] == backend.policy_version == 1


async def test_what_was_saved_goes_on_at_its_version_and_is_whole(
    backend: Any, make: Make, tmp_path: Path
) -> None:
    await backend.update(await batch(backend), lightning.GRPO())
    await backend.publish()
    await backend.save(tmp_path / "step-000001")
    assert (tmp_path / "step-000001" / "model" / "config.json").exists()
    assert os.listdir(tmp_path) == ["step-000001"]
    other = make()
    await other.start()
    try:
        await other.load(tmp_path / "step-000001")
        assert other.policy_version == 1
        assert (await ask(other.upstream))[0] == 1
        assert await other.publish() == 2
    finally:
        await other.close()


async def test_a_version_is_served_exported_and_compared_without_a_start(
    backend: Any, make: Make, tmp_path: Path
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    await backend.export(before)
    await backend.update(await batch(backend), lightning.GRPO())
    await backend.publish()
    await backend.save(after)
    reader = make()
    for method in ("open_engine", "export_version", "compare_versions"):
        check_versions(reader, method)
    engine = await reader.open_engine(str(after), 7)
    assert (await ask(engine.upstream))[0] == 7
    await engine.close()
    await engine.close()
    await reader.export_version(str(after), tmp_path / "plain")
    assert (tmp_path / "plain" / "config.json").exists()
    changes = await reader.compare_versions(str(before), str(after))
    assert changes[0].relative
    assert not (await reader.compare_versions(str(after), str(tmp_path / "plain")))[0].relative
    with pytest.raises(ModelError):
        await reader.open_engine(str(tmp_path / "nowhere"), 1)
    await reader.close()


async def test_a_demonstration_is_encoded_as_the_engine_would_have_read_it(backend: Any) -> None:
    prompt, reply = backend.encode(Demonstration(messages=ASK, reply="SELECT 1"))
    assert prompt == (await ask(backend.upstream))[1]
    assert reply


async def test_what_only_some_algorithms_need_is_there(backend: Any, tmp_path: Path) -> None:
    for algorithm in (lightning.GRPO(), lightning.PPO(), lightning.DPO(), lightning.SFT()):
        check_backend(backend, algorithm, first_phase=False)
    made = await batch(backend)
    values = await backend.values(made.trajectories)
    assert values.keys() == {t.key for each in made.trajectories for t in each.transitions}
    await backend.export(tmp_path / "reference")
    await backend.set_reference(tmp_path / "reference")
