"""`Trainer(prompts="all")`: the agents' prompts, read off their own calls.

A few training tasks are run with no prompt replaced. The system message that all calls of an agent have is
its prompt, whatever framework made it and whatever endpoint answers. Where it differs between calls it holds
values, and only a person can say which parts they are: that agent is left out, by name.

The rollouts' ids follow from the run, so those of a run that was killed are answered from the store. What was
found is written into the run's record last; a run that is resumed with it looks for nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from lightning_core.dialects.transcript import prompt as read_prompt
from lightning_core.errors import ConfigError
from lightning_core.prompts import FOUND, LEFT_OUT, Prompt, first_difference, system_texts, written
from lightning_core.records.types import Call, Rollout, Task, matches
from lightning_core.stores.versions import is_taken
from lightning_core.trainer.collector import Collector, check_any_reward
from lightning_core.trainer.session import Session

PLAYED: Final = 4
"""Training tasks. A value that the app puts in, such as a schema, may be the same in two of them."""
_SHOWN: Final = 40
"""Characters of a text from where it differs."""


def played(train: Sequence[Task], seed: int) -> list[Task]:
    """The tasks that are run to find the prompts."""
    tasks = list({task.id: task for task in train}.values())
    return random.Random(f"discovery-{seed}").sample(tasks, min(PLAYED, len(tasks)))


async def play(session: Session, collector: Collector) -> dict[str, list[Call]]:
    """The calls of these tasks' rollouts. Raises TrainingError if none of them has a reward."""
    step, tasks = min(session.settings.searches), played(collector.tasks, session.settings.seed)

    def plan(retry: int) -> list[Rollout]:
        unpinned: dict[str, int] = {}
        trials = [(f"found-{place}", str(place), unpinned, task) for place, task in enumerate(tasks)]
        return collector.maker.plan(step, retry).search(trials, 1)

    finished = await collector.finish(plan, "prompts are looked for", again=True)
    where = "the rollouts that show the agents' prompts; fix the cause and resume"
    await check_any_reward(session.store, finished, where)
    return await session.store.get_calls([each.id for each in finished])


async def keep(session: Session, calls: Iterable[Call]) -> None:
    """Store what the calls show as the first version of each prompt, and tell it. Raises ConfigError if they
    show no prompt."""
    store, agents = session.store, by_agent(calls, session.settings.patterns)
    found = {
        name: Prompt(text) for name, own in agents.items() if (text := find_prompt(name, own)) is not None
    }
    left_out = {name: why_not(name, own) for name, own in agents.items() if name not in found}
    if not found:
        told = "; ".join(f"{name!r}: {why}" for name, why in left_out.items()) or "no agent was seen"
        raise ConfigError(f'prompts="all" found no prompt. {told}')
    await session.pin_prompts(found)
    run = await store.find_run(session.folder.run_id)
    assert run is not None
    kept = {**run.config, FOUND: written(found), LEFT_OUT: dict(left_out)}
    await store.put_run(run.model_copy(update={"config": kept}))
    session.observers.note(f"prompts were found of {', '.join(map(repr, found))}")
    for name, why in left_out.items():
        session.observers.note(f"the prompt of {name!r} is left as it is: {why}")


Told = Sequence[Sequence[str]]
"""The system texts of each call of an agent."""


def by_agent(calls: Iterable[Call], patterns: tuple[str, ...] | None) -> dict[str, Told]:
    """Returns the instructions of each matching agent, read from its calls."""
    told: dict[str, list[list[str]]] = {}
    for call in calls:
        if matches(call.agent, patterns):
            told.setdefault(call.agent, []).append(system_texts(read_prompt(call)))
    return dict(sorted(told.items()))


def find_prompt(agent: str, told: Told) -> str | None:
    """The first system text that all calls have; None if there is none, or no prompt can be called so."""
    shared = (text for text in told[0] if all(text in own for own in told))
    return None if is_taken(agent) else next(shared, None)


def why_not(agent: str, told: Told) -> str:
    """Why an agent has no prompt, and what to do."""
    if is_taken(agent):
        return "versions of something else have that name; rename the agent"
    if without := sum(not own for own in told):
        return f"{without} of its {len(told)} calls have no system message"
    one = told[0][0]
    other = next(own[0] for own in told if one not in own)
    place = first_difference(one, other)
    ends = (repr(each[place : place + _SHOWN]) for each in (one, other))
    return (
        f"its system message differs between calls, from character {place + 1} on ({' and '.join(ends)}); "
        f"say where the app puts values in: prompts={{{agent!r}: lightning.Prompt(text, placeholders=...)}}"
    )
