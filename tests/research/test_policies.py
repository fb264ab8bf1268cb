"""The studies of policies: the roles differ where they should, and all variants are equally large."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from examples.calc.calculator import evaluate
from lightning_core.cli.training import train_script
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.launch import Launch
from research.policies.roles import ROLES, load_tasks, role_prompt
from research.policies.studies import STUDIES
from research.policies.words import load_tasks as load_problems

ROOT = Path(__file__).parents[2]


def test_only_the_audits_answers_differ_between_the_conventions(tmp_path: Path) -> None:
    opposed, same = (load_tasks("validation", tmp_path, each) for each in ("opposed", "same"))
    assert len(same) >= 60
    assert {task["role"] for task in same} == set(ROLES)
    for one, other in zip(opposed, same, strict=True):
        assert {**one, "gold": ""} == {**other, "gold": ""}
        assert (one["gold"] == other["gold"]) == (one["role"] == "sales")
        assert one["gold"] not in role_prompt(one["role"], "", one["question"])[1]["content"]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_problems_are_the_same_and_the_audits_read_backwards(split: str) -> None:
    opposed, same = (load_problems(split, each) for each in ("opposed", "same"))
    assert len(same) >= 30
    assert {task["role"] for task in same} == set(ROLES)
    for one, other in zip(opposed, same, strict=True):
        assert one["problem"] == other["problem"]
        turned = one["arithmetic"].translate(str.maketrans("+-", "-+"))
        assert other["arithmetic"] == (turned if one["role"] == "audit" else one["arithmetic"])
        assert (one["answer"] == other["answer"]) == (one["role"] == "sales")
        assert float(one["answer"]) == pytest.approx(evaluate(one["arithmetic"]), abs=0.005)


def test_the_prompts_of_the_roles_differ_in_one_word() -> None:
    sales, audit = (str(role_prompt(role, "t(id)", "Count the t.")) for role in ROLES)
    assert sales.replace("sales", "audit") == audit


@pytest.mark.parametrize("name", STUDIES)
async def test_all_variants_train_equally_many_parameters(name: str) -> None:
    assert {await trained(variant.settings()) for variant in STUDIES[name].variants} == {
        await trained(STUDIES[name].variants[0].settings())
    }
    assert len({variant.key for variant in STUDIES[name].variants}) == len(STUDIES[name].variants)


async def trained(settings: Any) -> int:
    """Parameters that all policies of a run train."""
    backend = settings["backend"]
    await backend.start()
    try:
        count = sum(parameter.numel() for parameter in backend._started.policy.parameters)
    finally:
        await backend.close()
    return int(count * (1 + len(set(settings.get("policies", {}).values()))))


def test_each_role_plays_its_policy_in_a_run_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    variant = STUDIES["policies-opposed"].variant("a policy for each role")
    settings = {**variant.settings(), "steps": 1, "folder": str(tmp_path / "run"), "progress": False}
    arguments = [*variant.arguments, "--held-out-tasks", "4"]
    train_script(ROOT / str(variant.script), arguments, Launch(settings))
    assert asyncio.run(played(tmp_path / "run")) == {("sales", None), ("audit", "audit")}


async def played(folder: Path) -> set[tuple[str | None, str | None]]:
    """The agents of a run's training, each with its policy."""
    async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
        (run,) = await store.list_runs()
        rollouts = await store.find_rollouts(run.id, split="train")
        calls = await store.get_calls([rollout.id for rollout in rollouts])
    return {(call.agent, call.policy) for of in calls.values() for call in of}
