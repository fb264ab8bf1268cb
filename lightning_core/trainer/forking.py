"""Rollouts that fork from a recorded one, run after training as a trial of its run.

At a call of the record the policy replies again, or replies to another prompt, or the app gets a reply that a
person wrote. The run's versions answer, the app is the script's, and nothing of the recorded run is changed.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from lightning_core.dialects import get_dialect
from lightning_core.dialects.lenient import Json
from lightning_core.errors import ApiError, ConfigError
from lightning_core.gateway.forks import written_call
from lightning_core.gateway.server import GatewayServer
from lightning_core.insight.counterfactual import ForkResult, read_fork
from lightning_core.plugins import Plugins
from lightning_core.prompts import read_declared
from lightning_core.records.linking import answering
from lightning_core.records.types import TRIED, Call, Fork, Rollout, Run
from lightning_core.runner.config import read_config
from lightning_core.runner.tagging import tagging
from lightning_core.stores.base import Store
from lightning_core.stores.versions import POLICY, get_version
from lightning_core.texts.json_text import read_json
from lightning_core.trainer.plan import RolloutPlan
from lightning_core.trainer.roles.gateway import make_gateway, refuse_policies, serving_run
from lightning_core.trainer.roles.runner import name_of, rollout_config, running
from lightning_core.trainer.settings import Settings

FORK: Final = "-fork-"
"""In the id of a trial that forks rollouts, between its run's id and a word of its own."""
SAMPLES: Final = 8
"""Rollouts that fork at a call."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A person's change of one call. Without a reply and a prompt the policy just replies again."""

    reply: Json | None = None
    """See `Fork.reply`."""
    prompt: Json | None = None
    """See `Fork.prompt`."""

    @property
    def kind(self) -> str:
        """`reply`, `prompt` or `none`."""
        return "reply" if self.reply is not None else "prompt" if self.prompt is not None else "none"


PLAIN: Final = Edit()


def read_edit(reply: str | None, prompt: str | None) -> Edit:
    """The edit of a person's words. A reply is text, or an assistant's message as JSON. A prompt is JSON.

    Raises ConfigError for both at once, and for a prompt that is no JSON object.
    """
    if reply is not None and prompt is not None:
        raise ConfigError("give a reply or a prompt: a reply that you write is sampled from no prompt")
    if reply is not None:
        return Edit(reply=_message_in(reply) or {"role": "assistant", "content": reply})
    return PLAIN if prompt is None else Edit(prompt=_read_prompt(prompt))


def _message_in(text: str) -> Json | None:
    """The assistant's message that a text holds as JSON; None for any other text."""
    try:
        found = read_json(text.encode())
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("role") == "assistant" else None


def _read_prompt(text: str) -> Json:
    try:
        found = read_json(text.encode())
    except ValueError as error:
        raise ConfigError(f"the prompt is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(
            'the prompt is no JSON object; give the request\'s fields, such as {"messages": []}'
        )
    return found


def write_reply(call: Call) -> str:
    """The reply of a call as `read_edit` reads it: its text, or JSON if it calls tools."""
    message: Json = call.choices[0].message
    if not message.get("tool_calls"):
        return str(message.get("content") or "")
    return json.dumps({"role": "assistant", **message}, indent=2, ensure_ascii=False)


def write_prompt(call: Call) -> str:
    """The prompt of a call as `read_edit` reads it: the request's own fields."""
    request: Json = call.request
    fields = {name: request[name] for name in _prompt_fields(call) if name in request}
    return json.dumps(fields, indent=2, ensure_ascii=False)


def _prompt_fields(call: Call) -> list[str]:
    """The fields of a call's request that hold the prompt."""
    dialect = get_dialect(call.dialect)
    return [name for name in (dialect.instructions, dialect.prompt) if name is not None]


# what can fork --------------------------------------------------------------------------------
def forkable(calls: Sequence[Call]) -> list[Call]:
    """The calls on record that the gateway answered, in the order they began."""
    return answering([call for call in calls if call.endpoint is None])


def check_script(run: Run, solve: Callable[..., Any]) -> None:
    """Raise ConfigError for an app of another run."""
    config = read_config(run)
    if config is not None and config.solve != name_of(solve):
        raise ConfigError(
            f"run {run.id!r} is of the function {config.solve!r}, and the first fit() of this script has "
            f"{name_of(solve)!r}; give the script that the run was begun with"
        )


def check_forkable(run: Run, rollout: Rollout, calls: Sequence[Call], edit: Edit, samples: int) -> None:
    """Raise ConfigError for a rollout with which none can be compared, and for an edit that can't be made."""
    refuse_policies(run, "a fork")
    config = read_config(run)
    if config is not None and config.judged:
        raise ConfigError(
            f"a judge rewards the rollouts of run {run.id!r} in groups, so none can fork by itself"
        )
    if rollout.reward is None:
        raise ConfigError(
            f"rollout {rollout.id!r} is {rollout.status} without a reward, so nothing compares with it"
        )
    fork = rollout.sampling.fork
    if fork is not None and fork.prompt is not None:
        raise ConfigError(
            f"a call of rollout {rollout.id!r} has a prompt that a person wrote and its app does not send, "
            f"so none can follow its record; go on from rollout {fork.rollout_id!r}"
        )
    if rollout.sampling.temperature == 0 and edit == PLAIN:
        raise ConfigError(
            f"rollout {rollout.id!r} was greedy, so every other reply would equal the one on record; give a "
            "sampled rollout, such as one of training, or edit the reply or the prompt"
        )
    if rollout.sampling.temperature == 0 and samples > 1:
        raise ConfigError(
            f"rollout {rollout.id!r} was greedy, so all {samples} samples would be the same; give 1"
        )
    for call in calls:
        _check_call(call)
    if edit != PLAIN:
        if len(calls) != 1:
            raise ConfigError(f"an edit is of one call, and these are {len(calls)}; name one")
        _check_edit(calls[0], edit)


def _check_call(call: Call) -> None:
    if call.endpoint is not None:
        raise ConfigError(
            f"call {call.id!r} of agent {call.agent!r} was answered by {call.endpoint}, so none forks there"
        )
    if call.status != "completed":
        raise ConfigError(f"call {call.id!r} is {call.status}, so it has no reply to compare with")


def _check_edit(call: Call, edit: Edit) -> None:
    try:
        if edit.reply is not None:
            _check_reply(call, edit.reply)
        if edit.prompt is not None:
            _check_prompt(call, edit.prompt)
    except ApiError as error:
        raise ConfigError(f"the edited {edit.kind} can't be used: {error}") from None


def _check_reply(call: Call, reply: Json) -> None:
    request: Json = call.request
    if len(call.choices) != 1:
        raise ConfigError(
            f"call {call.id!r} asked for {len(call.choices)} replies at once, and one edited reply can't "
            "stand for all of them; edit its prompt, or another call"
        )
    asked = [name for name in ("logprobs", "top_logprobs", "return_token_ids") if request.get(name)]
    asked += [name for name in request.get("include") or () if "logprobs" in str(name)]
    if asked:
        raise ConfigError(
            f"call {call.id!r} asks for {', '.join(asked)}, which an edited reply does not have: no policy "
            "sampled it; edit its prompt, or another call"
        )
    (written,) = written_call(call, reply).choices
    if written.message.get("tool_calls") and get_dialect(call.dialect).operation == "text_completion":
        raise ConfigError(f"call {call.id!r} is a text completion, whose reply calls no tools; give text")


def _check_prompt(call: Call, prompt: Json) -> None:
    known, dialect = _prompt_fields(call), get_dialect(call.dialect)
    if not prompt or not set(prompt) <= set(known):
        raise ConfigError(
            f"the edited prompt has the fields {list(prompt)}; call {call.id!r} came through the API "
            f"{call.dialect!r}, whose prompt is in {' and '.join(known)}"
        )
    if dialect.operation != "text_completion":
        dialect.conversation({**call.request, **prompt})


# forks ----------------------------------------------------------------------------------------
async def begin_forks(
    store: Store, run: Run, rollout: Rollout, calls: Sequence[Call], samples: int, edit: Edit = PLAIN
) -> tuple[Run, Mapping[str, list[Rollout]]]:
    """Enqueue `samples` rollouts that fork at each of the calls; returns their trial, and them by call id.

    Raises ConfigError for what can't fork, and NotFoundError if a version of the weights that answered a call
    is deleted.
    """
    check_forkable(run, rollout, calls, edit, samples)
    answered = {call.id: _version(call, rollout) for call in calls}
    trial = await _begin(store, run, set(answered.values()))
    asked = {
        call_id: RolloutPlan(trial.id, rollout.step, version=version).fork(
            rollout,
            Fork(rollout_id=rollout.id, call_id=call_id, reply=edit.reply, prompt=edit.prompt),
            samples,
        )
        for call_id, version in answered.items()
    }
    await store.enqueue([each for forks in asked.values() for each in forks])
    return trial, asked


def _version(call: Call, rollout: Rollout) -> int:
    """The version that answered a call; where a person wrote its reply, the one that answered the others."""
    version = rollout.policy_version if call.policy_version is None else call.policy_version
    return version or 0


async def run_forks(
    store: Store,
    run: Run,
    rollout: Rollout,
    calls: Sequence[Call],
    samples: int,
    edit: Edit = PLAIN,
    *,
    settings: Settings,
    solve: Callable[..., Any],
    plugins: Plugins,
    on_finished: Callable[[Rollout], None] | None = None,
) -> Mapping[str, list[ForkResult]]:
    """Begin the forks and run them here; returns their ends by call id. Raises as `begin_forks` does."""
    trial, asked = await begin_forks(store, run, rollout, calls, samples, edit)
    status = "failed"
    try:
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(serving_run(store, run, plugins))
            server = await stack.enter_async_context(GatewayServer(make_gateway(store, trial, upstream)))
            stack.enter_context(tagging(plugins))
            await stack.enter_async_context(
                running(
                    solve,
                    store,
                    trial,
                    read_config(run) or rollout_config(settings, solve),
                    worker=f"{trial.id}/worker",
                    concurrency=settings.concurrency,
                    workers=settings.workers,
                    gateway_url=server.url,
                    on_finished=on_finished,
                )
            )
            every = [each.id for forks in asked.values() for each in forks]
            ended = {each.id: each for each in await store.wait_finished(every)}
            recorded = await store.get_calls(ended)
        status = "finished"
    finally:
        await store.put_run(trial.model_copy(update={"status": status}))
    return {
        call_id: [read_fork(ended[each.id], recorded[each.id]) for each in forks]
        for call_id, forks in asked.items()
    }


async def _begin(store: Store, run: Run, versions: set[int]) -> Run:
    """A trial of the run, with its prompts and the versions that are to answer."""
    known = await store.list_resources(run.id, POLICY)
    wanted = [get_version(known, version) for version in sorted(versions)]
    for name in read_declared(run):
        wanted += await store.list_resources(run.id, name)
    trial = Run(
        id=f"{run.id}{FORK}{secrets.token_hex(4)}",
        config={**run.config, TRIED: run.id},
        folder=run.folder,
        secret=secrets.token_hex(32),
        provenance=run.provenance,
    )
    await store.put_run(trial)
    for version in wanted:
        await store.put_resource(version.model_copy(update={"run_id": trial.id}))
    return trial
