"""The rollouts of a run, a page at a time, and one of them in full."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

from lightning_core.console.asking import PageRequest
from lightning_core.console.reasons import to_shown
from lightning_core.console.shelf import Found
from lightning_core.dialects import transcript
from lightning_core.errors import ConfigError
from lightning_core.experience.returns import with_final
from lightning_core.insight.trace import read_traces
from lightning_core.insight.why import reasons_of
from lightning_core.records.types import TRIED, Call, Event, Reward, Rollout, Run, Span, Status, ToolEvent
from lightning_core.stores.base import Store
from lightning_core.stores.versions import weights_of
from lightning_core.trainer.folder import policy_folder
from lightning_core.trainer.report import model_name, task_text

TOKENIZER: Final = "tokenizer.json"
Decode = Callable[[list[int]], str]
"""The text of token ids, special tokens included, such as `functools.partial(tokenizer.decode,
skip_special_tokens=False)` of a tokenizer of `tokenizers` or `transformers`."""
_PART: Final = "\ufffd"
"""The character that a tokenizer writes where bytes are missing."""
PAGE: Final = 50
"""Rollouts of a page."""
_BATCH, _MOST = 100, 400
"""Rollouts that are looked through together, and for one page at most."""


ORDERS: Final = MappingProxyType(
    {
        "newest": {"order": "enqueued", "newest": True},
        "oldest": {"order": "enqueued", "newest": False},
        "best": {"order": "reward", "newest": True},
        "worst": {"order": "reward", "newest": False},
        "surprising": {"order": "enqueued", "newest": True},
    }
)
"""The orders of a list of rollouts, each as a store's arguments. Surprising ones are of the newest."""


async def list_rollouts(question: PageRequest) -> dict[str, Any]:
    """A page of rollouts, the newest first, as filtered by step, split, status, task, agent, reward and text.

    `order` is newest, oldest, best, worst or surprising: of the newest 400 those whose sampled tokens the
    policy expected least. `next` is where the next page begins; None at the end. A filter that fits little
    may give a short page, from which `next` goes on.
    """
    store, found = await question.run()
    wanted = _Filter(question)
    rows: list[dict[str, Any]] = []
    cursor, looked = question.find("after"), 0
    while len(rows) < wanted.most and looked < _MOST:
        page = await wanted.page(store, found.run_id, cursor)
        for row, rollout in zip(await _rows(store, page, wanted), page, strict=True):
            looked, cursor = looked + 1, rollout.id
            rows += [] if row is None else [row]
            if len(rows) == wanted.most:
                break
        else:
            if len(page) < _BATCH:
                cursor = None
                break
    if wanted.surprising:
        rows, cursor = sorted(rows, key=lambda row: -(row["surprise"] or 0.0))[:PAGE], None
    return {"rows": rows, "next": cursor, "agents": await list_agents(store, found.run_id)}


async def list_agents(store: Store, run_id: str) -> list[str]:
    """The agents of a run, as its first step saw them."""
    first = await store.list_metrics(run_id, limit=1)
    keys = [key for each in first for key in each.values if key.startswith("agent/")]
    return sorted({key.removeprefix("agent/").rpartition("/")[0] for key in keys})


class _Filter:
    def __init__(self, question: PageRequest) -> None:
        status = question.find("status")
        if status is not None and status not in tuple(Status):
            raise ConfigError(f"status={status!r} is none of {', '.join(Status)}")
        order = question.find("order") or "newest"
        if order not in ORDERS:
            raise ConfigError(f"order={order!r} is none of {', '.join(ORDERS)}")
        self.surprising = order == "surprising"
        self.most = _MOST if self.surprising else PAGE
        self._backwards = ORDERS[order]["newest"]
        self._stored: dict[str, Any] = {
            **ORDERS[order],
            "step": question.number("step"),
            "split": question.find("split"),
            "status": None if status is None else Status(status),
        }
        self.low, self.high = question.figure("low"), question.figure("high")
        self.task, self.agent = question.find("task"), question.find("agent")
        self.text = (question.find("text") or "").lower()

    async def page(self, store: Store, run_id: str, cursor: str | None) -> list[Rollout]:
        """The next rollouts from a place on, in the order asked for."""
        from_there: dict[str, Any] = {"before" if self._backwards else "after": cursor} if cursor else {}
        found = await store.find_rollouts(run_id, limit=_BATCH, **from_there, **self._stored)
        return found[::-1] if self._backwards else found

    def rollout(self, rollout: Rollout) -> bool:
        reward = rollout.reward
        if self.task is not None and not rollout.task.id.startswith(self.task):
            return False
        if self.low is not None and (reward is None or reward < self.low):
            return False
        return self.high is None or (reward is not None and reward <= self.high)

    def calls(self, calls: Sequence[Call]) -> bool:
        if self.agent is not None and all(call.agent != self.agent for call in calls):
            return False
        said = (transcript.text([*transcript.prompt(call), *transcript.replies(call)]) for call in calls)
        return not self.text or any(self.text in text.lower() for text in said)


async def _rows(store: Store, page: Sequence[Rollout], wanted: _Filter) -> list[dict[str, Any] | None]:
    fit = {rollout.id for rollout in page if wanted.rollout(rollout)}
    calls, rewards = await store.get_calls(fit), await store.get_rewards(fit)
    return [
        summary(with_final(each, rewards[each.id]), calls[each.id], rewards[each.id])
        if each.id in fit and wanted.calls(calls[each.id])
        else None
        for each in page
    ]


def summary(rollout: Rollout, calls: Sequence[Call], rewards: Sequence[Reward]) -> dict[str, Any]:
    """One line of a rollout."""
    own = [call for call in calls if call.trained and call.status == "completed"]
    said = [p for call in own for choice in call.choices for p in choice.logprobs or ()]
    return {
        "id": rollout.id,
        "task": rollout.task.id,
        "shown": task_text(rollout.task),
        "step": rollout.step,
        "split": rollout.split,
        "greedy": rollout.sampling.temperature == 0.0,
        "status": rollout.status,
        "attempts": rollout.attempts,
        "reward": rollout.reward,
        "intermediate": sum(each.value for each in rewards if each.kind == "intermediate"),
        "error": rollout.error,
        "calls": len(calls),
        "agents": list(dict.fromkeys(call.agent for call in calls)),
        "tokens": sum(transcript.tokens_written(call) or 0 for call in calls),
        "surprise": -fmean(said) if said else None,
        # of several policies none: each has its own versions, which the calls name
        "version": max((call.policy_version or 0 for call in own), default=None)
        if len({call.policy for call in own}) == 1
        else None,
        "seconds": calls[-1].ended_at - calls[0].started_at if calls else None,
    }


async def show_rollout(question: PageRequest) -> dict[str, Any]:
    """One rollout in full: its records as they are shown, each with the place of the one above it."""
    store, found = await question.run()
    (rollout,) = await store.get_rollouts([question.word("id")])
    if rollout.run_id != found.run_id:
        raise ConfigError(f"rollout {rollout.id!r} is of run {rollout.run_id!r}")
    (trace,) = await read_traces(store, [rollout])
    items = [node.item for node, _ in trace.walk()]
    places = {id(item): place for place, item in enumerate(items)}
    run = await store.find_run(found.run_id)
    calls = [item for item in items if isinstance(item, Call)]
    speakers = {policy: await find_speaker(store, found, run, policy) for policy in {c.policy for c in calls}}
    nodes = [
        {
            **_node(node.item, speakers),
            "under": None if parent is None else places[id(parent.item)],
        }
        for node, parent in trace.walk()
    ]
    rewards = [item for item in items if isinstance(item, Reward)]
    group = [
        {"id": each.id, "reward": each.reward, "status": each.status}
        for each in await store.find_rollouts(found.run_id, step=rollout.step, split=rollout.split)
        if each.group_id == rollout.group_id and each.task.id == rollout.task.id
    ]
    reasons, problem = await reasons_of(store, rollout)
    return {
        **summary(trace.rollout, calls, rewards),
        "input": rollout.task.input,
        "fork": _fork(found, run, rollout),
        "nodes": nodes,
        "peers": group,
        "run_agents": await list_agents(store, found.run_id),
        "reasons": {
            "calls": {call_id: list(map(to_shown, some)) for call_id, some in reasons.items()},
            "problem": problem,
        },
    }


def _fork(found: Found, run: Run | None, rollout: Rollout) -> dict[str, Any] | None:
    """The call at which it leaves another rollout, and the console's name for that one's run."""
    fork, of = rollout.sampling.fork, None if run is None else run.config.get(TRIED)
    if fork is None:
        return None
    edited = "reply" if fork.reply is not None else "prompt" if fork.prompt is not None else None
    own = found.run_id.removeprefix(str(of)) if of else ""
    return {**fork.model_dump(include={"rollout_id", "call_id"}), "edited": edited} | {
        "run": found.name.removesuffix(own)
    }


def _node(item: Call | Event | Reward, speakers: Mapping[str | None, Speaker]) -> dict[str, Any]:
    match item:
        case Call():
            return {"kind": "call", **_call(item, speakers[item.policy])}
        case ToolEvent():
            return item.model_dump(mode="json", exclude={"rollout_id", "attempt"})
        case Span():
            return item.model_dump(mode="json", exclude={"rollout_id", "attempt", "trace_id", "parent_id"})
        case Reward():
            shown = item.model_dump(mode="json", exclude={"rollout_id", "attempt", "kind"})
            return {"kind": "reward", "final": item.kind == "final", **shown}


def _call(call: Call, speaker: Speaker) -> dict[str, Any]:
    decode = speaker.decode
    return {
        **call.model_dump(mode="json", exclude={"request", "choices", "prompt_ids", "rollout_id", "attempt"}),
        "prompt": transcript.prompt(call),
        "tools": _tools(call),
        "answerer": transcript.answerer(call, speaker.model),
        "replies": [
            {
                **message,
                "ids": choice.completion_ids,
                "logprobs": choice.logprobs,
                "pieces": [] if decode is None else list(pieces(choice.completion_ids or (), decode)),
            }
            for message, choice in zip(transcript.replies(call), call.choices, strict=True)
        ],
        "read": transcript.tokens_read(call),
        "written": transcript.tokens_written(call),
    }


def pieces(ids: Sequence[int], decode: Decode) -> Iterator[str]:
    """Yields the text that each token adds; "" for all but the last token of a character that several make.

    A tokenizer may write a token otherwise at the beginning of a text, so each is read after those of the
    piece before it.
    """
    begin, done = 0, 0
    for end in range(1, len(ids) + 1):
        before, now = decode(list(ids[begin:done])), decode(list(ids[begin:end]))
        if end < len(ids) and now.endswith(_PART):
            yield ""
        else:
            yield now[len(before) :]
            begin, done = done, end


@dataclass(frozen=True, slots=True)
class Speaker:
    """A policy of the run, as far as a reply of it is shown."""

    model: str | None
    """The name of its model; None if the run does not say."""
    decode: Decode | None
    """The tokenizer beside its weights; None where there is none at hand."""


async def find_speaker(store: Store, found: Found, run: Run | None, policy: str | None) -> Speaker:
    """Returns a policy of the run; None: its own."""
    versions = await store.list_resources(found.run_id, weights_of(policy))
    weights = [Path(each.uri) for each in reversed(versions) if each.uri and each.kind == "weights"]
    kept = [policy_folder(found.folder, policy) / "policy"] if found.folder else []
    decode = _find_tokenizer((*kept, *(path for folder in weights for path in (folder, folder / "model"))))
    return Speaker(model_name(run, policy) if run else None, decode)


@lru_cache(16)
def _find_tokenizer(folders: tuple[Path, ...]) -> Decode | None:
    return next((_read_tokenizer(folder) for folder in folders if (folder / TOKENIZER).is_file()), None)


@lru_cache(4)
def _read_tokenizer(folder: Path) -> Decode | None:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        return None
    return partial(Tokenizer.from_file(str(folder / TOKENIZER)).decode, skip_special_tokens=False)


def _tools(call: Call) -> list[Any]:
    tools = call.request.get("tools")
    return tools if isinstance(tools, list) else []


ANSWERS: Final = MappingProxyType({"rollouts": list_rollouts, "rollout": show_rollout})
