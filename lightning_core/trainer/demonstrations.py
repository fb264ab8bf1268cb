"""Demonstrations: read from recorded calls, encoded for the policy, and drawn for an update.

The calls may be those of a hosted teacher or of another run. A call that was only seen holds its request and
its reply, which is all that a demonstration needs; its token ids are those of the policy's own chat template.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from lightning_core.algorithms.base import Demonstrations
from lightning_core.backends.base import Backend
from lightning_core.dialects import get_dialect
from lightning_core.errors import ApiError, ConfigError, DataError, GatewayError, TaskError, UnsupportedError
from lightning_core.experience.returns import with_final
from lightning_core.plugins import load_plugins
from lightning_core.records.sequences import as_ids, as_logprobs
from lightning_core.records.types import (
    TRIED,
    UNNAMED,
    Call,
    Choice,
    Demonstration,
    Rollout,
    Split,
    Status,
    Trajectory,
    Transition,
    matches,
)
from lightning_core.stores.base import Store
from lightning_core.trainer.folder import RunFolder, check_there
from lightning_core.trainer.parts import open_store
from lightning_core.trainer.plan import shuffled

logger = logging.getLogger(__name__)

WHOLE = ("stop", "tool_calls")
"""Finish reasons of a reply that was not cut short."""


def demonstrations(
    source: str | Path,
    *,
    agents: Sequence[str] | str | None = None,
    least_reward: float | None = None,
    split: Split = "train",
) -> list[Demonstration]:
    """Every whole reply of the agents in the successful rollouts of a store (a URL) or of a run (a folder).

    `agents` are names or globs, None all; `least_reward` leaves out rollouts with a smaller one. Replies that
    were cut short, and requests that a chat template can't say (images, a conversation that a server keeps),
    are left out and counted in the log. Raises DataError if nothing is left, ConfigError for a folder without
    a run.
    """
    with ThreadPoolExecutor(1) as thread:  # there may be a running loop in this one
        rollouts, calls = thread.submit(lambda: asyncio.run(_read(source, split))).result()
    good = {each.id for each in rollouts if each.status is Status.SUCCEEDED and _reaches(each, least_reward)}
    wanted = (agents,) if isinstance(agents, str) else tuple(agents or ("*",))
    chosen = [call for call in calls if call.rollout_id in good and matches(call.agent, wanted)]
    left_out: Counter[str] = Counter()
    found = [each for call in chosen for each in _of_call(call, left_out)]
    if left_out:
        logger.info("%s: left out %s", source, dict(left_out))
    if not found:
        seen = ", ".join(sorted({repr(call.agent) for call in calls})) or "none"
        raise DataError(
            f"{str(source)!r} has no calls to imitate: {len(good)} of {len(rollouts)} {split} rollouts are "
            f"good enough, {len(chosen)} of their calls are of {list(wanted)!r} (agents seen: {seen}), left "
            f"out: {dict(left_out)!r}"
        )
    return found


async def _read(source: str | Path, split: Split) -> tuple[list[Rollout], list[Call]]:
    url, run_id = _address(source)
    async with open_store(url, load_plugins()) as store:
        rollouts = [
            rollout
            for name in ([run_id] if run_id else await _run_ids(store))
            for rollout in await store.find_rollouts(name, split=split)
        ]
        ids = [rollout.id for rollout in rollouts]
        calls, rewards = await store.get_calls(ids), await store.get_rewards(ids)
    rollouts = [with_final(rollout, rewards[rollout.id]) for rollout in rollouts]
    return rollouts, [call for part in calls.values() for call in part]


async def _run_ids(store: Store) -> list[str]:
    """The runs of a store, without trials: a reply in one may be a person's."""
    return [run.id for run in await store.list_runs() if TRIED not in run.config]


def _reaches(rollout: Rollout, least: float | None) -> bool:
    return least is None or (rollout.reward is not None and rollout.reward >= least)


def _address(source: str | Path) -> tuple[str, str | None]:
    """The store's URL, and the run if `source` is one's folder."""
    if "://" in str(source):
        return str(source), None
    found = RunFolder(Path(source), resume=True).find_run()
    if found is None:
        raise ConfigError(f"{str(source)!r} is neither a store's URL nor a run's folder")
    check_there(found[0])
    return found


def _of_call(call: Call, left_out: Counter[str]) -> Iterator[Demonstration]:
    """Yields the call's choices that can be imitated."""
    request: dict[str, Any] = call.request
    if call.status != "completed":
        left_out[f"{call.status} calls"] += 1
        return
    dialect = get_dialect(call.dialect)
    try:
        if dialect.continues(call.request):
            left_out["replies that go on from the assistant's own words"] += 1
            return
        messages, tools = dialect.conversation(call.request)
    except ApiError as problem:
        left_out[str(problem)] += 1
        return
    for choice in call.choices:
        reply = _reply(choice)
        if reply is None:
            left_out["replies that are not whole"] += 1
            continue
        yield Demonstration(
            messages=messages,
            reply=reply,
            tools=tools,
            agent=call.agent,
            template=request.get("chat_template_kwargs") or {},
        )


def _reply(choice: Choice) -> dict[str, Any] | None:
    said = {name: choice.message.get(name) for name in ("content", "tool_calls")}
    said = {name: value for name, value in said.items() if value}
    return said if said and choice.finish_reason in WHOLE else None


def encode_all(
    given: Demonstrations, backend: Backend, agents: tuple[str, ...] | None
) -> tuple[Trajectory, ...]:
    """Each demonstration as a trajectory of one transition, as if the policy had made the call.

    Raises TaskError, with its place, for one of an agent that is not trained, or that the model's chat
    template can't say.
    """
    return tuple(_encode(i, row, backend, agents) for i, row in enumerate(given.rows))


def _encode(index: int, row: Demonstration, backend: Backend, agents: tuple[str, ...] | None) -> Trajectory:
    if row.agent is not None and agents is not None and not matches(row.agent, agents):
        raise TaskError(
            f"demonstration {index} is of agent {row.agent!r}, which agents={list(agents)!r} does not train; "
            "leave it out, or train that agent too"
        )
    try:
        prompt, reply = backend.encode(row)
    except (GatewayError, UnsupportedError) as problem:
        raise TaskError(f"demonstration {index} can't be used: {problem}") from problem
    name = f"demonstration-{index}"
    transition = Transition(
        rollout_id=name,
        call_id=name,
        choice=0,
        agent=row.agent or UNNAMED,
        trained=True,
        prompt_ids=as_ids(prompt),
        completion_ids=as_ids(reply),
        logprobs=as_logprobs([math.nan] * len(reply)),
        policy_version=None,
    )
    return Trajectory(name, group_id=name, task_id=name, reward=math.nan, transitions=(transition,))


def draw(encoded: Sequence[Trajectory], step: int, count: int, seed: int) -> list[Trajectory]:
    """`count` of them: the next ones of an endless stream of shuffled passes; none twice in one update."""
    stream = shuffled(len(encoded), step * count, f"demonstrations-{seed}")
    return [encoded[index] for index in dict.fromkeys(islice(stream, count))]
