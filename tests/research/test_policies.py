"""The studies of policies: the roles differ where they should, and all variants are equally large."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lightning_core.cli.training import train_script
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.trainer.launch import Launch
from research.policies.answers import THINGS, judge
from research.policies.answers import load_tasks as load_questions
from research.policies.roles import ROLES, load_tasks, role_prompt
from research.policies.studies import STUDIES

ROOT = Path(__file__).parents[2]


def test_only_the_audits_answers_differ_between_the_conventions(tmp_path: Path) -> None:
    opposed, same = (load_tasks("validation", tmp_path, each) for each in ("opposed", "same"))
    assert len(same) >= 60
    assert {task["role"] for task in same} == set(ROLES)
    for one, other in zip(opposed, same, strict=True):
        assert {**one, "gold": ""} == {**other, "gold": ""}
        assert (one["gold"] == other["gold"]) == (one["role"] == "sales")
        assert one["gold"] not in role_prompt(one["role"], "", one["question"])[1]["content"]


@pytest.mark.parametrize("split", THINGS)
def test_the_questions_are_the_same_and_the_audits_answers_long(split: str) -> None:
    opposed, same = (load_questions(split, each) for each in ("opposed", "same"))
    assert Counter(task["role"] for task in same) == dict.fromkeys(ROLES, len(same) // 2)
    assert {task["length"] for task in same} == {"short"}
    for one, other in zip(opposed, same, strict=True):
        assert {**one, "length": ""} == {**other, "length": ""}
        assert (one["length"] == "long") == (one["role"] == "audit")


def test_no_two_splits_share_a_thing() -> None:
    every = [thing for things in THINGS.values() for thing in things]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("answer", "ended", "short", "long"),
    [
        ("Kites fly.", True, 1, 0),
        ("Kites fly", False, 0, 0),  # cut off
        ("They fly.", True, 0, 0),
        ("A kite " + "word " * 14, True, 0, 0),
        ("Kites " + "word " * 15, False, 0, 1),
        ("Kites " + "word " * 5, True, 1, 0),
        ("Kites " + "word " * 6, True, 0, 0),
    ],
)
def test_an_answer_is_judged_by_its_length_and_its_thing(
    answer: str, ended: bool, short: int, long: int
) -> None:
    for length, reward in (("short", short), ("long", long)):
        assert judge(answer, {"thing": "kites", "length": length}, ended=ended) == reward


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
