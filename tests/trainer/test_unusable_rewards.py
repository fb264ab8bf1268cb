"""Rewards in a store that can't be used: their group is skipped and counted, and the run goes on."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
from pathlib import Path

import pytest

import lightning_core as lightning
from lightning_core.records.types import Metrics
from lightning_core.stores.rows import REWARDS
from lightning_core.stores.sqlite import SqliteStore
from tests.trainer.versioned import fit


def metrics_of(folder: Path) -> list[Metrics]:
    async def read() -> list[Metrics]:
        async with SqliteStore(f"sqlite:///{folder / 'store.db'}") as store:
            return await store.list_metrics(folder.name)

    return asyncio.run(read())


def spoil(folder: Path, values: dict[int, float], *, groups: int, on_the_way: bool = False) -> None:
    """Writes rewards as another version or program might: on the first rollouts of so many groups, in the
    order of step, of a run that is to make its first update again."""
    with sqlite3.connect(folder / "store.db") as store:
        found = store.execute(
            "SELECT id, group_id FROM rollouts WHERE split = 'train' AND step = 0 ORDER BY seq"
        )
        by_group: dict[str, list[str]] = {}
        for rollout_id, group_id in found:
            by_group.setdefault(group_id, []).append(rollout_id)
        for members in list(by_group.values())[:groups]:
            for place, value in values.items():
                if on_the_way:
                    row = (members[place], 1, value, "intermediate", None, "c", "app", None, 1.0, None)
                    store.execute(REWARDS.insert, row)
                else:
                    of = (value, members[place])
                    store.execute("UPDATE rollouts SET reward = ? WHERE id = ?", of)
                    store.execute("UPDATE rewards SET value = ? WHERE rollout_id = ?", of)
    store.close()
    shutil.rmtree(folder / "checkpoints" / "step-000001")


@pytest.mark.parametrize("on_the_way", [False, True])
@pytest.mark.parametrize("values", [{0: 1.7e308, 1: -1.7e308}, {0: 1e200}, {1: float("-inf")}])
def test_a_group_whose_rewards_can_not_be_used_is_skipped_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, values: dict[int, float], on_the_way: bool
) -> None:
    fit(tmp_path / "run", steps=1)
    spoil(tmp_path / "run", values, groups=1, on_the_way=on_the_way)
    with caplog.at_level(logging.WARNING):
        fit(tmp_path / "run", steps=2, resume=True)
    first, second = metrics_of(tmp_path / "run")
    assert (first.values["groups"], first.values["unusable_groups"]) == (2, 1)
    assert 0 <= first.values["reward"] <= 1  # the mean of the others
    assert first.values["policy_version"] == 1  # an update was made from the other group
    assert second.values["unusable_groups"] == 0
    value = next(iter(values.values()))
    named = [line for line in caplog.messages if repr(value) in line and "from -1e9 to 1e9" in line]
    assert len(named) == 1
    assert "group run-t0-0 is left out: rollout run-t0-0-" in named[0]


def test_a_step_of_which_nothing_can_be_used_makes_no_update_and_the_run_goes_on(tmp_path: Path) -> None:
    fit(tmp_path / "run", steps=1)
    spoil(tmp_path / "run", {0: 1e308, 1: 1e308, 2: -1e308}, groups=2)
    fit(tmp_path / "run", steps=2, resume=True)
    first, second = metrics_of(tmp_path / "run")
    assert (first.values["unusable_groups"], first.values["skipped_updates"]) == (2, 1)
    assert "reward" not in first.values
    assert second.values["policy_version"] == 1


def test_an_evaluation_counts_a_reward_that_can_not_be_used_as_a_failure(tmp_path: Path) -> None:
    fit(tmp_path / "run", steps=1)
    with sqlite3.connect(tmp_path / "run" / "store.db") as store:
        store.execute("UPDATE rollouts SET reward = 1.7e308 WHERE split = 'validation'")
    store.close()
    fit(tmp_path / "run", steps=1, resume=True)
    summary = (tmp_path / "run" / "summary.json").read_text()
    assert '"success":0.0' in summary.replace(" ", "")


def test_a_credit_method_of_a_user_that_gives_no_number_loses_its_groups_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(group):
        from lightning_core.credit.base import Comparison

        nan = {t.key: float("nan") for each in group for t in each.transitions if t.trained}
        return [Comparison((nan,), baseline=False)]

    algorithm = lightning.GRPO(group_size=3, tasks_per_step=2, credit=broken)
    fit(tmp_path / "run", steps=1, algorithm=algorithm)
    (only,) = metrics_of(tmp_path / "run")
    assert (only.values["unusable_groups"], only.values["skipped_updates"]) == (2, 1)
    assert "broken" in caplog.text
