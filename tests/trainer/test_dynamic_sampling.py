"""Groups that say nothing are replaced by groups of other tasks, and a resumed run asks for the same ones."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections import Counter
from pathlib import Path

import openai
import pytest

import lightning_core as lightning
from lightning_core.algorithms.base import Algorithm
from lightning_core.backends.base import Batch
from lightning_core.errors import TrainingError
from lightning_core.records.types import Metrics, Rollout, Status
from lightning_core.stores.sqlite import SqliteStore
from lightning_core.tracing.scope import current_scope
from lightning_core.trainer.folder import RunFolder
from lightning_core.trainer.plan import make_tasks, spare_tasks, tasks_of_step
from tests.backends.scripted import ScriptedBackend

TASKS = make_tasks([{"number": n} for n in range(8)], "train")
GROUP, PER_STEP, SEED = 2, 3, 5
FIRST = [task.input["number"] for task in tasks_of_step(TASKS, 0, PER_STEP, SEED)]
SPARE = [
    task.input["number"] for task in spare_tasks(TASKS, tasks_of_step(TASKS, 0, PER_STEP, SEED), 0, SEED)
]


class App:
    """Rollouts of the `flat` tasks are all worth 1, those of the others 0 and 1 in turn."""

    def __init__(
        self, flat: set[object], *, broken: set[object] = frozenset(), on_the_way: bool = False
    ) -> None:
        self.flat, self.broken, self.on_the_way = flat, broken, on_the_way
        self.seen: Counter[object] = Counter()

    async def solve(self, task: lightning.Task) -> float:
        number = task.input["number"]
        self.seen[number] += 1
        turn = self.seen[number] % 2
        if number in self.broken:
            raise FileNotFoundError("gone")
        async with openai.AsyncOpenAI(api_key="none") as client:
            with lightning.agent("writer"):
                reply = await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": "go"}], max_completion_tokens=2
                )
        if self.on_the_way:
            lightning.reward(-0.05 * turn, call=reply)
        return 1.0 if number in self.flat else float(turn)


def fit(
    folder: Path, app: App, *, dynamic_sampling: int = 2, resume: bool = False, **settings: object
) -> None:
    lightning.Trainer(
        agents=["writer"],
        algorithm=lightning.GRPO(
            group_size=GROUP, tasks_per_step=PER_STEP, dynamic_sampling=dynamic_sampling
        ),
        steps=1,
        seed=SEED,
        folder=folder,
        resume=resume,
        progress=False,
        on_failure=lightning.FailurePolicy(retries=0),
        **{"backend": ScriptedBackend(), **settings},
    ).fit(app.solve, train=TASKS)


def recorded(folder: Path) -> tuple[list[Rollout], list[Metrics]]:
    async def read() -> tuple[list[Rollout], list[Metrics]]:
        async with SqliteStore(RunFolder(folder, resume=True).store_url) as store:
            return await store.find_rollouts(folder.name), await store.list_metrics(folder.name)

    return asyncio.run(read())


def test_a_flat_group_is_replaced_by_a_group_of_another_task(tmp_path):
    app = App({FIRST[0], SPARE[0]})
    fit(tmp_path / "run", app)
    # the first round brings the first spare task, flat too, the second round the next one
    assert set(app.seen) == {*FIRST, SPARE[0], SPARE[1]}
    rollouts, [metrics] = recorded(tmp_path / "run")
    assert metrics.values["added_groups"] == 2
    assert metrics.values["groups"] == PER_STEP + 2
    assert metrics.values["zero_variance_groups"] == 2
    assert metrics.values["rollouts"] == len(rollouts) == GROUP * (PER_STEP + 2)
    assert metrics.values["agent/writer/transitions"] == GROUP * PER_STEP


def test_a_group_that_differs_in_intermediate_rewards_alone_is_replaced_too(tmp_path):
    app = App({FIRST[0]}, on_the_way=True)
    fit(tmp_path / "run", app)
    assert set(app.seen) == {*FIRST, SPARE[0]}
    _, [metrics] = recorded(tmp_path / "run")
    assert metrics.values["added_groups"] == 1
    assert metrics.values["zero_variance_groups"] == 0  # the small difference is learnt from all the same


def test_no_more_rounds_are_made_than_asked_for(tmp_path):
    app = App({task.input["number"] for task in TASKS} - {FIRST[0]})
    fit(tmp_path / "run", app, dynamic_sampling=1)
    assert set(app.seen) == {*FIRST, SPARE[0], SPARE[1]}


def test_when_all_tasks_are_used_up_the_step_goes_on_with_what_there_is(tmp_path):
    app = App({task.input["number"] for task in TASKS} - {FIRST[0]})
    fit(tmp_path / "run", app, dynamic_sampling=9)
    assert app.seen == Counter({task.input["number"]: GROUP for task in TASKS})


def test_a_group_without_a_reward_is_replaced_and_a_full_step_is_left_alone(tmp_path):
    app = App(set(), broken={FIRST[1]})
    fit(tmp_path / "broken", app)
    assert set(app.seen) == {*FIRST, SPARE[0]}
    app = App(set())
    fit(tmp_path / "full", app)
    assert set(app.seen) == set(FIRST)


class Killed(Exception):
    """Stands for the end of the process between the rollouts and the update."""


class Dying(ScriptedBackend):
    async def update(self, batch: Batch, algorithm: Algorithm) -> dict[str, float]:
        raise Killed


def test_a_resumed_step_asks_for_the_same_groups_and_for_none_twice(tmp_path):
    app = App({FIRST[0], SPARE[0]})
    with pytest.raises(Killed):
        fit(tmp_path / "run", app, backend=Dying())
    before = dict(app.seen)
    fit(tmp_path / "run", app, resume=True)
    assert app.seen == before
    rollouts, [metrics] = recorded(tmp_path / "run")
    assert metrics.values["added_groups"] == 2
    assert len(rollouts) == GROUP * (PER_STEP + 2)


def fit_two_steps(folder: Path, *, deadly: bool, resume: bool = False) -> None:
    """Two steps, of which the second has a flat group; `deadly`: the first rollout in its place kills all."""
    flat = tasks_of_step(TASKS, 1, PER_STEP, SEED)[0].input["number"]
    app = App({flat})

    async def solve(task: lightning.Task) -> float:
        scope = current_scope()
        assert scope is not None
        if deadly and f"-t1-{PER_STEP}-" in scope.rollout_id:
            os.kill(os.getpid(), signal.SIGKILL)
        return await app.solve(task)

    lightning.Trainer(
        agents=["writer"],
        algorithm=lightning.GRPO(group_size=GROUP, tasks_per_step=PER_STEP, dynamic_sampling=1),
        backend=ScriptedBackend(),
        steps=2,
        checkpoint_every=2,
        seed=SEED,
        folder=folder,
        resume=resume,
        progress=False,
    ).fit(solve, train=TASKS)


def test_groups_added_and_withdrawn_after_a_kill_are_asked_for_again(tmp_path):
    folder = tmp_path / "run"
    child = multiprocessing.get_context("spawn").Process(
        target=fit_two_steps, args=(folder,), kwargs={"deadly": True}
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    fit_two_steps(folder, deadly=False, resume=True)
    rollouts, metrics = recorded(folder)
    statuses = Counter(rollout.status for rollout in rollouts if rollout.step == 1)
    assert statuses == {Status.SUCCEEDED: GROUP * (PER_STEP + 1), Status.CANCELLED: GROUP}
    assert metrics[1].values["failures"] == 0
    assert metrics[1].values["added_groups"] == 1
    assert metrics[1].values["agent/writer/transitions"] == GROUP * PER_STEP


def test_spare_tasks_are_the_others_each_once_and_the_same_again():
    doubled = [*TASKS, *TASKS[:4]]
    drawn = tasks_of_step(doubled, 3, PER_STEP, SEED)
    spare = [task.id for task in spare_tasks(doubled, drawn, 3, SEED)]
    assert sorted(spare) == sorted({task.id for task in TASKS} - {task.id for task in drawn})
    assert spare == [task.id for task in spare_tasks(doubled, drawn, 3, SEED)]
    assert spare != [task.id for task in spare_tasks(doubled, drawn, 3, SEED + 1)]


def test_dynamic_sampling_does_not_hide_an_app_that_never_works(tmp_path):
    with pytest.raises(TrainingError, match="gone"):
        fit(tmp_path / "run", App(set(), broken={task.input["number"] for task in TASKS}))
