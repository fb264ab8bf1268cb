"""A run at a service counts what it pays for, and ends in order at its ceiling."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker", reason="Tinker's client lives in an environment of its own: make test-tinker")
pytest.importorskip("skyrl", reason="its server lives in an environment of its own: make test-tinker")

from lightning_core.records.types import Call, Metrics, Run
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.summary import Summary
from research.tinker.server import Server
from tests.tinker.job import GROUP_SIZE, TASKS_PER_STEP, main

pytestmark = [
    # the client leaves its connections open when it is closed
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(3600),
]
ROLLOUTS = TASKS_PER_STEP * GROUP_SIZE


def read(folder: Path) -> tuple[Run, list[Metrics], list[Call]]:
    """The run, its steps, and the calls of its rollouts."""

    async def reading() -> tuple[Run, list[Metrics], list[Call]]:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            (run,) = await store.list_runs()
            rollouts = await store.find_rollouts(run.id, split="train")
            calls = await store.get_calls([each.id for each in rollouts])
            return run, list(await store.list_metrics(run.id)), [c for each in calls.values() for c in each]

    return asyncio.run(reading())


def tokens(calls: list[Call]) -> dict[str, float]:
    """The tokens of calls whose replies were trained on once each: all but the last one are read then."""
    prompts = [len(call.prompt_ids or ()) for call in calls]
    replies = [len(choice.completion_ids or ()) for call in calls for choice in call.choices]
    return {
        "service_prompt_tokens": sum(prompts),
        "service_sampled_tokens": sum(replies),
        "service_trained_tokens": sum(prompts) + sum(replies) - len(calls),
    }


def counted(metrics: Metrics) -> dict[str, Any]:
    return {name: value for name, value in metrics.values.items() if name.startswith("service_")}


def test_a_run_ends_in_order_at_its_ceiling_and_goes_on_with_a_higher_one(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    main(server.url, folder, 3, ceiling=ROLLOUTS)  # the first prompt alone is longer
    run, (first,), calls = read(folder)
    assert run.status == "finished"
    assert counted(first) == tokens(calls)
    assert len(calls) == ROLLOUTS
    assert [each.name for each in (folder / "checkpoints").iterdir()] == ["step-000001"]
    assert (folder / "policy" / "model.safetensors").is_file()
    summary = Summary.model_validate_json((folder / "summary.json").read_bytes())
    assert summary.spent == counted(first)

    main(server.url, folder, 3, ceiling=int(sum(summary.spent.values())))  # reached, by a hair
    assert read(folder)[1:] == ([first], calls)

    main(server.url, folder, 3, ceiling=int(sum(summary.spent.values())) + 1)
    run, (_, second), calls = read(folder)
    assert run.status == "finished"
    assert counted(second) == tokens(calls)
    assert len(calls) == 2 * ROLLOUTS
    assert capsys.readouterr().out.count("rollout\n") == 2 * ROLLOUTS
