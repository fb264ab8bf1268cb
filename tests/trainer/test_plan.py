"""Each step's rollouts follow from the seed alone."""

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from lightning_core.errors import TaskError
from lightning_core.records.types import Rollout, Task
from lightning_core.stores.legacy import planned_at
from lightning_core.stores.sqlite import MemoryStore
from lightning_core.trainer.plan import (
    RolloutPlan,
    make_tasks,
    tasks_of_step,
)
from lightning_core.trainer.report import find_evaluation


def tasks(count: int) -> list[Task]:
    return make_tasks([{"question": f"q{i}"} for i in range(count)], "train")


def test_every_task_comes_once_in_each_pass_whatever_the_step_size():
    chosen = [task.id for step in range(15) for task in tasks_of_step(tasks(10), step, 4, seed=1)]
    for epoch in range(6):
        assert set(Counter(chosen[epoch * 10 : (epoch + 1) * 10]).values()) == {1}


def test_a_step_plans_the_same_again_and_another_seed_plans_another_order():
    stream = [
        [t.id for step in range(5) for t in tasks_of_step(tasks(20), step, 4, seed)] for seed in (1, 1, 2)
    ]
    assert stream[0] == stream[1] != stream[2]


def test_no_tasks_are_none():
    assert make_tasks(None, "validation") == []


def test_rollout_ids_are_unique_over_steps_places_and_members():
    planned = [r for step in range(3) for r in RolloutPlan("run", step).train(tasks(2) * 2, 4)]
    assert len({rollout.id for rollout in planned}) == 3 * 4 * 4
    assert len({rollout.group_id for rollout in planned}) == 3 * 4


def test_an_evaluation_runs_each_task_once_sampled_and_once_greedy():
    planned = RolloutPlan("run", 0, 2).evaluate(tasks(3))
    assert Counter(rollout.sampling.temperature for rollout in planned) == {1.0: 3, 0.0: 3}
    assert {rollout.split for rollout in planned} == {"validation"}


def test_a_planned_rollout_says_its_place_and_retry():
    for retry in (0, 2):
        plan = RolloutPlan("a-t1", 3, retry=retry)
        planned = [*plan.train(tasks(2), 2, first=10), *plan.evaluate(tasks(2))]
        assert {rollout.retry for rollout in planned} == {retry}
        assert [rollout.place for rollout in planned] == [
            *("10-0", "10-1", "11-0", "11-1"),
            *("sampled-0", "sampled-1", "greedy-0", "greedy-1"),
        ]
        for one in planned:
            assert planned_at(one.id, one.run_id, one.step, one.split) == (one.place, retry)
    first = planned[0]
    for change in ({"id": "a-t1-x3-1-0"}, {"id": "b"}, {"step": 4}, {"split": "validation"}, {"run_id": "a"}):
        other = first.model_copy(update=change)
        assert planned_at(other.id, other.run_id, other.step, other.split) == (None, 0)


async def test_what_others_ask_for_is_no_part_of_an_evaluation():
    async with MemoryStore() as store:
        task = tasks(1)[0]
        other = Rollout(
            id="run-x0-1-0", run_id="run", task=task, group_id="run-x0-1", step=0, split="validation"
        )
        planned = RolloutPlan("run", 0).evaluate([task])
        await store.enqueue([*planned, other])
        for attempt in await store.lease("worker", 2, 60):
            assert attempt.rollout.id != other.id
            await store.finish(attempt, reward=1.0)
        found = await find_evaluation(store, "run", 0, None)
        assert found is not None
        assert (found.sampled, found.greedy, found.detail["sampled"].tasks) == (1.0, 1.0, 1)


def test_the_same_input_is_the_same_task():
    one, two = make_tasks([{"a": 1, "b": 2}, {"b": 2, "a": 1}], "train")
    assert one.id == two.id


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"q": object()}, "'q'"),
        ({"q": math.nan}, "'q'"),
        (Task(input={"q": math.nan}), "'q'"),
        ({"q": "half \ud83d"}, "'q'"),
        (Task(input={"q": ["half \ud83d"]}), "'q'"),
        ("text", "str"),
        (None, "NoneType"),
    ],
)
def test_a_row_that_is_not_json_is_refused_with_its_place(row, words):
    with pytest.raises(TaskError, match=f"(?s)validation task 1.*{words}"):
        make_tasks([{"q": "fine"}, row], "validation")


class Endless:
    """A dataset that answers for any index, as one that wraps around does."""

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"number": index}


class Sized(Endless):
    def __len__(self) -> int:
        return 3


def test_a_dataset_that_never_raises_indexerror_ends_by_its_length_or_is_refused():
    assert [task.input for task in make_tasks(Sized(), "train")] == [{"number": n} for n in range(3)]  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="train tasks can't be read from a Endless, which has no end"):
        make_tasks(Endless(), "train")  # type: ignore[arg-type]


class Table:
    """A table as pandas and polars have it: it iterates over columns, and has no truth value."""

    columns = ("question",)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __bool__(self) -> bool:
        raise ValueError("The truth value of a DataFrame is ambiguous")


class Pandas(Table):
    def to_dict(self) -> None: ...


class Polars(Pandas):
    def to_dicts(self) -> None: ...


@pytest.mark.parametrize(
    ("table", "way"), [(Pandas(), r'\.to_dict\("records"\)'), (Polars(), r"\.to_dicts\(\)")]
)
def test_a_table_is_refused_with_the_way_to_its_rows(table: Table, way: str) -> None:
    with pytest.raises(TaskError, match=f"train is a P.*, which gives columns: write {way} after it"):
        make_tasks(table, "train")  # type: ignore[arg-type]


def test_an_array_of_rows_is_read_without_a_question_for_its_truth() -> None:
    rows = np.array([{"n": 1}, {"n": 2}])
    assert [task.input for task in make_tasks(rows, "train")] == [{"n": 1}, {"n": 2}]
