"""Which rollouts each step wants: pure functions of the seed, so that a resumed run plans the same.

Rollout ids follow from run, step and place, which makes enqueueing idempotent: whatever a killed
trainer had already asked for is not asked for twice.
"""

from __future__ import annotations

import hashlib
import json
import random
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice
from typing import Any

from pydantic import ValidationError

from lightning_core.errors import TaskError
from lightning_core.records.types import Fork, Rollout, Sampling, Split, Task
from lightning_core.trainer.parts import ResolvedPhase

EVALUATIONS = {"sampled": Sampling(temperature=1.0), "greedy": Sampling(temperature=0.0)}
"""The two ways a policy is evaluated."""


def make_tasks(rows: Iterable[Task | Mapping[str, Any]] | None, split: Split) -> list[Task]:
    """Tasks from tasks or plain dicts; a row that is not JSON is refused with its place and field."""
    tasks = []
    for index, row in enumerate(_finite(rows, split)):
        if not isinstance(row, Task | Mapping):
            raise TaskError(f"{split} task {index} is a {type(row).__name__}; give a Task or a dict")
        for name, value in (row.input if isinstance(row, Task) else row).items():
            try:
                text = json.dumps({name: value}, allow_nan=False, ensure_ascii=False)
                text.encode()  # refuses half a character
            except (TypeError, ValueError) as problem:
                raise TaskError(
                    f"{split} task {index}: field {name!r} is not JSON ({problem}); "
                    "a task must be plain data, so that it can be sent to a worker in another process"
                ) from None
        if isinstance(row, Task):
            tasks.append(row if row.split == split else row.model_copy(update={"split": split}))
            continue
        try:
            tasks.append(Task(id=str(row.get("id") or ""), input=dict(row), split=split))
        except ValidationError as problem:
            raise TaskError(f"{split} task {index} can't be used: {problem}") from None
    return tasks


_RECORDS = (("to_dicts", ".to_dicts()"), ("to_dict", '.to_dict("records")'))
"""How a table of polars, and one of pandas, gives its rows as dicts."""


def _finite(rows: Any, split: Split) -> Iterable[Any]:
    """The rows. A dataset with `__getitem__` alone ends by its length: it need not raise IndexError."""
    if rows is None:
        return ()
    if hasattr(rows, "columns") and (way := next((w for w in _RECORDS if hasattr(rows, w[0])), None)):
        raise TaskError(f"{split} is a {type(rows).__name__}, which gives columns: write {way[1]} after it")
    if hasattr(rows, "__iter__"):
        rows_: Iterable[Any] = rows
        return rows_
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise TaskError(
            f"{split} tasks can't be read from a {type(rows).__name__}, which has no end; "
            "give a list, or an object with __len__ and __getitem__"
        )
    return (rows[index] for index in range(len(rows)))


def check_ids(tasks: Iterable[Task]) -> None:
    """Raise TaskError for an id that two tasks with different inputs have: they would be taken for one."""
    known: dict[str, Task] = {}
    for task in tasks:
        if known.setdefault(task.id, task).input != task.input:
            raise TaskError(
                f"two {task.split} tasks have the id {task.id!r} and different inputs, "
                f"{reprlib.repr(known[task.id].input)} and {reprlib.repr(task.input)}; give each its own id, "
                "or none"
            )


def count_shared(train: Iterable[Task], validation: Iterable[Task]) -> int:
    """How many validation tasks have the input of a training task."""
    known = {json.dumps(task.input, sort_keys=True) for task in train}
    return sum(json.dumps(task.input, sort_keys=True) in known for task in validation)


def tasks_of_step(tasks: Sequence[Task], step: int, count: int, seed: int) -> list[Task]:
    """`count` tasks: the next ones of an endless stream of shuffled passes over all tasks."""
    return [tasks[index] for index in islice(shuffled(len(tasks), step * count, str(seed)), count)]


def shuffled(size: int, start: int, seed: str) -> Iterator[int]:
    """An endless stream of shuffled passes over the numbers below `size`, from place `start` on."""
    epoch, place = divmod(start, size)
    while True:
        order = list(range(size))
        random.Random(f"{seed}-{epoch}").shuffle(order)
        yield from order[place:]
        epoch, place = epoch + 1, 0


def admitted(step: int, phase: ResolvedPhase, total: int) -> range:
    """The steps whose rollouts may be run while step `step` is made, itself first.

    With batches of B rollouts and a staleness of at most S, accepted and running rollouts together are at
    most (S + t) * B while update t is being made, counted from 1 (Fu et al., AReaL, arXiv 2505.24298, section
    5.1). In whole batches: the rollouts of step k may begin once update k - S is published. Batches keep
    their planned order, so short rollouts are not preferred to long ones; the price is that a step waits for
    its slowest. A phase begins with rollouts of its own policy: none of its steps is begun before it.
    """
    return range(step, min(step + phase.algorithm.staleness + 1, phase.end, total))


def spare_tasks(tasks: Sequence[Task], drawn: Sequence[Task], step: int, seed: int) -> list[Task]:
    """The tasks that are not among those drawn for a step, each once, in an order of this step's own."""
    taken = {task.id for task in drawn}
    spare = {task.id: task for task in tasks if task.id not in taken}
    order = list(spare.values())
    random.Random(f"{seed}-{step}-spare").shuffle(order)
    return order


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The common fields of the rollouts that a step asks for at once; its methods make them.

    Each `retry` has ids of its own. A rollout's random numbers follow from its place in the run.
    """

    run_id: str
    step: int
    max_attempts: int = 1
    _: KW_ONLY
    version: int | None = None
    """Version of the weights that must answer them; None: the current one."""
    prompts: Mapping[str, int] = field(default_factory=dict)
    """The versions of prompts."""
    retry: int = 0
    seed: int = 0
    """The run's."""
    constrain: bool = True

    def train(
        self, tasks: Sequence[Task], group_size: int, first: int = 0, temperature: float = 1.0
    ) -> list[Rollout]:
        """`group_size` rollouts of each task. `first` is the place of the first task in the step. Rollouts of
        earlier steps are run first."""
        name = self._name("t")
        return [
            self._rollout(
                f"{name}-{place}-{member}",
                task,
                f"{name}-{place}",
                temperature,
                self._seed("train", self.step, self.retry, place, member),
                place=f"{place}-{member}",
                priority=-self.step,
                split="train",
            )
            for place, task in enumerate(tasks, first)
            for member in range(group_size)
        ]

    def evaluate(self, tasks: Sequence[Task]) -> list[Rollout]:
        """Each task once sampled and once greedy."""
        name = self._name("e")
        return [
            self._rollout(
                f"{name}-{kind}-{place}",
                task,
                f"{name}-{kind}",
                sampling.temperature,
                self._seed(kind, self.step, self.retry, place),
                place=f"{kind}-{place}",
            )
            for kind, sampling in EVALUATIONS.items()
            for place, task in enumerate(tasks)
        ]

    def search(
        self, trials: Sequence[tuple[str, str, Mapping[str, int], Task]], repeats: int
    ) -> list[Rollout]:
        """`repeats` rollouts of each trial: (its name, the task's place, the prompt versions, the task).

        One is greedy, several are sampled. Random numbers follow from the task and the repeat, so that all
        candidates have the same.
        """
        name = self._name("s")
        return [
            replace(self, prompts=prompts)._rollout(
                f"{name}-{trial}-{repeat}",
                task,
                f"{name}-{trial}",
                1.0 if repeats > 1 else 0.0,
                self._seed("search", self.step, place, repeat),
            )
            for trial, place, prompts, task in trials
            for repeat in range(repeats)
        ]

    def fork(self, rollout: Rollout, fork: Fork, samples: int) -> list[Rollout]:
        """`samples` rollouts that leave the course of a recorded one. Each draws its own random numbers,
        which follow from the plan's seed, the rollout, the call and its number."""
        group = f"{self.run_id}-fork-{rollout.id}-{fork.call_id}"
        return [
            Rollout(
                id=f"{group}-{number}",
                run_id=self.run_id,
                task=rollout.task,
                group_id=group,
                step=rollout.step,
                sampling=rollout.sampling.model_copy(
                    update={
                        "seed": self._seed("fork", rollout.id, fork.call_id, number),
                        "fork": fork,
                    }
                ),
                policy_version=self.version,
                prompt_versions=rollout.prompt_versions,
                priority=-rollout.step,
            )
            for number in range(samples)
        ]

    def _name(self, letter: str) -> str:
        return f"{self.run_id}-{letter}{self.step}" + (f"r{self.retry}" if self.retry else "")

    def _rollout(
        self,
        name: str,
        task: Task,
        group: str,
        temperature: float,
        seed: int,
        *,
        place: str | None = None,
        priority: int = 1,
        split: Split = "validation",
    ) -> Rollout:
        return Rollout(
            id=name,
            run_id=self.run_id,
            task=task,
            group_id=group,
            step=self.step,
            split=split,
            place=place,
            retry=self.retry,
            sampling=Sampling(temperature=temperature, seed=seed, constrain=self.constrain),
            policy_version=self.version,
            prompt_versions=dict(self.prompts),
            priority=priority,
            max_attempts=self.max_attempts,
        )

    def _seed(self, *address: int | str) -> int:
        """Returns a rollout's seed, from its place in the run and the run's seed, never from names or
        time."""
        digest = hashlib.blake2b("/".join(map(str, (self.seed, *address))).encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1
